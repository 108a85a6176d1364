"""A digest of rows in any order: the sum, modulo 2^64, of a 64-bit hash of each row.

Addition is commutative and associative, so the order of rows does not matter, nor how they are
divided into batches, files and subtasks. The digests of the parts add up to that of the whole. A
sum, unlike an exclusive or, changes when a row occurs twice.

A changed, missing or doubled row goes unnoticed with probability 2^-64. Several changes that cancel
each other out are as unlikely by chance, but an attacker who knows the hash can construct them: the
digest guards against errors, not forgery. It does not cover the order of rows.

It hashes values, not representations: a column has the same digest after it was stored and read
back as another Arrow type of the same values (dictionary or plain, large or small, s, ms or us).

Each step from one value to its row's hash is a bijection, at least for numbers, so a row with one
changed value never keeps its hash.

Sources: SplitMix64's finaliser and XXH64, as in `state.hashing`; a multiplier of MurmurHash3;
Clarke et al., "Incremental multiset hash functions" (2003), MSet-Add-Hash.
"""

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import xxhash

from pipelines.state.hashing import NULL_HASH, Hashes, is_bytes_like, is_integer_like, mix

MODULUS = 1 << 64
CHUNK_ROWS = 8_192
"""How many rows are hashed at a time: they have to fit into the cache."""
GATHERED_BYTES = 4 << 20

_ODD = np.uint64(0x9E3779B97F4A7C15)
_DAY_MS = 86_400_000
_SCRAMBLING = np.uint64(0xFF51AFD7ED558CCD)
_32 = np.uint64(32)
_EMPTY_ROW = np.uint64(0xD6E8FEB86659FD93)
_TO_MICROSECONDS = {"s": 1_000_000, "ms": 1_000, "us": 1, "ns": 1}


class RowCount:
    """Replaces a `RowDigest` where no digest will be compared."""

    def __init__(self) -> None:
        self._rows = 0

    def add(self, batch: pa.RecordBatch) -> None:
        self._rows += batch.num_rows

    def take(self) -> tuple[int, None]:
        """Returns the number of rows since the last call, and no digest."""
        rows, self._rows = self._rows, 0
        return rows, None


class RowDigest:
    """Digests the rows of many batches. Gathers small batches first, to make fewer calls."""

    def __init__(self) -> None:
        self._rows = 0
        self._digest = 0
        self._gathered: list[pa.RecordBatch] = []
        self._gathered_rows = 0
        self._gathered_bytes = 0

    def add(self, batch: pa.RecordBatch) -> None:
        if self._gathered and batch.schema != self._gathered[0].schema:
            self._digest_gathered()
        self._gathered.append(batch)
        self._gathered_rows += batch.num_rows
        self._gathered_bytes += batch.nbytes
        if self._gathered_rows >= CHUNK_ROWS or self._gathered_bytes >= GATHERED_BYTES:
            self._digest_gathered()

    def take(self) -> tuple[int, int]:
        """Returns the number of rows since the last call, and their digest."""
        self._digest_gathered()
        taken = self._rows, self._digest
        self._rows = self._digest = 0
        return taken

    def _digest_gathered(self) -> None:
        if self._gathered_rows:
            whole = pa.Table.from_batches(self._gathered).combine_chunks()
            for batch in whole.to_batches():
                self._digest = (self._digest + digest_of(batch)) % MODULUS
        self._rows += self._gathered_rows
        self._gathered, self._gathered_rows, self._gathered_bytes = [], 0, 0


def digest_of(batch: pa.RecordBatch) -> int:
    """Returns the digest of all rows over the columns in their order, or 0 if there are no rows."""
    starts = range(0, batch.num_rows, CHUNK_ROWS)
    return sum(_digest_of(batch.slice(start, CHUNK_ROWS)) for start in starts) % MODULUS


def _digest_of(batch: pa.RecordBatch) -> int:
    rows = np.full(batch.num_rows, _EMPTY_ROW)
    for column in batch.columns:
        rows ^= _column_hashes(column)
        rows *= _ODD  # so that the column of a value matters
    return int(mix(rows).sum(dtype=np.uint64))


def _column_hashes(column: pa.Array) -> Hashes:
    if isinstance(column, pa.DictionaryArray):
        return _looked_up(column)
    hashes = _value_hashes(column)
    if column.null_count:
        hashes[column.is_null().to_numpy(zero_copy_only=False)] = NULL_HASH
    return hashes


def _value_hashes(column: pa.Array) -> Hashes:
    kind = column.type
    if is_integer_like(kind) or pa.types.is_time(kind) or pa.types.is_duration(kind):
        return _scrambled(_integers(column).view(np.uint64))
    if pa.types.is_floating(kind):
        return _scrambled(_filled(column, 0.0).astype(np.float64).view(np.uint64))
    if is_bytes_like(kind):
        return _looked_up(column.dictionary_encode())
    return _hashed_each(column, lambda value: repr(value).encode())


def _scrambled(values: Hashes) -> Hashes:
    """A bijection, and half of a hash; the other half is done once per row."""
    scrambled = values * _SCRAMBLING
    scrambled ^= scrambled >> _32
    return scrambled


def _integers(column: pa.Array) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    kind = column.type
    if pa.types.is_boolean(kind):
        return _filled(column, False).astype(np.int64)
    if not pa.types.is_temporal(kind):
        return _filled(column, 0).astype(np.int64)
    plain = column.view(pa.int64() if kind.bit_width == 64 else pa.int32())
    values = _filled(plain, 0).astype(np.int64)
    if pa.types.is_date(kind):
        return values // _DAY_MS if pa.types.is_date64(kind) else values
    return values * _TO_MICROSECONDS[kind.unit]


def _filled(column: pa.Array, value: object) -> np.ndarray[tuple[int], np.dtype[np.generic]]:
    whole = column.fill_null(value) if column.null_count else column
    return np.asarray(whole.to_numpy(zero_copy_only=False))


def _looked_up(column: pa.DictionaryArray) -> Hashes:
    """Hashes each distinct value once; the last place is for nulls."""
    values = column.dictionary
    of_value = _hashed_bytes(values) if is_bytes_like(values.type) else _column_hashes(values)
    of_value = np.append(of_value, NULL_HASH)
    indices = column.indices.cast(pa.int64()).fill_null(len(values)).to_numpy()
    return np.asarray(of_value[indices])


def _hashed_each(column: pa.Array, as_bytes: Callable[[object], bytes]) -> Hashes:
    hashed = (
        int(NULL_HASH) if value is None else xxhash.xxh64_intdigest(as_bytes(value))
        for value in column.to_pylist()
    )
    return np.fromiter(hashed, dtype=np.uint64, count=len(column))


def _hashed_bytes(column: pa.Array) -> Hashes:
    """Like `_hashed_each`, but loops in C unless there are nulls."""
    blobs = column.cast(pa.large_binary())
    if blobs.null_count:
        return _hashed_each(blobs, bytes)  # type: ignore[arg-type]
    hashed = map(xxhash.xxh64_intdigest, blobs.to_pylist())
    return np.fromiter(hashed, dtype=np.uint64, count=len(blobs))
