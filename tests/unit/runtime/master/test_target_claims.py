"""Claims on targets: a run takes a target once, keeps it over restarts, and never takes it back."""

from pathlib import Path

import pytest

from pipelines.bus.lease import Lease
from pipelines.domain.errors import Retryable, TargetTaken
from pipelines.domain.events import (
    Event,
    FailureOccurred,
    JobStatusChanged,
    SlotConnected,
    TargetTakenOver,
)
from pipelines.domain.ids import Attempt, RunId, Uid
from pipelines.domain.ownership import Claim, Holder
from pipelines.domain.run import RunDirectory
from pipelines.domain.status import JobStatus
from pipelines.runtime.control import Failed
from pipelines.runtime.master.output.leftovers import TargetClaims
from tests.unit.runtime.hosted import MemorySink
from tests.unit.runtime.points import spec_of
from tests.unit.runtime.scripted_slots import ScriptedRun

AT_ONCE = {
    "execution.checkpointing.interval": "20 ms",
    "restart-strategy.type": "fixed-delay",
    "restart-strategy.fixed-delay.delay": "10 ms",
    "restart-strategy.fixed-delay.attempts": "9",
}
OTHER = Holder(run_id=RunId("run-9"), epoch=2, installation="elsewhere", started_by="ada")


def test_a_restart_that_finds_its_target_taken_over_ends_the_run(tmp_path: Path) -> None:
    sink = HeldSink()
    run = ScriptedRun(tmp_path, AT_ONCE, sink=sink)
    run.wait_for_checkpoints(1)
    sink.held_by = OTHER

    run.slots.say(
        Attempt(1),
        Failed(vertex=None, subtask=None, cause="a slot died", detail="", is_fatal=False),
    )

    assert run.wait_until_over() is JobStatus.FAILED
    reason = run.of(JobStatusChanged)[-1].reason
    assert reason.startswith("Run run-9 of installation elsewhere, started by ada, has taken over")
    assert [event.cause for event in run.of(FailureOccurred)] == ["a slot died", reason]
    assert run.slots.attempts == [1]
    assert sink.held_by == OTHER


def test_the_successor_of_a_dead_driver_does_not_take_its_target_back(tmp_path: Path) -> None:
    sink = HeldSink()
    run = ScriptedRun(tmp_path, AT_ONCE, sink=sink)
    run.wait_for_checkpoints(1)
    run.die()
    sink.held_by = OTHER

    successor = ScriptedRun(tmp_path, AT_ONCE, sink=sink)

    assert successor.wait_until_over() is JobStatus.FAILED
    assert len(successor.of(SlotConnected)) == len(run.slots.links)
    assert sink.held_by == OTHER


def test_a_target_that_does_not_answer_is_asked_again(tmp_path: Path) -> None:
    sink = HeldSink(failures=2)
    run = ScriptedRun(tmp_path, AT_ONCE, sink=sink)

    run.wait_for_checkpoints(1)
    run.die()

    causes = [event.cause for event in run.of(FailureOccurred)]
    assert causes == ["The attempt cannot begin: the target is away"] * 2


def test_the_next_driver_completes_a_start_that_died_between_two_targets(
    tmp_path: Path,
) -> None:
    first, second = HeldSink(held_by=OTHER), HeldSink(held_by=OTHER)
    second.is_away_to_hold = True
    with pytest.raises(Retryable):
        Claims(tmp_path).hold(first, second)
    second.is_away_to_hold = False

    Claims(tmp_path).hold(first, second)

    assert [each.held_by and each.held_by.epoch for each in (first, second)] == [3, 3]


def test_a_start_that_never_reached_its_target_does_not_evict_a_later_run(
    tmp_path: Path,
) -> None:
    """The driver stored its claim, and then a person started the pipeline elsewhere."""
    sink = HeldSink(held_by=OTHER)
    sink.is_away_to_hold = True
    with pytest.raises(Retryable):
        Claims(tmp_path).hold(sink)
    later = Holder(run_id=RunId("run-10"), epoch=3, installation="elsewhere", started_by="bob")
    sink.held_by, sink.is_away_to_hold = later, False

    with pytest.raises(TargetTaken, match=r"^Run run-10 "):
        Claims(tmp_path).hold(sink)

    assert sink.held_by == later


def test_a_takeover_is_reported_once_and_only_across_installations(tmp_path: Path) -> None:
    sink = HeldSink(held_by=OTHER)
    claims = Claims(tmp_path)
    claims.hold(sink)
    Claims(tmp_path).hold(sink)

    (said,) = claims.events
    assert said == TargetTakenOver(
        sink=Uid("out-0"),
        target="a list",
        from_run=RunId("run-9"),
        from_installation="elsewhere",
        epoch=3,
    )
    neighbour = HeldSink(held_by=Holder(run_id=RunId("run-0"), epoch=1, installation="here"))
    at_home = Claims(tmp_path / "at home")
    at_home.hold(neighbour)
    assert at_home.events == []


class HeldSink(MemorySink):
    """A sink whose target keeps its holder and does not answer the first `failures` calls."""

    def __init__(self, held_by: Holder | None = None, failures: int = 0) -> None:
        super().__init__()
        self.held_by = held_by
        self.is_away_to_hold = False
        self._failures_left = failures

    @property
    def target(self) -> str:
        return "a list"

    def holder(self) -> Holder | None:
        if self._failures_left:
            self._failures_left -= 1
            raise Retryable("the target is away")
        return self.held_by

    def hold(self, claim: Claim) -> None:
        if self.is_away_to_hold:
            raise Retryable("the target is away")
        self.held_by = claim.admit(self.held_by, self.target)


class Claims:
    """The claims of one run. Each `hold` is by another driver, which has the lease meanwhile."""

    def __init__(self, root: Path) -> None:
        self.events: list[Event] = []
        self._spec = spec_of(installation="here", started_by="carl")
        self._directory = RunDirectory.of(root, self._spec.pipeline, self._spec.run_id)

    def hold(self, *sinks: HeldSink) -> None:
        with Lease.acquire(self._directory) as lease:
            claims = TargetClaims(self._spec, lease, self.events.append)
            claims.hold((Uid(f"out-{index}"), sink) for index, sink in enumerate(sinks))
