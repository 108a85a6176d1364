"""Snapshots of a RocksDB database whose merges lag behind its writes."""

import random
from pathlib import Path

import pytest
from rocksdict import Cache

from pipelines.state.on_disk import sorted_files
from pipelines.state.on_disk.sorted_files import LOOK_EVERY, SMALL_FILES, SortedFiles

FILES = 40  # with the same keys, so RocksDB is still merging them at the snapshot
ROWS = 200
GROWN = 160
WAITING = "waiting on stall conditions"


def test_a_snapshot_does_not_wait_for_a_compaction_of_rocksdb(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Waiting would block every thread of the slot, which would then end as if it were stopped."""
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


@pytest.mark.parametrize("at_once", [GROWN, 10])
def test_a_growing_list_does_not_leave_a_file_for_every_increment(
    tmp_path: Path, at_once: int
) -> None:
    """RocksDB puts keys that follow all others into its last level, and merges nothing there.

    A database that is soon opened again counts its increments from the beginning.
    """
    for first in range(0, GROWN, at_once):
        grown = SortedFiles(tmp_path / "db", Cache(1 << 20))
        for number in range(first, first + at_once):
            grown.ingest([(number.to_bytes(4, "big"), b"a row")])
        grown._database.close()

    copied = SortedFiles(tmp_path / "db", Cache(1 << 20), is_read_only=True)
    assert len(copied._database.live_files()) <= SMALL_FILES + LOOK_EVERY
    assert [int.from_bytes(key, "big") for key, _ in copied.scan()] == list(range(GROWN))
    copied.close()
