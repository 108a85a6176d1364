"""The hash of keys: 64 bits, stable across processes, releases and machines, a batch at a time.

It decides key groups, and every snapshot depends on those, so it can never change. Integers,
timestamps and booleans go through the finaliser of SplitMix64, which is a bijection; strings and
binaries through XXH64 of their bytes. Several columns are combined in order.

Sources: Steele, Lea, Flood, "Fast splittable pseudorandom number generators" (2014); XXH64.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from pipelines.domain.errors import Rejected

Hashes = npt.NDArray[np.uint64]
KeyGroups = npt.NDArray[np.uint16]

NULL_HASH = np.uint64(0x9AE16A3B2F90404F)
"""Nulls of every type hash alike; any odd-looking constant would do."""

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_FEW = 32
"""Up to this many values are hashed one by one, without first finding the distinct ones."""
_30, _27, _31 = np.uint64(30), np.uint64(27), np.uint64(31)


def key_hashes(
    batch: pa.RecordBatch, columns: Sequence[str], after: Hashes | None = None
) -> Hashes:
    """Returns one hash per row over `columns`, in their order.

    `after` has the hashes over the columns that come before these.

    Raises:
        Rejected: a column has a type that cannot be a key; the message names it.
    """
    if after is None:
        first, *columns = columns
        after = _column_hashes(batch.column(first), first)
    combined = after
    for name in columns:
        combined = mix(combined * _GOLDEN + _column_hashes(batch.column(name), name))
    return combined


def key_groups(hashes: Hashes, max_parallelism: int) -> KeyGroups:
    if max_parallelism & (max_parallelism - 1) == 0:
        return (hashes & np.uint64(max_parallelism - 1)).astype(np.uint16)
    return (hashes % np.uint64(max_parallelism)).astype(np.uint16)


def is_bijective(schema: pa.Schema) -> bool:
    """True if equal hashes mean equal keys: one integer-like column without nulls."""
    return len(schema) == 1 and is_integer_like(schema.field(0).type)


def mix(values: Hashes) -> Hashes:
    """The finaliser of SplitMix64 after one step of its sequence."""
    mixed = values + _GOLDEN
    mixed ^= mixed >> _30
    mixed *= _MIX_1
    mixed ^= mixed >> _27
    mixed *= _MIX_2
    mixed ^= mixed >> _31
    return mixed


def _column_hashes(column: pa.Array, name: str) -> Hashes:
    if is_integer_like(column.type):
        return _integer_hashes(column)
    if pa.types.is_dictionary(column.type):
        return _dictionary_hashes(column, name)
    if is_bytes_like(column.type):
        if len(column) <= _FEW:
            return _value_hashes(column)
        return _dictionary_hashes(column.dictionary_encode(), name)
    raise Rejected(
        f"The column {name!r} of type {column.type} cannot be a key; use an integer, timestamp, "
        "boolean, string or binary column."
    )


def _integer_hashes(column: pa.Array) -> Hashes:
    hashes = mix(as_integers(column).view(np.uint64))
    if column.null_count:
        hashes[column.is_null().to_numpy(zero_copy_only=False)] = NULL_HASH
    return hashes


def _dictionary_hashes(column: pa.DictionaryArray, name: str) -> Hashes:
    """Hash each distinct value once, then look the rows up."""
    if not is_bytes_like(column.dictionary.type):
        return _column_hashes(column.dictionary_decode(), name)
    of_value = _value_hashes(column.dictionary)
    if not column.null_count:
        return np.asarray(of_value[column.indices.to_numpy()])
    # The last place is for nulls, which have no index.
    indices = column.indices.cast(pa.int64()).fill_null(len(of_value)).to_numpy()
    return np.asarray(np.append(of_value, NULL_HASH)[indices])


def _value_hashes(column: pa.Array) -> Hashes:
    """Hash each value by itself. A view costs a twentieth of a cast, which matters for few rows."""
    is_large = pa.types.is_large_string(column.type) or pa.types.is_large_binary(column.type)
    values = column.view(pa.large_binary() if is_large else pa.binary()).to_pylist()
    hashes = [NULL_HASH if v is None else xxhash.xxh64_intdigest(v) for v in values]
    return np.array(hashes, dtype=np.uint64)


def as_integers(array: pa.Array) -> npt.NDArray[np.int64]:
    """Returns the 64-bit integers underlying a key column; a null becomes 0."""
    if array.null_count:
        array = array.fill_null(False if pa.types.is_boolean(array.type) else 0)
    if pa.types.is_temporal(array.type):
        array = array.view(pa.int64() if array.type.bit_width == 64 else pa.int32())
    values: npt.NDArray[np.generic] = array.to_numpy(zero_copy_only=False)
    return values.astype(np.int64, copy=False)


def is_integer_like(data_type: pa.DataType) -> bool:
    is_number = pa.types.is_integer(data_type) or pa.types.is_boolean(data_type)
    return bool(is_number or pa.types.is_timestamp(data_type) or pa.types.is_date(data_type))


def is_bytes_like(data_type: pa.DataType) -> bool:
    text = pa.types.is_string(data_type) or pa.types.is_large_string(data_type)
    return bool(text or pa.types.is_binary(data_type) or pa.types.is_large_binary(data_type))
