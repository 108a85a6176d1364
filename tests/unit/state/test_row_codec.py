"""Rows as bytes: every value comes back, and different rows never share their bytes."""

import random
import tracemalloc

import numpy as np
import pyarrow as pa
import pytest

from pipelines.state.on_disk import stored_database
from pipelines.state.on_disk.stored_database import (
    RowCodec,
    bytes_list,
    decoded_rows,
    sort_order,
    take,
)

FIXED = pa.schema([("a", pa.int64()), ("b", pa.bool_()), ("c", pa.float32()), ("d", pa.date32())])
MIXED = pa.schema(
    [("t", pa.string()), ("n", pa.uint64()), ("u", pa.large_binary()), ("w", pa.timestamp("us"))]
)


@pytest.mark.parametrize("schema", [FIXED, MIXED], ids=["fixed", "mixed"])
@pytest.mark.parametrize("with_group", [True, False])
@pytest.mark.parametrize("seed", range(10))
def test_decoding_returns_the_encoded_rows(schema: pa.Schema, with_group: bool, seed: int) -> None:
    rng = random.Random(seed)
    count = rng.choice([0, 1, 50])
    batch = pa.RecordBatch.from_arrays(
        [pa.array([value(rng, f.type) for _ in range(count)], f.type) for f in schema],
        schema=schema,
    )
    groups = np.array([rng.randrange(1 << 15) for _ in range(count)], np.uint16)
    codec = RowCodec(schema, with_group=with_group)

    packed = codec.encode(batch.columns, count, groups if with_group else None)
    rows, found = codec.decode(bytes_list(packed))

    assert rows.equals(batch)
    assert (found is not None) == with_group
    assert found is None or found.tolist() == groups.tolist()


def test_awkward_keys_have_distinct_encodings() -> None:
    schema = pa.schema([("a", pa.string()), ("b", pa.string()), ("n", pa.int64())])
    rows = [
        ("", "ab", 0), ("a", "b", 0), ("ab", "", 0), (None, "ab", 0), ("", None, 0),
        (None, None, 0),
        ("é", "", 0), ("e\u0301", "", 0), ("", "ab", None), ("a\0", "b", 0), ("a", "\0b", 0),
    ]  # fmt: skip
    columns = [
        pa.array(column, t) for column, t in zip(zip(*rows, strict=True), schema.types, strict=True)
    ]

    encoded = bytes_list(RowCodec(schema, with_group=False).encode(columns, len(rows)))

    assert len(set(encoded)) == len(rows)


@pytest.mark.parametrize("schema", [FIXED, MIXED], ids=["fixed", "mixed"])
def test_rows_are_sorted_by_their_bytes_with_the_key_group_first(schema: pa.Schema) -> None:
    rng = random.Random(5)
    columns = [pa.array([value(rng, f.type) for _ in range(300)], f.type) for f in schema]
    groups = np.array([rng.randrange(512) for _ in range(300)], np.uint16)
    codec = RowCodec(schema, with_group=True)

    packed = codec.encode(columns, 300, groups)
    ordered = bytes_list(take(packed, sort_order(packed)))

    assert ordered == sorted(bytes_list(packed))
    found = codec.decode(ordered)[1]
    assert found is not None
    assert found.tolist() == sorted(groups.tolist())


def value(rng: random.Random, column_type: pa.DataType) -> object:
    if rng.random() < 0.2:
        return None
    if pa.types.is_boolean(column_type):
        return rng.random() < 0.5
    if pa.types.is_float32(column_type):
        return float(rng.choice([0.0, -1.5, float("inf")]))
    if pa.types.is_date32(column_type) or pa.types.is_timestamp(column_type):
        return (
            pa.scalar(rng.randrange(1 << 30), pa.int32()).cast(pa.int64()).as_py()
            if (pa.types.is_timestamp(column_type))
            else rng.randrange(20_000)
        )
    if pa.types.is_string(column_type):
        return rng.choice(["", "a", "zürich", "x" * rng.randrange(300)])
    if pa.types.is_large_binary(column_type):
        return rng.choice([b"", b"\0", b"\xff\0\xff"])
    return rng.choice([0, 1, (1 << 63) - 1])


DOCUMENTS = pa.schema([("id", pa.int64()), ("text", pa.binary()), ("note", pa.string())])


def test_large_rows_are_read_in_small_batches_with_bounded_memory() -> None:
    """Decoding a thousand rows of 64 KiB at once would take gigabytes.

    The heartbeats of the slot would also wait for the lock for seconds.
    """
    count = 1_000
    texts = [random.Random(number).randbytes(65_536) for number in range(count)]
    notes = [None if number % 3 else "ä" * number for number in range(count)]
    columns = [pa.array(range(count)), pa.array(texts, pa.binary()), pa.array(notes)]
    codec = RowCodec(DOCUMENTS, with_group=False)
    keys = RowCodec(pa.schema([("key", pa.int64())]), with_group=True)
    groups = np.zeros(count, np.uint16)
    rows = [
        *zip(
            bytes_list(keys.encode([pa.array(range(count))], count, groups)),
            bytes_list(codec.encode(columns, count)),
            strict=True,
        )
    ]

    tracemalloc.start()
    batches, peak_bytes = [], 0
    for batch in decoded_rows(iter(rows), keys, codec):
        batches.append((batch.num_rows, batch.column("note").to_pylist()))
        at = sum(rows for rows, _ in batches)
        assert batch.column("text").to_pylist() == texts[at - batch.num_rows : at]
        peak_bytes = max(peak_bytes, tracemalloc.get_traced_memory()[1])
    tracemalloc.stop()

    read_bytes = stored_database.READ_BYTES
    assert [note for _, found in batches for note in found] == notes
    assert max(rows for rows, _ in batches) * 65_536 < 1.5 * read_bytes
    assert peak_bytes < 6 * read_bytes
