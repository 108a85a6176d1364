"""Output that a start publishes again, read from earlier journals; unknown is never 0."""

from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

from pipelines.bus.journal import JournalWriter
from pipelines.connectors.contract import Sink
from pipelines.domain.events import (
    CheckpointCommitted,
    CheckpointCompleted,
    Event,
    LedgerBegun,
    OutputPublishedAgain,
)
from pipelines.domain.ids import Attempt, CheckpointId, RunId, Uid
from pipelines.domain.run import RunDirectory
from pipelines.domain.status import CheckpointKind
from pipelines.points.published_output import (
    Start,
    newest_published,
    published_up_to,
    repeats,
)
from tests.unit.runtime.fakes import ManualClock
from tests.unit.runtime.hosted import MemorySink
from tests.unit.runtime.points import spec_of

OUT = Uid("out")
Lineage = list[tuple[str, int]]


class Topic(MemorySink):
    published_to = "topic t"


def test_a_recovery_from_the_newest_point_republishes_nothing(tmp_path: Path) -> None:
    runs = Runs(tmp_path)
    runs.told("a", begun([]), *completed(1, 100), *completed(2, 250))

    assert runs.again("a", start([("a", 2)], 250)) is None
    assert runs.again("a", start([("a", 3)], 300)) is None  # its driver died before recording it
    assert runs.again("a", start([("a", 2)], None)) is None  # a point of an earlier version


def test_falling_back_to_an_older_point_republishes_what_came_after_it(tmp_path: Path) -> None:
    runs = Runs(tmp_path)
    runs.told("a", begun([]), *completed(1, 100), *completed(2, 250))

    event = runs.again("a", start([("a", 1)], 100))

    assert event is not None
    assert (event.records, event.published_id, event.restored_id) == (150, 2, 1)
    assert (event.sink, event.target, event.is_at_most) == (OUT, "topic t", False)


def test_a_later_run_counts_from_the_output_of_the_run_before_it(tmp_path: Path) -> None:
    runs = Runs(tmp_path)
    runs.told("a", begun([]), *completed(1, 100), *completed(2, 740))
    runs.told("b", follows="a")

    assert records(runs.again("b", start([("a", 1)], 100))) == 640
    assert records(runs.again("b", start([], None))) == 740
    assert runs.again("b", start([("a", 2)], 740)) is None


def test_a_run_without_a_completed_checkpoint_has_published_nothing(tmp_path: Path) -> None:
    runs = Runs(tmp_path)
    runs.told("a", begun([]), *completed(1, 100))
    runs.told("b", begun([]), follows="a")
    runs.told("c", follows="b")

    event = runs.again("c", start([], None))

    assert event is not None
    assert (event.records, event.published_by) == (100, "a")


def test_the_first_run_republishes_nothing(tmp_path: Path) -> None:
    runs = Runs(tmp_path)
    runs.told("a")
    runs.told("b", begun([]), follows="a")

    assert runs.again("b", start([], None)) is None
    assert published_up_to(runs.directory("b")) is None


def test_diverged_runs_share_the_output_before_their_fork(tmp_path: Path) -> None:
    """Run b continued from point 1 of a; now a later point of a is restored."""
    runs = Runs(tmp_path)
    runs.told("a", begun([]), *completed(1, 100), *completed(2, 740))
    runs.told("b", begun([("a", 1)]), *completed(3, 300), follows="a")
    runs.told("c", follows="b")

    assert records(runs.again("c", start([("a", 2)], 740))) == 200
    assert records(runs.again("c", start([("a", 1)], 100))) == 200
    assert records(runs.again("c", start([("a", 1), ("b", 3)], 300))) is None


def test_output_with_an_unconfirmed_commit_counts_as_an_upper_bound(
    tmp_path: Path,
) -> None:
    runs = Runs(tmp_path)
    runs.told("a", begun([]), *completed(1, 100), completed(2, 250)[0])

    event = runs.again("a", start([("a", 1)], 100))

    assert event is not None
    assert (event.records, event.is_at_most) == (150, True)


@pytest.mark.parametrize("newest", [None, 250])
def test_output_that_an_earlier_version_did_not_count_is_unknown(
    tmp_path: Path, newest: int | None
) -> None:
    runs = Runs(tmp_path)
    runs.told("a", begun([]), *completed(1, None), *completed(2, newest))
    runs.told("b", follows="a")

    event = runs.again("b", start([("a", 1)], None))

    assert event is not None
    assert event.records is None


@pytest.mark.parametrize("follows", ["elsewhere", "../runs/a", "/"])
def test_the_output_of_a_run_that_is_not_stored_here_is_unknown(
    tmp_path: Path, follows: str
) -> None:
    runs = Runs(tmp_path)
    runs.told("a", begun([]), *completed(1, 100))
    runs.told("b", follows=follows)

    event = runs.again("b", start([], None))

    assert event is not None
    assert (event.records, event.published_by) == (None, follows)


def test_an_unreadable_journal_makes_the_count_unknown(tmp_path: Path) -> None:
    runs = Runs(tmp_path)
    runs.told("a", begun([]), *completed(1, 100))
    journal = runs.directory("a").journal_file
    journal.write_bytes(journal.read_bytes().replace(b'"counters":{', b'"counters":[{'))
    runs.told("b", follows="a")

    event = runs.again("b", start([], None))

    assert event is not None
    assert event.records is None


def test_a_sink_unknown_to_the_point_republishes_from_the_beginning(tmp_path: Path) -> None:
    runs = Runs(tmp_path)
    runs.told("a", begun([]), *completed(1, 100), *completed(2, 250))
    point = Start(((RunId("a"), CheckpointId(1)),), {"in.records_read": 9}, frozenset({Uid("in")}))

    assert records(runs.again("a", point)) == 250


def test_a_sink_that_can_take_back_its_output_republishes_nothing(tmp_path: Path) -> None:
    runs = Runs(tmp_path)
    runs.told("a", begun([]), *completed(1, 100), *completed(2, 250))

    assert runs.again("a", start([("a", 1)], 100), MemorySink()) is None


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

    def again(
        self, run: str, start: Start, sink: Sink | None = None
    ) -> OutputPublishedAgain | None:
        directory = self.directory(run)
        spec = msgspec.json.decode(directory.spec_file.read_bytes())
        follows = RunId(spec["follows"]) if spec["follows"] else None
        sinks = {OUT: sink or Topic()}
        found = repeats(directory, sinks, start, lambda uid: newest_published(directory, follows))
        return next(found, None)


def start(lineage: Lineage, written: int | None) -> Start:
    if not lineage:
        return Start()
    counters = {} if written is None else {"out.records_written": written}
    return Start(line_of(lineage), counters, frozenset({OUT}))


def begun(lineage: Lineage) -> LedgerBegun:
    return LedgerBegun(lineage=list(line_of(lineage)), start=None)


def completed(number: int, written: int | None) -> tuple[Event, Event]:
    done = CheckpointCompleted(
        checkpoint_id=CheckpointId(number),
        kind=CheckpointKind.CHECKPOINT,
        path=f"/chk-{number}",
        end_to_end_ms=1.0,
        state_bytes=0,
        uploaded_bytes=0,
        buffered_records=0,
        buffered_bytes=0,
        source_records=0,
        watermark_ms=None,
        counters={} if written is None else {"out.records_written": written},
    )
    return done, CheckpointCommitted(checkpoint_id=CheckpointId(number))


def line_of(lineage: Lineage) -> tuple[tuple[RunId, CheckpointId], ...]:
    return tuple((RunId(run), CheckpointId(number)) for run, number in lineage)


def records(event: OutputPublishedAgain | None) -> int | None:
    return None if event is None else event.records
