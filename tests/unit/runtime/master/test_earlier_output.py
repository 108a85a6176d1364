"""A start over sets aside exactly the output that was visible before it."""

from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

from pipelines.bus.journal import JournalWriter
from pipelines.domain.errors import Rejected
from pipelines.domain.events import Event, LedgerAdvanced, LedgerBegun
from pipelines.domain.ids import Attempt, CheckpointId, RunId
from pipelines.domain.ledger import LedgerEntry
from pipelines.domain.run import RunDirectory
from pipelines.runtime.master.requests.start_undo import output_before
from tests.unit.runtime.fakes import ManualClock
from tests.unit.runtime.points import spec_of


def test_output_committed_by_the_previous_run_counts_as_visible(tmp_path: Path) -> None:
    runs = Runs(tmp_path)
    runs.told("a", begun(), advanced("a", 1), advanced("a", 2))
    runs.told("b", begun(("a", 1)), advanced("b", 2), advanced("b", 3), follows="a")

    assert runs.before("b", "a") == [("a", 2)]
    assert runs.before("c", "b") == [("a", 1), ("b", 3)]


def test_a_restore_that_committed_nothing_leaves_the_output_of_its_point(tmp_path: Path) -> None:
    runs = Runs(tmp_path)
    runs.told("a", begun(), advanced("a", 1), advanced("a", 9))
    runs.told("b", begun(("a", 1)), follows="a")

    assert runs.before("c", "b") == [("a", 1)]


def test_a_fresh_start_that_committed_nothing_is_skipped(tmp_path: Path) -> None:
    runs = Runs(tmp_path)
    runs.told("a", begun(), advanced("a", 1))
    runs.told("b", begun(), follows="a")
    runs.told("c", follows="b")  # it was refused before it could begin

    assert runs.before("d", "c") == [("a", 1)]


def test_falling_back_to_an_older_point_sets_the_newer_output_aside(
    tmp_path: Path,
) -> None:
    runs = Runs(tmp_path)
    runs.told("a", begun(), advanced("a", 8), advanced("a", 10), begun(("a", 8)))

    assert runs.before("b", "a") == [("a", 8)]


def test_there_is_no_earlier_output_before_the_first_run(tmp_path: Path) -> None:
    runs = Runs(tmp_path)
    runs.told("a", begun())

    assert runs.before("a", None) == []
    assert runs.before("b", "a") == []


def test_unreadable_earlier_output_is_not_taken_for_none(tmp_path: Path) -> None:
    with pytest.raises(Rejected, match="What run elsewhere committed cannot be read: "):
        Runs(tmp_path).before("b", "elsewhere")


@dataclass(frozen=True, slots=True)
class Runs:
    root: Path

    def directory(self, run: str) -> RunDirectory:
        return RunDirectory.of(self.root, "flights", RunId(run))

    def told(self, run: str, *events: Event, follows: str | None = None) -> None:
        directory = self.directory(run)
        spec = spec_of(run_id=RunId(run), follows=follows and RunId(follows))
        with JournalWriter(directory, RunId(run), ManualClock(), lambda *_: None) as journal:
            for event in events:
                journal.append(event, Attempt(1))
        directory.spec_file.write_bytes(msgspec.json.encode(spec))

    def before(self, run: str, follows: str | None) -> list[tuple[RunId, CheckpointId]]:
        return output_before(self.directory(run), None if follows is None else RunId(follows))


def begun(*lineage: tuple[str, int]) -> LedgerBegun:
    line = [(RunId(run), CheckpointId(number)) for run, number in lineage]
    return LedgerBegun(lineage=line, start=None)


def advanced(run: str, number: int) -> LedgerAdvanced:
    entry = LedgerEntry(
        run_id=RunId(run),
        checkpoint_id=CheckpointId(number),
        records_read=0,
        inputs=[],
        outputs=[],
    )
    return LedgerAdvanced(entry=entry)
