"""The lab's sink: which rows a reader sees, and from when on."""

from pathlib import Path

import pyarrow as pa
import pytest

from pipelines.connectors.contract import SinkContext, SinkWriter
from pipelines.domain.errors import OutputLost
from pipelines.domain.ids import Attempt, CheckpointId, RunId, Uid
from pipelines.lab.page_views import COUNTED, ROW, ViewLog, visible_rows

FIRST, SECOND = CheckpointId(1), CheckpointId(2)


def test_plain_rows_are_visible_as_soon_as_they_are_written(tmp_path: Path) -> None:
    writer = opened(tmp_path, is_transactional=False)

    writer.write(views(1, 2))

    seen = visible_rows(tmp_path)
    assert seen["view"].tolist() == [1, 2]
    assert (seen["visible_ms"] > 1_700_000_000_000).all()


def test_rows_of_a_transaction_are_visible_once_it_is_committed(tmp_path: Path) -> None:
    writer = opened(tmp_path)
    writer.write(views(1))
    prepared = writer.prepare(FIRST)
    writer.write(views(2))

    assert not len(visible_rows(tmp_path))
    writer.commit(FIRST, prepared)
    writer.commit(FIRST, prepared)

    seen = visible_rows(tmp_path)
    assert seen["view"].tolist() == [1]
    assert (seen["visible_ms"] > 1_700_000_000_000).all()


def test_a_missing_transaction_is_reported_as_lost(tmp_path: Path) -> None:
    writer = opened(tmp_path)
    writer.write(views(1))
    prepared = writer.prepare(FIRST)
    for path in tmp_path.glob(".pending-*"):
        path.unlink()

    with pytest.raises(OutputLost, match="are lost"):
        writer.commit(FIRST, prepared)


def test_leftovers_of_a_dead_attempt_are_removed_except_restored_ones(tmp_path: Path) -> None:
    dead = opened(tmp_path)
    dead.write(views(1))
    prepared = dead.prepare(FIRST)
    dead.write(views(2))
    others = opened(tmp_path, subtask=1)
    others.write(views(3))

    successor = opened(tmp_path, attempt=2)
    successor.commit(FIRST, prepared)
    successor.write(views(4))
    successor.commit(SECOND, successor.prepare(SECOND))

    assert visible_rows(tmp_path)["view"].tolist() == [1, 4]
    assert [path.name[-2:] for path in tmp_path.glob(".pending-*")] == ["-1"]


def test_a_partly_written_row_of_a_dying_slot_is_not_visible(tmp_path: Path) -> None:
    opened(tmp_path, is_transactional=False).write(views(1, 2))
    (written,) = tmp_path.glob("rows-*")
    written.write_bytes(written.read_bytes()[: ROW.itemsize + 5])

    assert visible_rows(tmp_path)["view"].tolist() == [1]


def test_rows_of_a_later_attempt_come_after_earlier_ones(tmp_path: Path) -> None:
    opened(tmp_path, attempt=10, is_transactional=False).write(views(2))
    opened(tmp_path, attempt=9, is_transactional=False).write(views(1))

    assert visible_rows(tmp_path)["view"].tolist() == [1, 2]


def opened(
    directory: Path, *, attempt: int = 1, subtask: int = 0, is_transactional: bool = True
) -> SinkWriter:
    context = SinkContext(RunId("lab"), Attempt(attempt), Uid("log"), subtask, 2)
    return ViewLog(directory, is_transactional).open(context, COUNTED)


def views(*numbers: int) -> pa.RecordBatch:
    columns = [pa.array(numbers, pa.int64())] * len(COUNTED)
    return pa.record_batch(columns, schema=COUNTED)
