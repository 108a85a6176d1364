"""Rows of a DataFrame are deleted with the last point that names them, and never earlier."""

import contextlib
import errno
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pipelines.bus.announce import announce_nothing
from pipelines.bus.journal import JournalWriter
from pipelines.bus.lease import LeaseLost
from pipelines.connectors import DataFrameRows
from pipelines.connectors.files import data_frame
from pipelines.connectors.files.data_frame import PASSING
from pipelines.connectors.split_progress import NamedPositions, SplitProgress
from pipelines.domain.errors import Retryable
from pipelines.domain.events import RunEnded
from pipelines.domain.ids import Attempt, CheckpointId, RunId
from pipelines.domain.run import RunDirectory, SnapshotPlaces
from pipelines.domain.settings.parsing import parse_settings
from pipelines.domain.snapshots import Json
from pipelines.domain.status import JobStatus
from pipelines.runtime.clocks import SystemClock
from pipelines.runtime.master.start.run_opening import KeptRows
from tests.unit.runtime.fakes import SCHEMA
from tests.unit.runtime.points import PIPELINE, manifest_of, operator_of, store_in

ONE = CheckpointId(1)


def test_rows_stay_until_no_point_of_any_run_names_them(
    tmp_path: Path,
) -> None:
    first, second = Run(tmp_path, "run-a"), Run(tmp_path, "run-b")
    first.start_afresh()
    first.end(point_in="rows-1")
    second.start_afresh()
    assert rows_in(tmp_path) == ["rows-1", "rows-2"]
    second.end()

    Run(tmp_path, "run-c").start_afresh()
    assert rows_in(tmp_path) == ["rows-1", "rows-3"], "nothing names rows-2"
    Run(tmp_path, "run-c").end()

    first.discard_point()
    Run(tmp_path, "run-d").start_afresh()
    assert rows_in(tmp_path) == ["rows-4"]
    assert len(list((tmp_path / "rows" / "_runs").iterdir())) == 1, "of runs that left something"


@pytest.mark.parametrize("kind", ["savepoint", "reserved"])
def test_savepoints_and_at_most_once_reservations_keep_rows(tmp_path: Path, kind: str) -> None:
    first = Run(tmp_path, "run-a")
    first.start_afresh()
    first.end(point_in="rows-1", kind=kind)

    Run(tmp_path, "run-b").start_afresh()

    assert rows_in(tmp_path) == ["rows-1", "rows-2"]


def test_a_restored_run_keeps_the_rows_that_it_still_reads(tmp_path: Path) -> None:
    first, restored = Run(tmp_path, "run-a"), Run(tmp_path, "run-b")
    first.start_afresh()
    first.end()
    restored.kept.leave_note()
    restored.end(point_in="rows-1")

    Run(tmp_path, "run-c").start_afresh()

    assert rows_in(tmp_path) == ["rows-1", "rows-2"]


def test_no_rows_are_deleted_while_another_run_is_running(tmp_path: Path) -> None:
    Run(tmp_path, "run-a").start_afresh()

    Run(tmp_path, "run-b").start_afresh()

    assert rows_in(tmp_path) == ["rows-1", "rows-2"]


def test_no_rows_are_deleted_while_a_checkpoint_directory_is_not_mounted(tmp_path: Path) -> None:
    mount = tmp_path / "mount"
    first = Run(tmp_path, "run-a", {"execution.checkpointing.dir": str(mount)})
    first.start_afresh()
    first.end(point_in="rows-1")
    aside = mount.rename(tmp_path / "unmounted")
    mount.mkdir()

    Run(tmp_path, "run-b").start_afresh()
    while_away = rows_in(tmp_path)
    Run(tmp_path, "run-b").end()
    mount.rmdir()
    aside.rename(mount)
    Run(tmp_path, "run-c").start_afresh()

    assert while_away == ["rows-1", "rows-2"]
    assert rows_in(tmp_path) == ["rows-1", "rows-3"]


@pytest.mark.parametrize("spoil", ["altered", "silent point", "silent notes", "no jobs"])
def test_no_rows_are_deleted_while_points_or_notes_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spoil: str
) -> None:
    first = Run(tmp_path, "run-a", jobs=spoil.replace(" ", "-"))
    first.start_afresh()
    first.end(point_in="rows-1")

    with spoiled(first, spoil, tmp_path, monkeypatch):
        Run(tmp_path, "run-b").start_afresh()

    assert rows_in(tmp_path) == ["rows-1", "rows-2"]


def test_a_transient_failure_to_write_its_note_keeps_a_run_from_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(tmp_path, "run-a")

    def fail(code: int) -> None:
        def failing(*_: object) -> None:
            raise OSError(code, os.strerror(code))

        monkeypatch.setattr(data_frame, "make_directory", failing)

    fail(errno.ESTALE)
    with pytest.raises(Retryable, match="cannot be written"):
        run.kept.leave_note()
    fail(errno.EROFS)
    run.kept.leave_note()  # only a warning: the run only reads there


@contextlib.contextmanager
def spoiled(run: "Run", how: str, root: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def denying(ask: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def denied(path: Any) -> Any:
            if Path(path) == root / "rows" / "_runs":
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
            return ask(path)

        return denied

    match how:
        case "altered":
            manifest = run.point / "manifest.json"
            manifest.write_bytes(manifest.read_bytes()[:-9])
        case "silent point":
            run.point.rename(root / "aside")
            run.point.symlink_to(run.point)  # every call below it fails
        case "silent notes":
            for call in ("listdir", "scandir"):
                monkeypatch.setattr(os, call, denying(getattr(os, call)))
        case "no jobs":
            (root / "no-jobs").rename(root / "aside")
            (root / "no-jobs").mkdir()
    yield
    monkeypatch.undo()


def test_unmarked_rows_are_never_deleted_and_an_invalid_note_blocks_deletion(
    tmp_path: Path,
) -> None:
    first = Run(tmp_path, "run-a")
    first.start_afresh()
    first.end()
    (tmp_path / "rows" / "rows-1" / PASSING).unlink()
    second = Run(tmp_path, "run-b")
    second.start_afresh()
    second.end()
    note = tmp_path / "rows" / "_runs" / "somebody.json"
    note.write_text(json.dumps({"run": 1}))

    Run(tmp_path, "run-c").start_afresh()
    in_doubt = rows_in(tmp_path)
    note.unlink()
    Run(tmp_path, "run-d").kept.delete_unneeded()

    assert in_doubt == ["rows-1", "rows-2", "rows-3"]
    assert rows_in(tmp_path) == ["rows-1", "rows-2", "rows-3"], "run-c goes on"
    Run(tmp_path, "run-c").end()
    Run(tmp_path, "run-d").kept.delete_unneeded()
    assert rows_in(tmp_path) == ["rows-1", "rows-3"]


def test_a_driver_that_has_lost_the_run_deletes_no_rows(tmp_path: Path) -> None:
    first = Run(tmp_path, "run-a")
    first.start_afresh()
    late = Run(tmp_path, "run-b")
    late.start_afresh()
    first.end()

    def lost() -> None:
        raise LeaseLost(RunDirectory(tmp_path), None)

    with pytest.raises(LeaseLost):
        late.kept.delete_unneeded(lost)
    kept = rows_in(tmp_path)
    late.kept.delete_unneeded()

    assert (kept, rows_in(tmp_path)) == (["rows-1", "rows-2"], ["rows-2"])


class Run:
    def __init__(
        self,
        root: Path,
        run_id: str,
        settings: dict[str, str] | None = None,
        *,
        jobs: str = "jobs",
    ) -> None:
        self._directory = RunDirectory.of(root / jobs, PIPELINE, RunId(run_id))
        self._places = SnapshotPlaces.of(self._directory, parse_settings(settings or {}).storage)
        self._store = store_in(root)
        self._source = DataFrameRows(lambda session: session, root / "rows", schema=SCHEMA)
        self.kept = KeptRows(self._source, self._directory, self._places, self._store)

    @property
    def point(self) -> Path:
        return Path(self._places.checkpoint(ONE))

    def start_afresh(self) -> None:
        self._directory.path.mkdir(parents=True, exist_ok=True)
        self.kept.leave_note()
        self._source.finish(self._source.begin())
        self.kept.delete_unneeded()

    def end(self, *, point_in: str | None = None, kind: str = "positions") -> None:
        """Ends the run, with a point that names those rows or with none."""
        if point_in is not None:
            is_savepoint = kind == "savepoint"
            place = self._places.savepoint if is_savepoint else self._places.checkpoint
            stored = {"reserved" if kind == "reserved" else "positions": positions_in(point_in)}
            self._store.prepare(place(ONE))
            self._store.publish(place(ONE), manifest_of([[operator_of(**stored)]]))
        self._directory.path.mkdir(parents=True, exist_ok=True)
        run_id = self._directory.run_id
        with JournalWriter(self._directory, run_id, SystemClock(), announce_nothing) as journal:
            journal.append(RunEnded(status=JobStatus.CANCELED, reason="."), Attempt(1))

    def discard_point(self) -> None:
        shutil.rmtree(self._places.checkpoint(ONE))


def positions_in(rows: str) -> Json:
    split = SplitProgress(f"{rows}/part-00000.parquet")
    return NamedPositions(splits=(split,), has_looked=True).to_json()


def rows_in(root: Path) -> list[str]:
    return sorted(path.name for path in (root / "rows").glob("rows-*"))
