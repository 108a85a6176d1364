"""Hashes of keys: by value, whatever the column's layout, and stable for ever."""

import pyarrow as pa
import pytest
import xxhash

from pipelines.state.hashing import key_hashes


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
