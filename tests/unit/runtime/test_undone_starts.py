"""A start from the beginning can be undone as long as the run has committed nothing.

A script plays the slots.
"""

import threading
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest

from pipelines.bus.journal import JournalWriter
from pipelines.connectors.contract import Superseded
from pipelines.domain.commands import TriggerCheckpoint, UndoStart
from pipelines.domain.errors import Retryable, TargetTaken
from pipelines.domain.events import (
    CheckpointCompleted,
    JobStatusChanged,
    LedgerAdvanced,
    LedgerBegun,
    RequestEnded,
    RunEnded,
    StartUndone,
)
from pipelines.domain.faults import Fault, FaultAction, FaultPoint
from pipelines.domain.ids import Attempt, CheckpointId, RequestId, RunId
from pipelines.domain.ledger import LedgerEntry
from pipelines.domain.run import RunDirectory
from pipelines.domain.status import JobStatus, RequestOutcome
from pipelines.runtime.control import Begin
from pipelines.runtime.faults import Faults
from pipelines.storage.filesystem import FileSystemCheckpointStore
from pipelines.storage.store import Publication
from tests.unit.runtime.fakes import ManualClock
from tests.unit.runtime.hosted import MemorySink
from tests.unit.runtime.points import spec_of
from tests.unit.runtime.scripted_slots import ScriptedRun

UNDO = UndoStart(request_id=RequestId("undo"), requested_by="ann", reason="it was a mistake")
CHECKPOINT = TriggerCheckpoint(request_id=RequestId("cp"), requested_by="ann", reason="test")
OFF = {
    "execution.checkpointing.interval": "off",
    "restart-strategy.type": "fixed-delay",
    "restart-strategy.fixed-delay.delay": "10 ms",
    "restart-strategy.fixed-delay.attempts": "5",
}
BEFORE = RunId("run-0")
OUTPUT = [(BEFORE, CheckpointId(4))]


@dataclass(slots=True)
class Target(MemorySink):
    """A target that refuses its next rewinds with these errors."""

    errors: list[Exception] = field(default_factory=list)

    def rewind(
        self, ancestors: list[tuple[RunId, CheckpointId]], run_id: RunId
    ) -> Superseded | None:
        if ancestors and self.errors:
            raise self.errors.pop(0)
        self.rewound_to.append((ancestors, run_id))
        return None


def test_the_output_that_the_start_set_aside_is_put_back_and_the_run_ends(tmp_path: Path) -> None:
    sink = Target()
    run = started_over(tmp_path, sink)
    run.ask(UNDO)

    assert run.wait_until_over() is JobStatus.CANCELED
    assert [line for line, _ in sink.rewound_to] == [[], OUTPUT]
    (answer,), (ended,) = run.of(RequestEnded), run.of(RunEnded)
    assert (answer.outcome, answer.message) == (RequestOutcome.SUCCEEDED, "The output is back.")
    assert ended.reason == (
        "ann undid the start: the output of run run-0 up to checkpoint 4 is back."
    )
    assert [event.lineage for event in run.of(StartUndone)] == [OUTPUT]
    assert [event.lineage for event in run.of(LedgerBegun)] == [[], OUTPUT], "an audit expects it"


def test_a_run_that_has_committed_refuses_the_undo_and_continues(tmp_path: Path) -> None:
    sink = Target()
    run = started_over(tmp_path, sink)
    run.ask(CHECKPOINT)
    run.wait_for_checkpoints(1)
    run.ask(UNDO)

    refused = refusal(run)
    assert refused.startswith("Run run-1 has completed a checkpoint and committed output, so its")
    assert [line for line, _ in sink.rewound_to] == [[]]
    assert run.master._record.status is JobStatus.RUNNING
    run.die()


def test_an_undo_is_refused_while_a_manifest_is_being_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate()
    monkeypatch.setattr(FileSystemCheckpointStore, "publish", gate.publishes())
    run = started_over(tmp_path, Target())
    run.ask(CHECKPOINT)
    run.wait_for(gate.entered.is_set)
    run.ask(UNDO)

    refused = refusal(run)
    gate.left.set()
    run.wait_for_checkpoints(1)

    assert refused.startswith("A checkpoint of run run-1 is being completed right now")
    run.die()


def test_an_unreported_point_of_a_dead_driver_counts_as_committed(
    tmp_path: Path,
) -> None:
    published = Faults([Fault(action=FaultAction.FAIL, point=FaultPoint.PUBLISHED)])
    run = started_over(tmp_path, Target(), faults=published)
    run.ask(CHECKPOINT)
    run.wait_for(lambda: bool(list(tmp_path.rglob("chk-1/manifest.json"))))
    run.die()
    assert run.of(CheckpointCompleted) == []

    successor = started_over(tmp_path, Target())
    successor.ask(UNDO)

    assert "has completed a checkpoint" in refusal(successor)
    successor.die()


@pytest.mark.parametrize(
    ("of_spec", "why"),
    [
        ({"follows": None}, "No run before run-1 has committed output: nothing can be put back."),
        ({"follows": RunId("gone")}, "What run gone committed cannot be read: "),
    ],
)
def test_without_earlier_output_there_is_nothing_to_put_back(
    tmp_path: Path, of_spec: dict[str, object], why: str
) -> None:
    run = started_over(tmp_path, Target(), **of_spec)
    run.ask(UNDO)

    assert refusal(run).startswith(why)
    run.die()


def test_a_target_that_does_not_answer_is_asked_again(tmp_path: Path) -> None:
    sink = Target(errors=[Retryable("The server is away."), Retryable("The server is away.")])
    run = started_over(tmp_path, sink)
    run.ask(UNDO)

    assert run.wait_until_over() is JobStatus.CANCELED
    assert sink.rewound_to[-1][0] == OUTPUT
    assert JobStatus.RESTARTING in [event.status for event in run.of(JobStatusChanged)]
    assert run.slots.attempts == [1], "no attempt begins meanwhile"


def test_a_run_that_has_lost_its_target_puts_nothing_back(tmp_path: Path) -> None:
    taken = "Run run-9 has taken over table t, so run run-1 ends."
    sink = Target(errors=[TargetTaken(taken)])
    run = started_over(tmp_path, sink)
    run.ask(UNDO)

    assert run.wait_until_over() is JobStatus.FAILED
    (answer,) = run.of(RequestEnded)
    assert (answer.outcome, answer.message) == (
        RequestOutcome.FAILED,
        f"The run ended first: {taken}",
    )
    assert run.of(StartUndone) == []


def test_the_next_driver_undoes_the_start_if_the_first_dies_in_the_middle(tmp_path: Path) -> None:
    sink = Target(errors=[OSError("the driver dies here")])
    run = started_over(tmp_path, sink)
    run.ask(UNDO)
    with pytest.raises(OSError, match="dies here"):
        run.wait_until_over()

    successor = started_over(tmp_path, sink)

    assert successor.wait_until_over() is JobStatus.CANCELED
    assert sink.rewound_to[-1][0] == OUTPUT
    (answer,) = successor.of(RequestEnded)
    assert answer.outcome is RequestOutcome.SUCCEEDED


def test_a_driver_that_finds_the_output_put_back_starts_no_attempt(tmp_path: Path) -> None:
    """Its predecessor died after it reported this and before it reported the end of the run."""
    first = started_over(tmp_path, Target())
    first.die()
    directory = first.directory
    with JournalWriter(directory, directory.run_id, ManualClock(), lambda *_: None) as journal:
        journal.append(StartUndone(lineage=OUTPUT), Attempt(1))
    sink = Target()

    successor = started_over(tmp_path, sink)

    assert successor.wait_until_over() is JobStatus.CANCELED
    assert [line for line, _ in sink.rewound_to] == [OUTPUT]
    assert successor.slots.attempts == []


def test_a_run_that_only_puts_output_back_starts_no_attempt(tmp_path: Path) -> None:
    sink = Target()
    run = started_over(tmp_path, sink, puts_back=True, started_by="ann")

    assert run.wait_until_over() is JobStatus.CANCELED
    assert [line for line, _ in sink.rewound_to] == [OUTPUT]
    assert run.slots.attempts == []
    assert run.slots.told.empty(), f"not even {Begin}"
    assert run.of(RunEnded)[0].reason.startswith("ann undid the start: ")


def started_over(
    root: Path, sink: Target, *, faults: Faults | None = None, **of_spec: object
) -> ScriptedRun:
    """Starts a run over, after a run that has committed checkpoint 4."""
    before = RunDirectory.of(root, "joining", BEFORE)
    if not before.spec_file.exists():
        entry = LedgerEntry(
            run_id=BEFORE, checkpoint_id=CheckpointId(4), records_read=0, inputs=[], outputs=[]
        )
        with JournalWriter(before, BEFORE, ManualClock(), lambda *_: None) as journal:
            journal.append(LedgerBegun(lineage=[], start=None), Attempt(1))
            journal.append(LedgerAdvanced(entry=entry), Attempt(1))
        before.spec_file.write_bytes(msgspec.json.encode(spec_of(run_id=BEFORE)))
    given = {"follows": BEFORE} | of_spec
    run = ScriptedRun(root, OFF, sink=sink, faults=faults or Faults([]), **given)
    if not of_spec.get("puts_back") and not run.of(StartUndone):
        run.wait_for(lambda: is_running(run) or run.status is not None)
    return run


def is_running(run: ScriptedRun) -> bool:
    return JobStatus.RUNNING in [event.status for event in run.of(JobStatusChanged)]


def refusal(run: ScriptedRun) -> str:
    def refusals() -> list[str]:
        ended = [each for each in run.of(RequestEnded) if each.request_id == UNDO.request_id]
        return [each.message for each in ended if each.outcome is RequestOutcome.REJECTED]

    run.wait_for(lambda: bool(refusals()))
    return refusals()[0]


class Gate:
    """Holds a manifest back until `left` is set."""

    def __init__(self) -> None:
        self.entered, self.left = threading.Event(), threading.Event()

    def publishes(self) -> object:
        publish = FileSystemCheckpointStore.publish

        def held(store: FileSystemCheckpointStore, *point: object) -> Publication:
            self.entered.set()
            self.left.wait(60)
            return publish(store, *point)  # type: ignore[arg-type]

        return held
