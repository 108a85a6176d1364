"""Exactly-once files: what is on disk, and which errors a damaged target causes."""

import errno
import hashlib
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from blake3 import blake3

from pipelines.connectors.files import sink as files
from pipelines.connectors.files.json_lines import JsonLinesFiles
from pipelines.connectors.files.parquet import ParquetFiles
from pipelines.connectors.files.sink import (
    JSON_LINES,
    PARQUET,
    DigestedFile,
    ExactlyOnceFiles,
    FileFormat,
    FilesWriter,
)
from pipelines.connectors.files.target import FileTarget
from pipelines.connectors.sink import SinkContext
from pipelines.domain.errors import (
    InvariantViolated,
    OutputLost,
    ProtocolError,
    Rejected,
    Retryable,
)
from pipelines.domain.ids import Attempt, CheckpointId, RunId, Uid
from pipelines.domain.snapshots import Json
from tests.takeovers import rewound

SCHEMA = pa.schema([("id", pa.int64())])
RUN, OTHER = RunId("run-1"), RunId("run-2")
FIRST = CheckpointId(1)


def test_nothing_is_visible_before_the_commit(tmp_path: Path) -> None:
    writer = opened(tmp_path)
    writer.write(records(1, 2))
    assert shown(tmp_path) == []

    committables = writer.prepare(FIRST)
    assert shown(tmp_path) == []

    writer.commit(FIRST, committables)
    assert shown(tmp_path) == ["part-run-1-00000001-0-0.parquet"]
    assert pq.read_table(tmp_path / shown(tmp_path)[0])["id"].to_pylist() == [1, 2]


def test_a_subtask_numbers_its_files(tmp_path: Path) -> None:
    writer = opened(tmp_path, subtask=3)
    for checkpoint_id in (CheckpointId(7), CheckpointId(8)):
        writer.write(records(1))
        writer.commit(checkpoint_id, writer.prepare(checkpoint_id))

    assert shown(tmp_path) == [
        "part-run-1-00000007-3-0.parquet",
        "part-run-1-00000008-3-1.parquet",
    ]


def test_records_leave_memory_in_row_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "ROW_GROUP_ROWS", 4)
    writer = opened(tmp_path)
    for first in range(0, 10, 2):
        writer.write(records(first, first + 1))
    writer.commit(FIRST, writer.prepare(FIRST))

    metadata = pq.read_metadata(tmp_path / shown(tmp_path)[0])

    assert [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)] == [4, 4, 2]


def test_the_next_attempt_removes_unfinished_files_even_of_removed_subtasks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "ROW_GROUP_ROWS", 1)
    for subtask in (0, 5):
        opened(tmp_path, subtask=subtask).write(records(1))

    opened(tmp_path, attempt=2, subtask=1)
    assert len(hidden(tmp_path, "in-progress")) == 2

    opened(tmp_path, attempt=2, subtask=0)
    assert hidden(tmp_path, "in-progress") == []


def test_a_run_that_takes_over_a_directory_removes_unfinished_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "ROW_GROUP_ROWS", 1)
    rewound(sink(tmp_path), [], OTHER)
    opened(tmp_path, run_id=OTHER).write(records(1))

    rewound(sink(tmp_path), [(OTHER, FIRST)], RUN)

    assert hidden(tmp_path, "in-progress") == []


@pytest.mark.parametrize("moment", ["open", "close"])
def test_a_file_that_a_dying_slot_prepares_after_the_rewind_is_removed(
    tmp_path: Path, moment: str
) -> None:
    dying = opened(tmp_path, subtask=1)
    dying.write(records(1))
    dying.prepare(FIRST)
    rewound(sink(tmp_path), [(RUN, FIRST)], RUN)
    successor = opened(tmp_path, attempt=2) if moment == "close" else None
    (tmp_path / ".prepared-run-1-a1-00000003-1-1.parquet").touch()

    if successor is None:
        opened(tmp_path, attempt=2)
    else:
        successor.close()

    assert hidden(tmp_path, "prepared") == [".prepared-run-1-a1-00000001-1-0.parquet"]


def test_a_slot_that_commits_during_a_rewind_shows_nothing_after_the_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its checkpoint was complete, but has been damaged since, so the run falls back past it."""
    slot, committables = prepared(tmp_path)
    monkeypatch.setattr(slot._target, "check_current", lambda *_: None)  # it passed just before
    move = FileTarget._move

    def move_while_it_commits(target: FileTarget, moved: list[Path], to: Path) -> None:
        with suppress(OutputLost):
            slot.commit(FIRST, committables)
        move(target, moved, to)

    monkeypatch.setattr(FileTarget, "_move", move_while_it_commits)

    sink(tmp_path).rewind([], RUN)

    assert shown(tmp_path) == []


def test_a_slot_replaced_while_it_prepares_removes_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dying = opened(tmp_path)
    dying.write(records(1))

    def begin_late(path: Path) -> DigestedFile:
        rewound(sink(tmp_path), [], RUN)
        opened(tmp_path, attempt=2)
        return DigestedFile(path)

    monkeypatch.setattr(files, "DigestedFile", begin_late)

    with pytest.raises(ProtocolError, match="attempt 1 of run run-1 may not write"):
        dying.prepare(FIRST)

    assert hidden(tmp_path, "prepared") == []


def test_the_first_checkpoint_of_an_attempt_removes_leftovers_of_older_ones(
    tmp_path: Path,
) -> None:
    """Its checkpoint lies before the point that the later attempt begins from."""
    first = opened(tmp_path, subtask=1)
    first.write(records(1))
    committables = first.prepare(CheckpointId(3))
    rewound(sink(tmp_path), [(RUN, CheckpointId(3))], RUN)
    (tmp_path / ".prepared-run-1-a1-00000002-1-7.parquet").touch()
    foreign = ".prepared-run-2-a1-00000002-1-7.parquet"
    (tmp_path / foreign).touch()
    second, other = (opened(tmp_path, attempt=2, subtask=subtask) for subtask in (0, 1))

    second.commit(CheckpointId(3), [])
    before = hidden(tmp_path, "prepared")
    other.commit(CheckpointId(3), committables)
    second.write(records(2))
    second.commit(CheckpointId(4), second.prepare(CheckpointId(4)))

    assert len(before) == 3, "nobody knows yet whether the others have committed"
    assert hidden(tmp_path, "prepared") == [foreign]
    assert len(shown(tmp_path)) == 2


def test_a_replaced_writer_begins_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "ROW_GROUP_ROWS", 1)
    replaced = opened(tmp_path)
    opened(tmp_path, attempt=2)

    with pytest.raises(ProtocolError, match="attempt 1 of run run-1 may not write"):
        replaced.write(records(1))

    assert hidden(tmp_path, "in-progress") == []


def test_an_attempt_leaves_its_own_files_in_progress_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "ROW_GROUP_ROWS", 1)
    opened(tmp_path, subtask=1).write(records(1))

    opened(tmp_path, subtask=0)

    assert len(hidden(tmp_path, "in-progress")) == 1


def test_a_rewind_removes_only_its_own_runs_prepared_files_after_the_point(
    tmp_path: Path,
) -> None:
    for run_id in (OTHER, RUN):
        rewound(sink(tmp_path), [], run_id)
        writer = opened(tmp_path, run_id=run_id)
        for checkpoint_id in (CheckpointId(1), CheckpointId(2)):
            writer.write(records(1))
            writer.prepare(checkpoint_id)

    rewound(sink(tmp_path), [(RUN, FIRST)], RUN)

    assert hidden(tmp_path, "prepared") == [
        ".prepared-run-1-a1-00000001-0-0.parquet",
        ".prepared-run-2-a1-00000001-0-0.parquet",
        ".prepared-run-2-a1-00000002-0-1.parquet",
    ]


def test_closing_removes_unprepared_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "ROW_GROUP_ROWS", 1)
    writer = opened(tmp_path)
    writer.write(records(1))

    writer.close()

    assert hidden(tmp_path, "in-progress") == []


@pytest.mark.parametrize("hidden", ["_superseded", "_superseded/run-2"])
def test_superseded_files_that_cannot_be_listed_do_not_count_as_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hidden: str
) -> None:
    """The point needs it: without it committed rows would be missing."""
    committed(tmp_path)
    rewound(sink(tmp_path), [], OTHER)
    with monkeypatch.context() as patched:
        for name in ("listdir", "scandir"):
            patched.setattr(os, name, refusing(getattr(os, name), tmp_path / hidden))
        with pytest.raises(Retryable, match="Permission denied"):
            rewound(sink(tmp_path), [(RUN, FIRST)], RunId("run-3"))

    rewound(sink(tmp_path), [(RUN, FIRST)], RunId("run-3"))

    assert shown(tmp_path) == ["part-run-1-00000001-0-0.parquet"]


def refusing(listing: Callable[..., Any], directory: Path) -> Callable[..., Any]:
    """Returns `listing`, changed to fail for `directory`."""

    def refuse(path: Any = ".") -> Any:
        if Path(path) == directory:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return listing(path)

    return refuse


def test_superseded_files_are_kept_under_the_run_that_set_them_aside(tmp_path: Path) -> None:
    committed(tmp_path)

    superseded = rewound(sink(tmp_path), [], OTHER)

    assert superseded is not None
    assert superseded.items == 1
    assert [file.name for file in Path(superseded.moved_to).iterdir()] == [
        "part-run-1-00000001-0-0.parquet"
    ]
    assert superseded.moved_to == str(tmp_path / "_superseded" / OTHER)


def test_a_prepared_file_that_is_lost_is_reported_by_name(tmp_path: Path) -> None:
    writer, committables = prepared(tmp_path)
    (tmp_path / ".prepared-run-1-a1-00000001-0-0.parquet").unlink()

    with pytest.raises(OutputLost) as loss:
        writer.commit(FIRST, committables)

    assert str(loss.value) == (
        f"Output of checkpoint 1 is lost: the prepared file {tmp_path}/"
        ".prepared-run-1-a1-00000001-0-0.parquet is gone. Restore a point of before checkpoint 1,"
        " or start from the beginning: files that came after it are moved to _superseded and"
        " written again."
    )
    assert loss.value.checkpoint_id == 1


def test_a_file_prepared_for_another_directory_is_left_to_its_writer(
    tmp_path: Path,
) -> None:
    """A point restored into another pipeline names files that the original's sinks prepared."""
    _, committables = prepared(tmp_path / "original")
    fork = opened(tmp_path / "fork", run_id=OTHER)

    fork.commit(FIRST, committables)

    assert shown(tmp_path / "fork") == []
    assert hidden(tmp_path / "original", "prepared") != []


def test_a_moved_directory_keeps_its_prepared_files(tmp_path: Path) -> None:
    _, committables = prepared(tmp_path / "original")
    (tmp_path / "original").rename(tmp_path / "moved")

    opened(tmp_path / "moved", attempt=2).commit(FIRST, committables)

    assert shown(tmp_path / "moved") == ["part-run-1-00000001-0-0.parquet"]


def test_a_committable_holds_the_length_and_digest_of_its_file(tmp_path: Path) -> None:
    _, [committable] = prepared(tmp_path)

    content = (tmp_path / ".prepared-run-1-a1-00000001-0-0.parquet").read_bytes()
    assert committable["length"] == len(content)
    assert committable["digest"] == f"blake3:{blake3(content).hexdigest()}"


def test_a_file_that_the_disk_stored_only_in_part_is_not_prepared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = opened(tmp_path)
    writer.write(records(1))
    monkeypatch.setattr(os, "fsync", lambda file: os.truncate(file, os.fstat(file).st_size - 1))

    with pytest.raises(Retryable, match=r"\.in-progress-.* bytes instead of"):
        writer.prepare(FIRST)


@pytest.mark.parametrize("is_altered", [False, True])
def test_a_file_prepared_by_an_older_release_is_checked_by_its_old_digest(
    tmp_path: Path, is_altered: bool
) -> None:
    writer, [committable] = prepared(tmp_path)
    file = tmp_path / ".prepared-run-1-a1-00000001-0-0.parquet"
    content = file.read_bytes()
    older = {**committable, "digest": hashlib.blake2b(content, digest_size=32).hexdigest()}
    if is_altered:
        file.write_bytes(b"X" + content[1:])
        with pytest.raises(OutputLost, match="has changed"):
            writer.commit(FIRST, [older])
    else:
        writer.commit(FIRST, [older])

    assert shown(tmp_path) == ([] if is_altered else ["part-run-1-00000001-0-0.parquet"])


@pytest.mark.parametrize("damage", [b"", b"another content"])
def test_a_prepared_file_that_was_altered_does_not_become_visible(
    tmp_path: Path, damage: bytes
) -> None:
    writer, committables = prepared(tmp_path)
    file = tmp_path / ".prepared-run-1-a1-00000001-0-0.parquet"
    file.write_bytes(damage + file.read_bytes()[len(damage) :] if damage else b"")

    with pytest.raises(OutputLost, match=r"\.prepared-run-1-.* has changed"):
        writer.commit(FIRST, committables)

    assert shown(tmp_path) == []


def test_a_committed_file_of_other_content_is_not_taken_for_ours(tmp_path: Path) -> None:
    writer, committables = prepared(tmp_path)
    (tmp_path / "part-run-1-00000001-0-0.parquet").write_bytes(b"a stranger")

    with pytest.raises(OutputLost, match="is not what was prepared"):
        writer.commit(FIRST, committables)


@pytest.mark.parametrize("field", ["temporary", "final"])
def test_a_committable_cannot_name_a_file_elsewhere(tmp_path: Path, field: str) -> None:
    writer, [committable] = prepared(tmp_path)
    elsewhere = {**committable, field: f"../{committable[field]}"}  # type: ignore[dict-item,index]

    with pytest.raises(InvariantViolated, match="has its name"):
        writer.commit(FIRST, [elsewhere])


def test_a_directory_with_parquet_files_of_another_origin_is_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1]}), tmp_path / "precious.parquet")

    with pytest.raises(Rejected, match="already holds files of another origin"):
        sink(tmp_path).validate(SCHEMA)
    with pytest.raises(Rejected, match="another origin"):
        rewound(sink(tmp_path), [], RUN)


def test_a_directory_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(Rejected, match="cannot be made"):
        sink(tmp_path / "file" / "out").validate(SCHEMA)


@pytest.mark.parametrize("content", [b"{", b'{"pipeline": "\xff"}'])
def test_a_malformed_owner_file_is_refused_by_name(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "_ftdash.json").write_bytes(content)

    with pytest.raises(Rejected, match=r"_ftdash\.json does not say whose output this is"):
        sink(tmp_path).validate(SCHEMA)


def test_a_column_that_parquet_cannot_store_is_refused_by_name(tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), ("odd", pa.month_day_nano_interval())])

    with pytest.raises(Rejected, match="Column odd of type month_day_nano_interval"):
        sink(tmp_path).validate(schema)


@pytest.mark.slow
@pytest.mark.parametrize("format", [PARQUET, JSON_LINES])
def test_a_value_of_64_mib_is_written_and_read_back_as_one_record(
    tmp_path: Path, format: FileFormat
) -> None:
    schema = pa.schema([("id", pa.int64()), ("text", pa.string())])
    output = ExactlyOnceFiles(tmp_path, pipeline="delays", format=format)
    writer = output.open(SinkContext(RUN, Attempt(1), Uid("out"), 0, 1), schema)
    writer.write(pa.record_batch([[1, 2, 3], ["x", "y" * (64 << 20), "z"]], schema=schema))
    writer.commit(FIRST, writer.prepare(FIRST))

    of_format = ParquetFiles if format is PARQUET else JsonLinesFiles
    source = of_format(tmp_path, schema=schema)
    rows = [row for batch in source.read(0, 0) for row in batch.to_pylist()]

    assert [(row["id"], len(row["text"])) for row in rows] == [(1, 1), (2, 64 << 20), (3, 1)]
    assert set(rows[1]["text"]) == {"y"}


def test_validating_creates_nothing(tmp_path: Path) -> None:
    sink(tmp_path / "out").validate(SCHEMA)

    assert list(tmp_path.iterdir()) == []


def test_a_failed_write_to_disk_is_retryable(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(Retryable, match=r"Writing to .*/file/out failed"):
        opened(tmp_path / "file" / "out")


def sink(directory: Path) -> ExactlyOnceFiles:
    return ExactlyOnceFiles(directory, pipeline="delays")


def opened(
    directory: Path, *, run_id: RunId = RUN, attempt: int = 1, subtask: int = 0
) -> FilesWriter:
    context = SinkContext(run_id, Attempt(attempt), Uid("out"), subtask, 3)
    return sink(directory).open(context, SCHEMA)


def prepared(directory: Path) -> tuple[FilesWriter, list[Json]]:
    writer = opened(directory)
    writer.write(records(1, 2))
    return writer, writer.prepare(FIRST)


def committed(directory: Path) -> None:
    writer, committables = prepared(directory)
    writer.commit(FIRST, committables)


def records(*ids: int) -> pa.RecordBatch:
    return pa.record_batch([pa.array(ids, pa.int64())], schema=SCHEMA)


def shown(directory: Path) -> list[str]:
    return sorted(file.name for file in directory.glob("[!._]*"))


def hidden(directory: Path, stage: str) -> list[str]:
    return sorted(file.name for file in directory.glob(f".{stage}-*"))
