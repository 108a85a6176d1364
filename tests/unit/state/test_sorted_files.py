"""Snapshots of a RocksDB database whose merges lag behind what is written."""

import random
from pathlib import Path

import pytest
from rocksdict import Cache

from pipelines.state.on_disk import sorted_files
from pipelines.state.on_disk.sorted_files import SortedFiles

FILES = 40  # of the same keys: merging them is under way when the snapshot is taken
ROWS = 200
WAITING = "waiting on stall conditions"


def test_a_snapshot_does_not_wait_until_rocksdb_has_merged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would hold up every thread of the slot, which then ends as if it had been stopped."""
    monkeypatch.setattr(sorted_files, "LEVEL_ZERO_FILES", FILES - 4)
    files = SortedFiles(tmp_path / "db", Cache(1 << 20))
    values = random.Random(FILES)
    for _ in range(FILES):
        files.ingest(
            (number.to_bytes(4, "big"), values.randbytes(10_000)) for number in range(ROWS)
        )

    files.link_to(tmp_path / "snapshot")

    told = (tmp_path / "db" / "LOG").read_text()
    assert "Started the snapshot process" in told, "it would tell if it waited"
    assert WAITING not in told
    copied = SortedFiles(tmp_path / "snapshot", Cache(1 << 20), is_read_only=True)
    assert len(list(copied.scan())) == ROWS
    copied.close()
    files.close()
