"""The runtime notices at once when a rule that it relies on is broken."""

from collections.abc import Callable

import pytest

from pipelines.channels.credit import Credit, Outbox
from pipelines.channels.gate import Gate
from pipelines.domain.elements import Barrier, EndOfInput
from pipelines.domain.errors import InvariantViolated
from pipelines.domain.ids import Attempt, CheckpointId, Uid, channel_id
from pipelines.domain.key_groups import range_of
from pipelines.runtime.master.attempt.attempt_host import AttemptHost
from pipelines.runtime.slot.subtask_reports import SubtaskReports
from pipelines.runtime.subtask.gate_alignment import AlignmentTiming
from pipelines.state.in_memory.hashmap import HashMapBackend
from tests.unit.runtime.fakes import ManualClock
from tests.unit.runtime.permits import permit

CHANNEL = channel_id(Uid("up"), 0, Uid("down"), 0, 0)


def deploy_before_all_slots_are_connected() -> None:
    host = AttemptHost(Attempt(1), slot_count=1, now_ms=0.0)
    host.deploy(None)  # type: ignore[arg-type]


def commit_for_another_attempt() -> None:
    host = AttemptHost(Attempt(1), slot_count=1, now_ms=0.0)
    host.announce_completed(permit(1, attempt=2))


def record_two_checkpoints_at_once() -> None:
    gate = Gate([CHANNEL])
    gate.record(CheckpointId(1), [CHANNEL])
    gate.record(CheckpointId(2), [CHANNEL])


def overtake_the_end_of_input() -> None:
    outbox = Outbox(CHANNEL, Credit(), lambda element: None)
    outbox.send(EndOfInput())
    outbox.overtake(Barrier(checkpoint_id=CheckpointId(1), trigger_ms=0))


def end_more_subtasks_than_there_are() -> None:
    reports = SubtaskReports(lambda message: None, lambda point: None)
    reports.on_deployed(0)
    reports.ended(None)  # type: ignore[arg-type]


def cut_before_any_barrier() -> None:
    AlignmentTiming(ManualClock()).take(CheckpointId(1))


def build_an_increment_on_itself() -> None:
    HashMapBackend(range_of(0, 1, 8), 8).cut_increment(CheckpointId(3), CheckpointId(3))


@pytest.mark.parametrize(
    ("broken", "claim"),
    [
        (deploy_before_all_slots_are_connected, "deployed once all are connected"),
        (commit_for_another_attempt, "a permit is for its own attempt"),
        (record_two_checkpoints_at_once, "records one checkpoint at a time"),
        (overtake_the_end_of_input, "no barrier overtakes the end of input"),
        (end_more_subtasks_than_there_are, "each subtask ends once"),
        (cut_before_any_barrier, "a barrier comes before its cut"),
        (build_an_increment_on_itself, "builds on an older checkpoint"),
    ],
)
def test_a_broken_rule_is_named(broken: Callable[[], None], claim: str) -> None:
    with pytest.raises(InvariantViolated, match=claim):
        broken()
