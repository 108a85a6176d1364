"""Rows of a DataFrame in files: which ones a start reads, and which ones a recovery point finds."""

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.connectors.files.data_frame import NEWEST, DataFrameRows, name_of_part
from pipelines.connectors.files.input_files import LISTING
from pipelines.connectors.positions import check_still_there
from pipelines.connectors.split_progress import NamedPositions
from pipelines.domain.errors import Rejected, Retryable
from pipelines.domain.snapshots import Json
from pipelines.runtime.subtask.sources.direct_reader import DirectReader
from tests.unit.runtime.fakes import SCHEMA, ManualClock, batch_of, keys_of
from tests.unit.storage.disks import STEPS_MAX, DurableDisk


def test_every_row_is_read_once_at_any_parallelism_and_splits_are_dealt_in_turn(
    tmp_path: Path,
) -> None:
    source = source_in(tmp_path)
    keep(source, [[0, 1], [2, 3], [4]])

    shares = [read(source, subtask=subtask, parallelism=2) for subtask in range(2)]

    assert shares == [[0, 1, 4], [2, 3]]
    first, *others = source.find(set(), is_start=True)
    assert source.find({first.name}, is_start=True) == others


def test_with_event_time_splits_are_read_side_by_side(tmp_path: Path) -> None:
    source = source_in(tmp_path, timestamp_column="at")
    keep(source, [[0, 5], [1, 6]])

    reader = reader_of(source)
    first, second = reader.next(), reader.next()

    assert source.concurrent_splits > 1
    assert [keys_of(first), keys_of(second)] == [[0, 5], [1, 6]]
    assert reader.watermark_ms() == 5 - 1


def test_a_restore_reads_its_old_rows_and_a_fresh_start_the_newest(
    tmp_path: Path,
) -> None:
    source = source_in(tmp_path)
    keep(source, [[0, 1], [2, 3]])
    reader = reader_of(source)
    reader.next()
    point = reader.positions()

    keep(source, [[7]])

    assert read(source, restored=(point,)) == [2, 3]
    assert read(source) == [7]


def test_a_subtask_that_had_not_looked_yet_resumes_in_the_rows_of_the_others(
    tmp_path: Path,
) -> None:
    source = source_in(tmp_path)
    keep(source, [[0, 1], [2, 3]])
    looked, late = (reader_of(source, subtask=subtask, parallelism=2) for subtask in range(2))
    looked.next()
    point = (looked.positions(), late.positions())

    keep(source, [[7], [8]])

    shares = [read(source, restored=point, subtask=n, parallelism=2) for n in range(2)]
    assert shares == [[], [2, 3]]


@pytest.mark.parametrize("power", ["stays", "fails"])
def test_a_crash_at_any_step_of_a_start_does_not_block_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, power: str
) -> None:
    """If the driver had finished its rows, a restore finds them."""
    for step in range(1, STEPS_MAX):
        root = tmp_path / f"{power}-{step}"
        root.mkdir()
        disk = DurableDisk(monkeypatch, root)
        source = source_in(root / "made" / "for the rows")

        was_killed = disk.kill_at(step, lambda: keep(source, [[1, 2], [3]]))  # noqa: B023
        if power == "fails":
            disk.lose_power()

        assert was_killed or source.has_rows
        if source.has_rows:
            assert read(source) == [1, 2, 3]
        keep(source, [[4]])
        assert read(source) == [4]
        if not was_killed:
            return
    pytest.fail("it takes a bounded number of steps")


def test_the_listing_and_the_newest_marker_are_written_atomically(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each file is synced under a name that readers ignore; afterwards, every user may read it."""
    source, synced = source_in(tmp_path), list[str]()
    sync = os.fsync

    def noted(descriptor: int) -> None:
        synced.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    keep(source, [[0]])

    assert sum(name.startswith(".") for name in synced) == 2
    assert not {LISTING, NEWEST} & set(synced)
    for path in (tmp_path / NEWEST, tmp_path / "rows-1" / LISTING):
        assert path.stat().st_mode & 0o777 == 0o644


def test_unfinished_rows_are_never_read_and_the_next_start_removes_them(tmp_path: Path) -> None:
    source = source_in(tmp_path)
    assert not source.has_rows
    write_part(source.begin(), 0, [8, 9])
    with pytest.raises(Retryable, match="cannot be found"):
        source.find(set(), is_start=True)

    keep(source, [[1]])

    assert source.has_rows
    assert read(source) == [1]
    assert sorted(path.name for path in source.directory.iterdir()) == [NEWEST, "rows-2"]


def test_replaced_or_deleted_rows_are_refused_by_name(tmp_path: Path) -> None:
    source = source_in(tmp_path)
    keep(source, [[0, 1]])
    point = reader_of(source)
    point.next()
    (split,) = NamedPositions.from_json(point.positions()).splits
    part = source.directory / split.name

    write_part(part.parent, 0, [5, 6, 7])
    with pytest.raises(Rejected, match=r"rows-1/part-00000\.parquet has changed"):
        check_still_there(source, split)

    part.unlink()
    with pytest.raises(Rejected, match=r"rows-1/part-00000\.parquet .*is gone"):
        check_still_there(source, split)


def test_a_lost_listing_is_not_taken_for_an_empty_data_frame(tmp_path: Path) -> None:
    source = source_in(tmp_path)
    keep(source, [[0]])

    (source.directory / NEWEST).write_text("")

    with pytest.raises(Rejected, match="have lost their listing"):
        source.find(set(), is_start=True)


def test_a_directory_that_cannot_be_made_is_refused_at_submission(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")

    source_in(tmp_path / "new" / "deep").validate()
    with pytest.raises(Rejected, match="cannot be kept in"):
        source_in(tmp_path / "taken").validate()


def test_an_empty_data_frame_ends_at_once(tmp_path: Path) -> None:
    source = source_in(tmp_path)
    keep(source, [])

    assert read(source) == []


def source_in(directory: Path, *, timestamp_column: str | None = None) -> DataFrameRows:
    def load(session: object) -> object:
        raise NotImplementedError

    return DataFrameRows(load, directory, schema=SCHEMA, timestamp_column=timestamp_column)


def keep(source: DataFrameRows, parts: list[list[int]]) -> None:
    """Writes the rows as the driver does at a fresh start."""
    rows = source.begin()
    for number, keys in enumerate(parts):
        write_part(rows, number, keys)
    source.finish(rows)


def write_part(rows: Path, number: int, keys: list[int]) -> None:
    table = pa.Table.from_batches([batch_of([(key, key) for key in keys])])
    with (rows / name_of_part(number)).open("wb") as file:
        pq.write_table(table, file)
        file.flush()
        os.fsync(file.fileno())


def reader_of(
    source: DataFrameRows,
    restored: tuple[Json, ...] = (),
    subtask: int = 0,
    parallelism: int = 1,
) -> DirectReader:
    return DirectReader(
        source=source,
        restored=restored,
        subtask=subtask,
        parallelism=parallelism,
        clock=ManualClock(),
        event_hours_per_s=None,
    )


def read(
    source: DataFrameRows,
    restored: tuple[Json, ...] = (),
    subtask: int = 0,
    parallelism: int = 1,
) -> list[int]:
    reader = reader_of(source, restored, subtask, parallelism)
    keys: list[int] = []
    while not reader.is_exhausted:
        batch = reader.next()
        keys += [] if batch is None else keys_of(batch)
    return keys
