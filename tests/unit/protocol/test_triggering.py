"""Triggering: order, pause and bounds over random schedules, then named corner cases."""

import random

import pytest

from pipelines.domain.checkpoint_failures import CheckpointFailureReason
from pipelines.domain.errors import InvariantViolated
from pipelines.domain.ids import RequestId
from pipelines.domain.status import CheckpointKind
from pipelines.protocol.triggering import (
    FINAL,
    PERIODIC,
    WISH_AFTER_FAILURE_MS,
    Refuse,
    Start,
    TriggerDecider,
    TriggerRequest,
    TriggerRules,
    WaitUntil,
)

INTERVAL_MS, PAUSE_MS = 100.0, 30.0


@pytest.mark.parametrize("seed", range(300))
def test_requests_keep_their_order_and_periodic_checkpoints_their_pause(seed: int) -> None:
    rng = random.Random(seed)
    host = Host(rng, max_queued=rng.choice([2, 1000]))

    for _ in range(200):
        host.step()
    host.serve_everything()

    assert sorted(host.served) == sorted(host.accepted)


def test_a_savepoint_goes_before_a_checkpoint_requested_earlier() -> None:
    decider = running_decider()
    decider.on_request(asked("first"))
    decider.on_request(savepoint("second"))

    assert decider.next(0) == Start(savepoint("second"))


def test_requests_of_one_kind_are_served_in_order_of_arrival() -> None:
    decider = running_decider()
    for name in ("one", "two"):
        decider.on_request(savepoint(name))

    assert [start_next(decider, 0), start_next(decider, 0)] == [savepoint("one"), savepoint("two")]


def test_a_requested_checkpoint_waits_for_no_pause() -> None:
    decider = running_decider()
    finish_one(decider, now_ms=100)
    decider.on_request(asked("now"))

    assert decider.next(101) == Start(asked("now"))


def test_a_periodic_checkpoint_waits_for_the_pause_after_any_checkpoint() -> None:
    decider = running_decider()
    decider.on_request(savepoint("long"))
    start_next(decider, 0)
    decider.on_completed(PERIODIC, 190)

    assert decider.next(200) == WaitUntil(220)
    assert decider.next(220) == Start(PERIODIC)


def test_nothing_but_a_forced_savepoint_starts_while_all_places_are_taken() -> None:
    decider = running_decider()
    start_next(decider, 100)
    decider.on_request(asked("patient"))

    without_savepoint = decider.next(10_000)
    decider.on_request(savepoint("urgent"))

    assert without_savepoint == WaitUntil(None)
    assert decider.next(10_000) == Start(savepoint("urgent"))


def test_an_unforced_savepoint_waits_for_a_free_place() -> None:
    decider = running_decider(forces_savepoints=False)
    start_next(decider, 100)
    decider.on_request(savepoint("patient"))

    assert decider.next(10_000) == WaitUntil(None)
    decider.on_completed(PERIODIC, 10_000)
    assert decider.next(10_000) == Start(savepoint("patient"))


def test_as_many_checkpoints_start_as_there_are_places() -> None:
    decider = running_decider(min_pause_ms=0, max_concurrent=3)

    for now_ms in (100, 200, 300):
        assert decider.next(now_ms) == Start(PERIODIC)
        decider.on_started(PERIODIC, now_ms)

    assert decider.next(400) == WaitUntil(None)
    decider.on_completed(PERIODIC, 410)
    assert decider.next(410) == Start(PERIODIC)


def test_not_even_a_savepoint_starts_while_the_run_is_being_stopped() -> None:
    decider = running_decider(min_pause_ms=0, max_concurrent=3)
    stop = TriggerRequest(CheckpointKind.SAVEPOINT, RequestId("stop"), stops_run=True)
    decider.on_request(stop)
    start_next(decider, 0)
    decider.on_request(savepoint("too late"))

    while_stopping = decider.next(1_000)
    decider.on_aborted(stop, 1_000)  # it failed: the run goes on

    assert while_stopping == WaitUntil(None)
    assert decider.next(1_000) == Start(savepoint("too late"))


def test_the_first_periodic_checkpoint_starts_after_the_given_delay() -> None:
    decider = TriggerDecider(rules=TriggerRules(INTERVAL_MS))
    decider.on_running(1_000, first_delay_ms=40)

    assert decider.next(1_000) == WaitUntil(1_040)
    decider.on_started(PERIODIC, 1_040)
    decider.on_completed(PERIODIC, 1_041)
    assert decider.next(1_041) == WaitUntil(1_140)


def test_without_an_interval_only_requested_and_final_checkpoints_start() -> None:
    decider = running_decider(interval_ms=None)
    idle = decider.next(1_000_000)
    decider.on_request(asked("once"))

    assert idle == WaitUntil(None)
    assert start_next(decider, 1_000_000) == asked("once")
    decider.on_completed(asked("once"), 1_000_001)
    decider.on_sources_ended()
    assert decider.next(1_000_001) == Start(FINAL)


def test_a_wanted_reservation_advances_the_checkpoint_but_keeps_the_pause() -> None:
    decider = running_decider(interval_ms=1_000.0, min_pause_ms=200.0)
    finish_one(decider, now_ms=1_000)

    decider.on_reservation_wanted(1_050)
    waiting = decider.next(1_050)
    started = decider.next(1_200)

    assert (waiting, started) == (WaitUntil(1_200), Start(PERIODIC))


def test_a_reservation_wanted_soon_after_a_failed_checkpoint_waits_a_moment() -> None:
    decider = running_decider(interval_ms=60_000.0, min_pause_ms=0.0)
    decider.on_aborted(start_next(decider, 60_000), 60_100)

    decider.on_reservation_wanted(60_100)
    after_a_failure = decider.next(60_100)
    decider.on_completed(start_next(decider, 60_100 + WISH_AFTER_FAILURE_MS), 61_200)
    decider.on_reservation_wanted(61_200)

    assert after_a_failure == WaitUntil(60_100 + WISH_AFTER_FAILURE_MS)
    assert decider.next(61_200) == Start(PERIODIC)


def test_a_reservation_wanted_early_starts_a_checkpoint_once_all_subtasks_run() -> None:
    decider = TriggerDecider(rules=TriggerRules(60_000.0))
    decider.on_reservation_wanted(10)
    before = decider.next(10)

    decider.on_running(20, 30_000)
    first = decider.next(20)
    decider.on_stopped()
    decider.on_running(30, 30_000)

    assert (before, first) == (WaitUntil(None), Start(PERIODIC))
    assert decider.next(30) == WaitUntil(30_030), "it was of the attempt before"


def test_without_periodic_checkpoints_a_wanted_reservation_starts_none() -> None:
    decider = running_decider(interval_ms=None)

    decider.on_reservation_wanted(50)

    assert decider.next(1_000_000) == WaitUntil(None)


def test_a_new_interval_restarts_the_schedule_and_a_new_pause_applies_at_once() -> None:
    decider = running_decider()
    finish_one(decider, now_ms=100)

    decider.on_rules(TriggerRules(10.0, 30.0), 105)
    shorter = decider.next(105)
    decider.on_rules(TriggerRules(10.0), 105)
    without_pause = decider.next(105)
    decider.on_rules(TriggerRules(None), 106)

    assert (shorter, without_pause) == (WaitUntil(130), WaitUntil(115))
    assert decider.next(10_000) == WaitUntil(None)


def test_disallowed_finished_sources_block_checkpoints_until_all_finished() -> None:
    decider = running_decider(allows_finished_sources=False)
    reason = CheckpointFailureReason.NOT_ALL_REQUIRED_TASKS_RUNNING
    decider.on_source_finished()
    decider.on_request(savepoint("one"))

    assert decider.next(0) == Refuse(savepoint("one"), reason)
    decider.on_refused(savepoint("one"), 0)
    assert decider.next(0) == WaitUntil(100)
    assert decider.next(100) == Refuse(PERIODIC, reason)
    decider.on_refused(PERIODIC, 100)
    assert decider.next(101) == WaitUntil(200)
    decider.on_sources_ended()
    assert decider.next(101) == Start(FINAL)


@pytest.mark.parametrize("rules", [TriggerRules(1.0, 1.0, 2), TriggerRules(1.0, 0.0, 0)])
def test_a_pause_with_concurrency_or_a_concurrency_of_zero_is_a_bug(rules: TriggerRules) -> None:
    with pytest.raises(InvariantViolated):
        TriggerDecider(rules=rules)
    with pytest.raises(InvariantViolated):
        running_decider().on_rules(rules, 0)


def test_a_late_start_does_not_shift_the_following_checkpoints() -> None:
    decider = running_decider()
    start_next(decider, 105)
    decider.on_completed(PERIODIC, 110)

    assert decider.next(110) == WaitUntil(200)


def test_missed_intervals_are_not_made_up_for() -> None:
    decider = running_decider()
    finish_one(decider, now_ms=1000)  # ten beats late
    start_next(decider, 1030)
    decider.on_completed(PERIODIC, 1031)

    assert decider.next(1031) == WaitUntil(1100)


def test_the_final_checkpoint_follows_pending_requests_after_the_sources_ended() -> None:
    decider = running_decider()
    decider.on_request(asked("last wish"))
    decider.on_sources_ended()

    first = start_next(decider, 0)
    decider.on_completed(PERIODIC, 1)

    assert first == asked("last wish")
    assert decider.next(1) == Start(FINAL)


def test_a_failed_final_checkpoint_is_tried_again() -> None:
    decider = running_decider()
    decider.on_sources_ended()
    start_next(decider, 0)
    decider.on_completed(FINAL, 5)

    assert decider.next(5) == Start(FINAL)


def test_requests_outlive_an_attempt_but_the_end_of_its_sources_does_not() -> None:
    decider = running_decider()
    decider.on_request(savepoint("kept"))
    decider.on_sources_ended()
    decider.on_stopped()
    while_stopped = decider.next(50)
    decider.on_running(60)

    assert while_stopped == WaitUntil(None)
    assert start_next(decider, 60) == savepoint("kept")
    decider.on_completed(PERIODIC, 61)
    assert decider.next(61) == WaitUntil(160)  # no final checkpoint: the sources read again


def test_an_attempt_that_stopped_during_a_checkpoint_leaves_nothing_under_way() -> None:
    decider = running_decider()
    start_next(decider, 100)
    decider.on_stopped()
    decider.on_running(200)

    assert decider.next(300) == Start(PERIODIC)


def test_a_full_queue_refuses_requests_and_stays_unchanged() -> None:
    decider = running_decider(max_queued=2)

    answers = [decider.on_request(asked(name)) for name in "abc"]

    assert answers == [True, True, False]
    assert [start_next(decider, 0), start_next(decider, 0)] == [asked("a"), asked("b")]
    assert isinstance(decider.next(0), WaitUntil)


def test_starting_a_second_checkpoint_or_one_while_stopped_is_a_bug() -> None:
    decider = running_decider()
    start_next(decider, 100)

    with pytest.raises(InvariantViolated):
        decider.on_started(PERIODIC, 101)
    with pytest.raises(InvariantViolated):
        TriggerDecider(rules=TriggerRules(INTERVAL_MS)).on_started(PERIODIC, 0)


def running_decider(
    *,
    max_queued: int = 1000,
    interval_ms: float | None = INTERVAL_MS,
    min_pause_ms: float = PAUSE_MS,
    max_concurrent: int = 1,
    forces_savepoints: bool = True,
    allows_finished_sources: bool = True,
) -> TriggerDecider:
    rules = TriggerRules(
        interval_ms, min_pause_ms, max_concurrent, forces_savepoints, allows_finished_sources
    )
    decider = TriggerDecider(rules=rules, max_queued=max_queued)
    decider.on_running(0)
    return decider


def start_next(decider: TriggerDecider, now_ms: float) -> TriggerRequest:
    """Starts the request that is due. If no place is free, one under way completes first."""
    if not decider.has_free_place:
        decider.on_completed(PERIODIC, now_ms)
    decision = decider.next(now_ms)
    assert isinstance(decision, Start)
    decider.on_started(decision.request, now_ms)
    return decision.request


def finish_one(decider: TriggerDecider, now_ms: float) -> None:
    decider.on_completed(start_next(decider, now_ms), now_ms)


def asked(name: str) -> TriggerRequest:
    return TriggerRequest(CheckpointKind.CHECKPOINT, RequestId(name))


def savepoint(name: str) -> TriggerRequest:
    return TriggerRequest(CheckpointKind.SAVEPOINT, RequestId(name))


class Host:
    """Drives a decider at random and compares each of its answers with a plain model."""

    def __init__(self, rng: random.Random, *, max_queued: int) -> None:
        self.rng = rng
        self.now_ms = 0.0
        self.concurrent_max = rng.choice([1, 1, 2, 3])
        self.pause_ms = PAUSE_MS if self.concurrent_max == 1 else 0.0
        self.forces = rng.random() < 0.5
        rules = TriggerRules(INTERVAL_MS, self.pause_ms, self.concurrent_max, self.forces)
        self.decider = TriggerDecider(rules=rules, max_queued=max_queued)
        self.max_queued = max_queued
        self.savepoints: list[TriggerRequest] = []
        self.asked: list[TriggerRequest] = []
        self.is_running = self.has_ended = False
        self.under_way: list[TriggerRequest] = []
        self.last_end_ms: float | None = None
        self.last_periodic_ms: float | None = None
        self.accepted: list[str] = []
        self.served: list[str] = []

    def step(self) -> None:
        self.now_ms += self.rng.choice([0, 1, 10, 40, 150])
        match self.rng.random():
            case p if p < 0.05:
                self.stop()
            case p if p < 0.15 and not self.is_running:
                self.run()
            case p if p < 0.20 and self.is_running:
                self.decider.on_sources_ended()
                self.has_ended = True
            case p if p < 0.40:
                self.request()
            case p if p < 0.60 and self.under_way:
                self.end()
            case _:
                self.ask()

    def run(self) -> None:
        self.is_running, self.has_ended = True, False
        self.last_periodic_ms = self.now_ms
        self.decider.on_running(self.now_ms)

    def stop(self) -> None:
        self.is_running = False
        self.under_way = []
        self.decider.on_stopped()

    def end(self) -> None:
        ended = self.under_way.pop(self.rng.randrange(len(self.under_way)))
        self.last_end_ms = self.now_ms
        self.decider.on_completed(ended, self.now_ms)

    def request(self) -> None:
        name = f"request {self.rng.random()}"
        new = self.rng.choice([asked, savepoint])(name)
        has_room = len(self.savepoints) + len(self.asked) < self.max_queued
        assert self.decider.on_request(new) == has_room
        if has_room:
            self.accepted.append(name)
            (self.savepoints if new.kind is CheckpointKind.SAVEPOINT else self.asked).append(new)

    def ask(self) -> None:
        decision = self.decider.next(self.now_ms)
        assert not isinstance(decision, Refuse)
        is_full = len(self.under_way) >= self.concurrent_max
        queue = self.savepoints or self.asked
        if is_full:
            queue = self.savepoints if self.forces else []
        if not self.is_running or FINAL in self.under_way or (is_full and not queue):
            assert decision == WaitUntil(None)
            return
        if isinstance(decision, WaitUntil):
            assert not queue
            assert not self.has_ended
            assert decision.monotonic_ms is not None
            assert decision.monotonic_ms > self.now_ms
            return
        if queue:
            assert decision.request is queue.pop(0)
            self.served.append(str(decision.request.request_id))
        elif self.has_ended:
            assert decision.request is FINAL
        else:
            self.check_periodic(decision.request)
        self.under_way.append(decision.request)
        self.decider.on_started(decision.request, self.now_ms)

    def check_periodic(self, request: TriggerRequest) -> None:
        assert request is PERIODIC
        if self.last_end_ms is not None:
            assert self.now_ms >= self.last_end_ms + self.pause_ms
        self.last_periodic_ms = self.now_ms

    def serve_everything(self) -> None:
        """Serves the queue until it is empty: no request starves once requests stop coming."""
        self.stop()
        self.run()
        while self.savepoints or self.asked:
            self.ask()
            self.end()
