"""Hashes of keys depend on the values, not on the column's layout, and never change."""

import numpy as np
import pyarrow as pa
import pytest
import xxhash

from pipelines.domain.errors import Rejected
from pipelines.state.hashing import NULL_HASH, is_bijective, key_groups, key_hashes

# The first output of SplitMix64 from seed 0 and the XXH64 of no input equal the published values.
# None of these may ever change, because the key groups of every existing snapshot depend on them.
VECTORS = [
    (pa.array([0], pa.int64()), 0xE220A8397B1DCDAF),
    (pa.array([1], pa.int64()), 0x910A2DEC89025CC1),
    (pa.array([-1], pa.int64()), 0xE4D971771B652C20),
    (pa.array([2**63 - 1], pa.int64()), 0x2A67D7552E039EA7),
    (pa.array([2**64 - 1], pa.uint64()), 0xE4D971771B652C20),
    (pa.array([None], pa.int64()), 0x9AE16A3B2F90404F),
    (pa.array([True]), 0x910A2DEC89025CC1),
    (pa.array([1000], pa.timestamp("ms")), 0x3C1EBA8B4DCCC148),
    (pa.array([7], pa.date32()), 0x63CBE1E459320DD7),
    (pa.array([""]), 0xEF46DB3751D8E999),
    (pa.array(["a"]), 0xD24EC4F1A98C6E5B),
    (pa.array(["Zürich"]), 0x85F1DEBCBB1A8279),
    (pa.array([None], pa.string()), 0x9AE16A3B2F90404F),
]


@pytest.mark.parametrize("text", [pa.string(), pa.large_string(), pa.binary(), pa.large_binary()])
def test_a_text_has_the_same_hash_in_small_and_large_batches(text: pa.DataType) -> None:
    values = pa.array([None if n % 10 == 0 else f"é{n % 40}" for n in range(100)]).cast(text)
    batch = pa.record_batch({"key": values})

    alone = [key_hashes(batch.slice(row, 1), ["key"])[0] for row in range(100)]

    assert key_hashes(batch, ["key"]).tolist() == alone


@pytest.mark.parametrize(
    "data_type",
    [pa.string(), pa.large_string(), pa.binary(), pa.dictionary(pa.int32(), pa.string())],
    ids=str,
)
def test_text_has_the_hash_of_its_bytes_in_every_layout(data_type: pa.DataType) -> None:
    keys = ["UA", "zürich", "", None, "UA"]
    raw = [None if key is None else key.encode() for key in keys]
    column = pa.array(raw if data_type == pa.binary() else keys).cast(data_type)

    hashes = key_hashes(pa.record_batch({"carrier": column}), ("carrier",))

    assert hashes[0] == hashes[4] == xxhash.xxh64_intdigest(b"UA")
    assert hashes[1] == xxhash.xxh64_intdigest("zürich".encode())
    assert len({int(each) for each in hashes}) == 4


@pytest.mark.parametrize(("column", "expected"), VECTORS, ids=str)
def test_the_hash_of_a_value_never_changes(column: pa.Array, expected: int) -> None:
    assert int(key_hashes(pa.record_batch({"key": column}), ("key",))[0]) == expected


def test_the_hash_of_several_columns_is_stable_and_depends_on_their_order() -> None:
    batch = pa.record_batch({"name": ["a"], "id": [1]})

    assert int(key_hashes(batch, ("name", "id"))[0]) == 0x974E8D44D10AF4E0
    assert int(key_hashes(batch, ("id", "name"))[0]) == 0xACA9E275B6590568


@pytest.mark.parametrize(
    "data_type", [pa.int8(), pa.int16(), pa.int32(), pa.uint8(), pa.uint32(), pa.int64()], ids=str
)
def test_a_number_has_one_hash_whatever_its_width(data_type: pa.DataType) -> None:
    hashes = key_hashes(pa.record_batch({"key": pa.array([0, 1, 100], data_type)}), ("key",))

    wide = key_hashes(pa.record_batch({"key": pa.array([0, 1, 100], pa.int64())}), ("key",))
    assert hashes.tolist() == wide.tolist()


@pytest.mark.parametrize("data_type", [pa.int64(), pa.string(), pa.bool_(), pa.timestamp("us")])
def test_a_null_is_neither_zero_nor_empty(data_type: pa.DataType) -> None:
    values = {pa.int64(): [0, None], pa.string(): ["", None], pa.bool_(): [False, None]}
    column = pa.array(values.get(data_type, [0, None]), data_type)

    first, null = key_hashes(pa.record_batch({"key": column}), ("key",))

    assert null == NULL_HASH != first


def test_a_slice_hashes_its_own_rows() -> None:
    batch = pa.record_batch({"id": [1, 2, 3, None], "name": ["a", "b", "a", None]})

    for columns in (("id",), ("name",), ("id", "name")):
        whole = key_hashes(batch, columns).tolist()
        assert key_hashes(batch.slice(1, 3), columns).tolist() == whole[1:]


@pytest.mark.parametrize("data_type", [pa.float64(), pa.list_(pa.int64()), pa.decimal128(5, 2)])
def test_a_column_that_cannot_be_a_key_is_refused_by_name_and_type(data_type: pa.DataType) -> None:
    batch = pa.record_batch({"price": pa.array([], data_type)})

    with pytest.raises(Rejected, match=r"The column 'price' of type .* cannot be a key; use an"):
        key_hashes(batch, ("price",))


@pytest.mark.parametrize("max_parallelism", [1, 2, 100, 128, 1 << 15])
def test_key_groups_are_below_the_maximum_and_evenly_filled(max_parallelism: int) -> None:
    hashes = key_hashes(pa.record_batch({"key": range(20_000)}), ("key",))

    groups = key_groups(hashes, max_parallelism)

    assert groups.dtype == np.uint16
    assert groups.tolist() == [int(each) % max_parallelism for each in hashes]
    counts = np.bincount(groups, minlength=max_parallelism)
    assert len(counts) == max_parallelism
    if max_parallelism <= 128:
        assert counts.min() > 0.6 * 20_000 / max_parallelism


def test_only_a_single_integer_column_is_identified_by_its_hash_alone() -> None:
    number, text = pa.field("id", pa.int64()), pa.field("name", pa.string())

    assert is_bijective(pa.schema([number]))
    assert not is_bijective(pa.schema([text]))
    assert not is_bijective(pa.schema([number, number.with_name("other")]))
