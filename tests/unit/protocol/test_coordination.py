"""Coordination: the life of checkpoints under random replies and stops, then named cases."""

import random
from collections import Counter

import pytest

from pipelines.domain.checkpoint_failures import CheckpointFailureReason
from pipelines.domain.errors import InvariantViolated
from pipelines.domain.ids import CheckpointId, Uid
from pipelines.domain.snapshots import OperatorSnapshot, SubtaskSnapshot
from pipelines.domain.status import CheckpointKind
from pipelines.protocol.coordination import (
    NEXT_PHASES,
    AttemptSubtasks,
    Checkpoint,
    CheckpointCoordinator,
)
from pipelines.protocol.coordination import CheckpointPhase as Phase
from pipelines.protocol.effects import (
    AbortCheckpoint,
    Complete,
    CoordinationEffect,
    DiscardLate,
    FailAttempt,
    Finalize,
    Inject,
    SubtaskId,
)
from pipelines.protocol.triggering import (
    FINAL,
    PERIODIC,
    Start,
    TriggerDecider,
    TriggerRequest,
    TriggerRules,
)

Reason = CheckpointFailureReason
READ, COUNT = SubtaskId(Uid("read"), 0), SubtaskId(Uid("count"), 0)
ONE, TWO, THREE = CheckpointId(1), CheckpointId(2), CheckpointId(3)
SAVEPOINT = TriggerRequest(CheckpointKind.SAVEPOINT)


@pytest.mark.parametrize("seed", range(300))
def test_every_inject_ends_once_and_completes_only_when_all_acknowledged(seed: int) -> None:
    host = Host(random.Random(seed))

    for _ in range(250):
        host.step()
    host.stop()

    assert host.injected == sorted(set(host.injected))  # ids only grow
    assert Counter(host.ended) == Counter(host.injected)


def test_a_checkpoint_completes_after_all_acknowledged_and_its_manifest_is_published() -> None:
    coordinator = running_coordinator()

    injected = coordinator.on_trigger(PERIODIC)
    first = coordinator.on_acknowledged(ONE, snapshot_of(READ))
    second = coordinator.on_acknowledged(ONE, snapshot_of(COUNT))
    published = coordinator.on_published(ONE)

    assert injected == [Inject(ONE, PERIODIC)]
    assert first == []
    assert second == [Finalize(ONE, PERIODIC, (snapshot_of(COUNT), snapshot_of(READ)))]
    assert published == [Complete(ONE, PERIODIC)]
    assert coordinator.on_stopped(Reason.TASK_FAILURE, "nothing is left open") == []


def test_late_repeated_and_foreign_acknowledgements_change_nothing() -> None:
    coordinator = running_coordinator()
    coordinator.on_trigger(PERIODIC)
    coordinator.on_acknowledged(ONE, snapshot_of(READ))

    strangers = [
        coordinator.on_acknowledged(ONE, snapshot_of(READ)),
        coordinator.on_acknowledged(ONE, snapshot_of(SubtaskId(Uid("count"), 7))),
        coordinator.on_acknowledged(TWO, snapshot_of(COUNT)),
        coordinator.on_acknowledged(CheckpointId(0), snapshot_of(COUNT)),
    ]

    assert strangers == [[], [], [], []]
    assert len(coordinator.on_acknowledged(ONE, snapshot_of(COUNT))) == 1


def test_the_first_of_repeated_acknowledgements_counts() -> None:
    coordinator = running_coordinator()
    coordinator.on_trigger(PERIODIC)
    repeated = SubtaskSnapshot(
        vertex=READ.vertex, subtask=0, operators=[OperatorSnapshot(uid=READ.vertex)]
    )
    coordinator.on_acknowledged(ONE, snapshot_of(READ))
    coordinator.on_acknowledged(ONE, repeated)

    effects = coordinator.on_acknowledged(ONE, snapshot_of(COUNT))

    assert effects == [Finalize(ONE, PERIODIC, (snapshot_of(COUNT), snapshot_of(READ)))]


def test_the_first_decline_aborts_and_the_others_are_late() -> None:
    coordinator = running_coordinator(tolerable_failures=5)
    coordinator.on_trigger(PERIODIC)

    first = coordinator.on_declined(ONE, Reason.CHECKPOINT_DECLINED, "the disk is full")
    second = coordinator.on_declined(ONE, Reason.CHECKPOINT_DECLINED, "mine, too")

    assert first == [AbortCheckpoint(ONE, PERIODIC, Reason.CHECKPOINT_DECLINED, "the disk is full")]
    assert second == [DiscardLate(ONE, PERIODIC)]
    assert coordinator.on_trigger(PERIODIC) == [Inject(TWO, PERIODIC)]


def test_an_expired_checkpoint_names_the_missing_subtasks() -> None:
    coordinator = running_coordinator(tolerable_failures=5)
    coordinator.on_trigger(PERIODIC)
    coordinator.on_acknowledged(ONE, snapshot_of(READ))

    assert coordinator.on_expired(ONE) == [
        AbortCheckpoint(ONE, PERIODIC, Reason.CHECKPOINT_EXPIRED, "still missing: count[0]")
    ]


def test_only_the_outcome_of_its_manifest_ends_a_checkpoint_being_written() -> None:
    coordinator = finalizing_coordinator()

    late = [
        *coordinator.on_expired(ONE),
        *coordinator.on_declined(ONE, Reason.CHECKPOINT_DECLINED, "too late"),
        *coordinator.on_acknowledged(ONE, snapshot_of(READ)),
    ]

    assert late == []
    assert coordinator.on_published(ONE) == [Complete(ONE, PERIODIC)]


def test_a_failed_manifest_write_aborts_the_checkpoint_and_counts() -> None:
    coordinator = finalizing_coordinator(tolerable_failures=0)

    effects = coordinator.on_unpublished(ONE, "no space")

    reason = Reason.FINALIZE_CHECKPOINT_FAILURE
    assert effects[0] == AbortCheckpoint(ONE, PERIODIC, reason, "no space")
    assert [type(effect) for effect in effects] == [AbortCheckpoint, FailAttempt]


def test_one_failure_more_than_tolerated_fails_the_attempt() -> None:
    coordinator = running_coordinator(tolerable_failures=2)

    outcomes = [fail_one(coordinator, Reason.CHECKPOINT_EXPIRED) for _ in range(3)]

    assert [len(effects) for effects in outcomes] == [1, 1, 2]
    assert outcomes[2][1] == FailAttempt(
        "More checkpoints failed in a row than the run tolerates. The latest one failed:"
        " Checkpoint expired before completing. it failed"
    )


def test_a_completed_checkpoint_clears_the_failures_before_it() -> None:
    coordinator = running_coordinator(tolerable_failures=1)
    fail_one(coordinator, Reason.CHECKPOINT_DECLINED)
    complete_one(coordinator)

    assert len(fail_one(coordinator, Reason.CHECKPOINT_DECLINED)) == 1


def test_a_new_attempt_does_not_clear_the_counted_failures() -> None:
    coordinator = running_coordinator(tolerable_failures=1)
    fail_one(coordinator, Reason.CHECKPOINT_DECLINED)
    coordinator.on_stopped(Reason.TASK_FAILURE, "a slot died")
    coordinator.on_running([READ, COUNT])

    assert len(fail_one(coordinator, Reason.CHECKPOINT_DECLINED)) == 2


@pytest.mark.parametrize("reason", list(Reason))
def test_only_failures_of_checkpointing_itself_count(reason: Reason) -> None:
    coordinator = running_coordinator(tolerable_failures=0)

    effects = fail_one(coordinator, reason)

    assert (len(effects) == 2) == reason.counts_against_tolerance


def test_the_end_of_an_attempt_aborts_without_counting() -> None:
    coordinator = running_coordinator(tolerable_failures=0)
    coordinator.on_trigger(PERIODIC)

    # This reason counts otherwise, but the attempt has failed already.
    effects = coordinator.on_stopped(Reason.IO_EXCEPTION, "a slot died")

    assert effects == [AbortCheckpoint(ONE, PERIODIC, Reason.IO_EXCEPTION, "a slot died")]
    assert coordinator.on_stopped(Reason.TASK_FAILURE, "again") == []


def test_ids_continue_from_the_given_one_across_attempts() -> None:
    coordinator = CheckpointCoordinator(first_id=CheckpointId(41), tolerable_failures=0)
    coordinator.on_running([READ])
    coordinator.on_trigger(PERIODIC)
    coordinator.on_stopped(Reason.TASK_FAILURE, "a slot died")
    coordinator.on_running([READ])

    assert coordinator.on_trigger(PERIODIC) == [Inject(CheckpointId(42), PERIODIC)]


def test_triggering_without_running_subtasks_is_a_bug_and_uses_no_id() -> None:
    coordinator = CheckpointCoordinator(first_id=ONE, tolerable_failures=0)
    with pytest.raises(InvariantViolated):
        coordinator.on_trigger(PERIODIC)
    coordinator.on_running([READ])

    assert coordinator.on_trigger(PERIODIC) == [Inject(ONE, PERIODIC)]


def test_a_completed_checkpoint_subsumes_older_ones_but_no_savepoint_or_final() -> None:
    coordinator = running_coordinator()
    for request in (SAVEPOINT, FINAL, PERIODIC, PERIODIC):
        coordinator.on_trigger(request)

    effects = complete(coordinator, CheckpointId(4))

    why = "by checkpoint 4"
    assert effects == [
        Complete(CheckpointId(4), PERIODIC),
        AbortCheckpoint(THREE, PERIODIC, Reason.CHECKPOINT_SUBSUMED, why),
    ]
    assert complete(coordinator, ONE) == [Complete(ONE, SAVEPOINT)]


def test_a_lost_subtask_fails_its_unacknowledged_checkpoints_and_suspends_others() -> None:
    coordinator = running_coordinator()
    for _ in range(2):
        coordinator.on_trigger(PERIODIC)
    coordinator.on_acknowledged(ONE, snapshot_of(READ))
    coordinator.on_acknowledged(TWO, snapshot_of(COUNT))

    suspend = Reason.CHECKPOINT_COORDINATOR_SUSPEND
    effects = coordinator.on_stopped(suspend, "slot 1 is gone", failed=[READ])

    assert effects == [
        AbortCheckpoint(ONE, PERIODIC, suspend, "slot 1 is gone"),
        AbortCheckpoint(TWO, PERIODIC, Reason.TASK_FAILURE, "slot 1 is gone"),
    ]


@pytest.mark.parametrize(("request_", "counts"), [(PERIODIC, True), (SAVEPOINT, False)])
def test_a_failed_preparation_aborts_and_counts_except_for_savepoints(
    request_: TriggerRequest, counts: bool
) -> None:
    coordinator = running_coordinator()
    coordinator.on_trigger(request_)

    aborted, *failed = coordinator.on_untriggered(ONE, Reason.IO_EXCEPTION, "read-only")

    assert aborted == AbortCheckpoint(ONE, request_, Reason.IO_EXCEPTION, "read-only")
    assert bool(failed) is counts
    assert coordinator.on_untriggered(ONE, Reason.IO_EXCEPTION, "again") == []


@pytest.mark.parametrize(
    "first",
    [Reason.CHECKPOINT_DECLINED_SUBSUMED, Reason.CHECKPOINT_DECLINED_ON_CANCELLATION_BARRIER],
)
def test_the_original_decline_counts_once_even_after_those_it_caused(
    first: Reason,
) -> None:
    coordinator = running_coordinator(tolerable_failures=0)
    coordinator.on_trigger(PERIODIC)

    follower = coordinator.on_declined(ONE, first, "upstream has declined")
    origin = coordinator.on_declined(ONE, Reason.CHECKPOINT_DECLINED, "over the cap")
    again = coordinator.on_declined(ONE, Reason.CHECKPOINT_DECLINED, "over the cap")

    assert follower == [AbortCheckpoint(ONE, PERIODIC, first, "upstream has declined")]
    assert [type(effect) for effect in origin] == [DiscardLate, FailAttempt]
    assert [type(effect) for effect in again] == [DiscardLate]


def test_manifests_are_written_one_at_a_time_oldest_first() -> None:
    coordinator = running_coordinator()
    for _ in range(3):
        coordinator.on_trigger(PERIODIC)

    started = [acknowledge(coordinator, number) for number in (TWO, THREE, ONE)]
    after_the_first = coordinator.on_published(TWO)
    after_the_second = coordinator.on_published(THREE)

    assert [type(e) for effects in started for e in effects] == [Finalize]
    assert [type(effect) for effect in after_the_first] == [Complete, AbortCheckpoint, Finalize]
    assert after_the_first[2] == Finalize(THREE, PERIODIC, SNAPSHOTS)
    assert after_the_second == [Complete(THREE, PERIODIC)]


def test_the_next_manifest_is_written_after_one_failed() -> None:
    coordinator = running_coordinator(tolerable_failures=0)
    for number in (ONE, TWO):
        coordinator.on_trigger(PERIODIC)
        acknowledge(coordinator, number)

    effects = coordinator.on_unpublished(ONE, "no space")

    # FailAttempt comes last, so that a host that ends the attempt then has obeyed Finalize.
    assert [type(effect) for effect in effects] == [AbortCheckpoint, Finalize, FailAttempt]


def test_the_end_of_an_attempt_aborts_all_and_waits_for_a_manifest() -> None:
    coordinator = running_coordinator()
    coordinator.on_trigger(PERIODIC)
    coordinator.on_trigger(PERIODIC)
    acknowledge(coordinator, ONE)
    with pytest.raises(InvariantViolated):
        coordinator.on_stopped(Reason.TASK_FAILURE, "a slot died")
    coordinator.on_unpublished(ONE, "no space")

    effects = coordinator.on_stopped(Reason.TASK_FAILURE, "a slot died")

    assert effects == [AbortCheckpoint(TWO, PERIODIC, Reason.TASK_FAILURE, "a slot died")]


def test_late_writes_for_an_aborted_checkpoint_are_deleted() -> None:
    coordinator = running_coordinator(tolerable_failures=5)
    coordinator.on_trigger(SAVEPOINT)
    coordinator.on_expired(ONE)
    coordinator.on_trigger(PERIODIC)
    complete(coordinator, TWO)

    late = [
        coordinator.on_acknowledged(ONE, snapshot_of(READ)),
        coordinator.on_declined(ONE, Reason.CHECKPOINT_ASYNC_EXCEPTION, "the disk is full"),
        coordinator.on_acknowledged(TWO, snapshot_of(READ)),  # complete: nothing is discarded
        coordinator.on_acknowledged(CheckpointId(9), snapshot_of(READ)),  # never triggered
    ]

    assert late == [[DiscardLate(ONE, SAVEPOINT)], [DiscardLate(ONE, SAVEPOINT)], [], []]


def test_a_checkpoint_that_waits_for_an_older_manifest_may_expire() -> None:
    coordinator = running_coordinator(tolerable_failures=5)
    for number in (ONE, TWO):
        coordinator.on_trigger(PERIODIC)
        acknowledge(coordinator, number)

    (aborted,) = coordinator.on_expired(TWO)

    assert aborted == AbortCheckpoint(
        TWO, PERIODIC, Reason.CHECKPOINT_EXPIRED, "an older manifest is being written"
    )
    assert coordinator.on_published(ONE) == [Complete(ONE, PERIODIC)]


def test_a_changed_tolerance_applies_from_the_next_failure() -> None:
    coordinator = running_coordinator(tolerable_failures=0)
    coordinator.tolerate(1)

    outcomes = [fail_one(coordinator, Reason.CHECKPOINT_DECLINED) for _ in range(2)]

    assert [len(effects) for effects in outcomes] == [1, 2]


def test_an_attempt_cannot_start_while_a_checkpoint_is_pending() -> None:
    coordinator = running_coordinator()
    coordinator.on_trigger(PERIODIC)

    with pytest.raises(InvariantViolated):
        coordinator.on_running([READ, COUNT])


def test_reporting_a_manifest_that_was_not_requested_is_a_bug() -> None:
    coordinator = running_coordinator()
    with pytest.raises(InvariantViolated):
        coordinator.on_published(ONE)
    coordinator.on_trigger(PERIODIC)
    with pytest.raises(InvariantViolated):
        coordinator.on_published(ONE)  # not all have acknowledged
    coordinator.on_acknowledged(ONE, snapshot_of(READ))
    coordinator.on_acknowledged(ONE, snapshot_of(COUNT))
    with pytest.raises(InvariantViolated):
        coordinator.on_unpublished(TWO, "another one")

    assert coordinator.on_published(ONE) == [Complete(ONE, PERIODIC)]


@pytest.mark.parametrize("phase", Phase)
def test_a_checkpoint_only_moves_forward(phase: Phase) -> None:
    request, subtasks = PERIODIC, AttemptSubtasks([READ, COUNT])
    for to in set(Phase) - NEXT_PHASES[phase]:
        checkpoint = Checkpoint.of(ONE, request, subtasks)
        checkpoint.phase = phase

        with pytest.raises(InvariantViolated, match="a checkpoint moves on"):
            checkpoint.move_to(to)

        assert checkpoint.phase is phase
        assert checkpoint.snapshots == [None, None]


def test_a_checkpoint_is_one_object_from_its_trigger_to_its_end() -> None:
    coordinator = running_coordinator()
    coordinator.on_trigger(PERIODIC)
    checkpoint = coordinator.pending(ONE)

    phases = [checkpoint.phase]
    for subtask in (READ, COUNT):
        coordinator.on_acknowledged(ONE, snapshot_of(subtask))
        phases.append(checkpoint.phase)
    coordinator.on_published(ONE)

    assert phases == [Phase.COLLECTING, Phase.COLLECTING, Phase.WRITING]
    assert (checkpoint.phase, checkpoint.snapshots) == (Phase.COMPLETED, [])
    with pytest.raises(InvariantViolated, match="it is pending"):
        coordinator.pending(ONE)


def running_coordinator(*, tolerable_failures: int = 0) -> CheckpointCoordinator:
    coordinator = CheckpointCoordinator(first_id=ONE, tolerable_failures=tolerable_failures)
    coordinator.on_running([READ, COUNT])
    return coordinator


def finalizing_coordinator(*, tolerable_failures: int = 0) -> CheckpointCoordinator:
    coordinator = running_coordinator(tolerable_failures=tolerable_failures)
    coordinator.on_trigger(PERIODIC)
    for subtask in (READ, COUNT):
        coordinator.on_acknowledged(ONE, snapshot_of(subtask))
    return coordinator


def fail_one(coordinator: CheckpointCoordinator, reason: Reason) -> list[CoordinationEffect]:
    triggered = coordinator.next_id
    coordinator.on_trigger(PERIODIC)
    return coordinator.on_declined(triggered, reason, "it failed")


def complete_one(coordinator: CheckpointCoordinator) -> None:
    triggered = coordinator.next_id
    coordinator.on_trigger(PERIODIC)
    complete(coordinator, triggered)


def complete(
    coordinator: CheckpointCoordinator, checkpoint_id: CheckpointId
) -> list[CoordinationEffect]:
    acknowledge(coordinator, checkpoint_id)
    return coordinator.on_published(checkpoint_id)


def acknowledge(
    coordinator: CheckpointCoordinator, checkpoint_id: CheckpointId
) -> list[CoordinationEffect]:
    """Acknowledges for all subtasks. Returns the effects of the last acknowledgement."""
    coordinator.on_acknowledged(checkpoint_id, snapshot_of(READ))
    return coordinator.on_acknowledged(checkpoint_id, snapshot_of(COUNT))


def snapshot_of(subtask: SubtaskId) -> SubtaskSnapshot:
    return SubtaskSnapshot(vertex=subtask.vertex, subtask=subtask.subtask, operators=[])


DECLINES = [reason for reason in Reason if reason is not Reason.CHECKPOINT_SUBSUMED]
SNAPSHOTS = (snapshot_of(COUNT), snapshot_of(READ))


class Host:
    """Passes random events to the coordinator and the decider, and checks each effect by a log."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.now_ms = 0.0
        self.subtasks = [SubtaskId(Uid(f"v{n}"), 0) for n in range(rng.randint(1, 4))]
        self.tolerable = rng.randint(0, 2)
        self.concurrent_max = rng.randint(1, 4)
        self.decider = TriggerDecider(rules=TriggerRules(10, max_concurrent=self.concurrent_max))
        self.coordinator = CheckpointCoordinator(
            first_id=CheckpointId(rng.randint(1, 50)), tolerable_failures=self.tolerable
        )
        self.is_running = self.has_failed = False
        self.injected: list[CheckpointId] = []
        self.ended: list[CheckpointId] = []
        self.acknowledged: dict[CheckpointId, set[SubtaskId]] = {}  # by pending checkpoint
        self.aborted: set[CheckpointId] = set()  # in this attempt
        self.writing: CheckpointId | None = None  # the manifest that Finalize asked for
        self.published: set[CheckpointId] = set()
        self.counted: set[CheckpointId] = set()
        self.followed: set[CheckpointId] = set()  # declined after another subtask's decline

    def step(self) -> None:
        self.now_ms += self.rng.randint(0, 8)
        if not self.is_running:
            return self.run()
        self.act()
        return self.stop() if self.has_failed else None

    def act(self) -> None:
        match self.rng.random():
            case p if p < 0.55:
                self.acknowledge()
            case p if p < 0.60:
                self.obey(self.coordinator.on_expired(self.any_id()))
            case p if p < 0.65:
                self.decline(self.any_id(), self.rng.choice(DECLINES))
            case p if p < 0.67:
                self.stop()
            case p if p < 0.70:
                request = TriggerRequest(CheckpointKind.SAVEPOINT)
                assert self.decider.on_request(request)
            case p if p < 0.80 and self.writing is not None:
                self.report(published=self.rng.random() < 0.7)
            case _:
                self.trigger_if_due()

    def run(self) -> None:
        self.is_running, self.has_failed = True, False
        self.aborted = set()
        self.coordinator.on_running(self.subtasks)
        self.decider.on_running(self.now_ms)

    def stop(self) -> None:
        while self.writing is not None:
            self.report(published=self.rng.random() < 0.5)
        self.is_running = False
        self.obey(self.coordinator.on_stopped(Reason.TASK_FAILURE, "stopped"))
        self.decider.on_stopped()

    def trigger_if_due(self) -> None:
        decision = self.decider.next(self.now_ms)
        if isinstance(decision, Start):
            is_savepoint = decision.request.kind is CheckpointKind.SAVEPOINT
            assert is_savepoint or len(self.acknowledged) < self.concurrent_max
            self.decider.on_started(decision.request, self.now_ms)
            self.obey(self.coordinator.on_trigger(decision.request))

    def acknowledge(self) -> None:
        """Acknowledges a current, late or unknown checkpoint for a known or foreign subtask."""
        foreign = SubtaskId(Uid("foreign"), 9)
        subtask = self.rng.choice([*self.subtasks, foreign])
        checkpoint_id = self.any_id()
        if checkpoint_id in self.acknowledged and subtask != foreign:
            self.acknowledged[checkpoint_id].add(subtask)
        self.obey(self.coordinator.on_acknowledged(checkpoint_id, snapshot_of(subtask)))

    def decline(self, checkpoint_id: CheckpointId, reason: Reason) -> None:
        if checkpoint_id in self.followed and reason.counts_against_tolerance:
            self.counted.add(checkpoint_id)
        self.obey(self.coordinator.on_declined(checkpoint_id, reason, "no"))

    def report(self, *, published: bool) -> None:
        written, self.writing = self.writing, None
        assert written is not None
        if published:
            self.published.add(written)
            return self.obey(self.coordinator.on_published(written))
        return self.obey(self.coordinator.on_unpublished(written, "no space"))

    def any_id(self) -> CheckpointId:
        newest = self.injected[-1] if self.injected else CheckpointId(1)
        return CheckpointId(newest + self.rng.choice([0, 0, 0, 0, -1, -1, -2, -3, 1]))

    def obey(self, effects: list[CoordinationEffect]) -> None:
        for effect in effects:
            match effect:
                case Inject(checkpoint_id):
                    self.injected.append(checkpoint_id)
                    self.acknowledged[checkpoint_id] = set()
                case Finalize(checkpoint_id, _, snapshots):
                    assert self.writing is None, "one manifest at a time"
                    assert self.acknowledged[checkpoint_id] == set(self.subtasks)
                    assert [SubtaskId(s.vertex, s.subtask) for s in snapshots] == self.subtasks
                    self.writing = checkpoint_id
                case Complete(checkpoint_id, request):
                    assert self.acknowledged[checkpoint_id] == set(self.subtasks)
                    assert checkpoint_id in self.published
                    self.end(checkpoint_id, request)
                    self.counted = set()
                case AbortCheckpoint(checkpoint_id, request, reason):
                    assert self.writing != checkpoint_id, "an outcome is awaited"
                    assert checkpoint_id not in self.published
                    self.check_subsumed(checkpoint_id, request, reason)
                    self.end(checkpoint_id, request)
                    self.aborted.add(checkpoint_id)
                    if reason.counts_against_tolerance:
                        self.counted.add(checkpoint_id)
                    elif reason.follows_another_decline:
                        self.followed.add(checkpoint_id)
                case DiscardLate(checkpoint_id):
                    assert checkpoint_id in self.aborted
                case FailAttempt():
                    assert len(self.counted) > self.tolerable
                    self.counted = set()
                    self.has_failed = True

    def check_subsumed(
        self, checkpoint_id: CheckpointId, request: TriggerRequest, reason: Reason
    ) -> None:
        if reason is Reason.CHECKPOINT_SUBSUMED:
            assert request.kind is not CheckpointKind.SAVEPOINT
            assert checkpoint_id < max(self.published)

    def end(self, checkpoint_id: CheckpointId, request: TriggerRequest) -> None:
        del self.acknowledged[checkpoint_id]
        self.ended.append(checkpoint_id)
        self.decider.on_completed(request, self.now_ms)
