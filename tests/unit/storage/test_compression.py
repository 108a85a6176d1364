"""Compressed state files are smaller and every store reads them; open files stay the same."""

from pathlib import Path

import pyarrow as pa
import pytest

from pipelines.storage.stores import CheckpointStores

SCHEMA = pa.schema([("key", pa.int64())])
ROWS = pa.record_batch([pa.array([7] * 10_000)], schema=SCHEMA)


@pytest.mark.parametrize("scheme", ["", "memory:/"])
def test_a_compressed_file_is_smaller_and_holds_the_same_rows(tmp_path: Path, scheme: str) -> None:
    location = f"{scheme}{tmp_path}/chk-1"
    plain = CheckpointStores([str(tmp_path)], 1 << 20)
    compressing = CheckpointStores([str(tmp_path)], 1 << 20, compresses=True)

    large = plain.write_batches(location, "plain", SCHEMA, [ROWS], open_format=False)
    small = compressing.write_batches(location, "small", SCHEMA, [ROWS], open_format=False)

    assert small.length * 10 < large.length
    # A reader need not know how the file was written.
    assert list(plain.read_batches(location, small)) == [ROWS]
    assert list(compressing.read_batches(location, large)) == [ROWS]


def test_compression_does_not_change_a_file_in_an_open_format(tmp_path: Path) -> None:
    location = str(tmp_path / "savepoint-1")
    stores = [CheckpointStores([str(tmp_path)], 0, compresses=each) for each in (False, True)]

    files = [
        store.write_batches(location, f"file-{number}", SCHEMA, [ROWS], open_format=True)
        for number, store in enumerate(stores)
    ]

    assert files[0].digest == files[1].digest
