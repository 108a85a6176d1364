"""Triggering: order, pause and bounds over random schedules, then named corner cases."""

import random

import pytest

from pipelines.domain.errors import InvariantViolated
from pipelines.domain.ids import RequestId
from pipelines.domain.status import CheckpointKind
from pipelines.protocol.triggering import (
    FINAL,
    PERIODIC,
    Start,
    TriggerDecider,
    TriggerRequest,
    WaitUntil,
)

INTERVAL_MS, PAUSE_MS = 100.0, 30.0


@pytest.mark.parametrize("seed", range(300))
def test_requests_keep_their_order_and_periodic_ones_their_distance(seed: int) -> None:
    rng = random.Random(seed)
    host = Host(rng, max_queued=rng.choice([2, 1000]))

    for _ in range(200):
        host.step()
    host.serve_everything()

    assert sorted(host.served) == sorted(host.accepted)


def test_a_savepoint_goes_before_a_checkpoint_that_was_asked_for_earlier() -> None:
    decider = running_decider()
    decider.on_request(asked("first"))
    decider.on_request(savepoint("second"))

    assert decider.next(0) == Start(savepoint("second"))


def test_equals_are_served_in_order_of_arrival() -> None:
    decider = running_decider()
    for name in ("one", "two"):
        decider.on_request(savepoint(name))

    assert [start_next(decider, 0), start_next(decider, 0)] == [savepoint("one"), savepoint("two")]


def test_what_a_person_asked_for_waits_for_no_pause() -> None:
    decider = running_decider()
    finish_one(decider, now_ms=100)
    decider.on_request(asked("now"))

    assert decider.next(101) == Start(asked("now"))


def test_a_periodic_one_waits_for_the_pause_after_any_checkpoint() -> None:
    decider = running_decider()
    decider.on_request(savepoint("long"))
    start_next(decider, 0)
    decider.on_ended(190)

    assert decider.next(200) == WaitUntil(220)
    assert decider.next(220) == Start(PERIODIC)


def test_nothing_starts_while_one_is_under_way() -> None:
    decider = running_decider()
    start_next(decider, 100)
    decider.on_request(savepoint("urgent"))

    assert decider.next(10_000) == WaitUntil(None)


def test_the_beat_is_kept_after_a_late_start() -> None:
    decider = running_decider()
    start_next(decider, 105)
    decider.on_ended(110)

    assert decider.next(110) == WaitUntil(200)


def test_missed_beats_are_not_made_up_for() -> None:
    decider = running_decider()
    finish_one(decider, now_ms=1000)  # ten beats late
    start_next(decider, 1030)
    decider.on_ended(1031)

    assert decider.next(1031) == WaitUntil(1100)


def test_after_the_sources_ended_the_final_one_follows_what_was_asked_for() -> None:
    decider = running_decider()
    decider.on_request(asked("last wish"))
    decider.on_sources_ended()

    first = start_next(decider, 0)
    decider.on_ended(1)

    assert first == asked("last wish")
    assert decider.next(1) == Start(FINAL)


def test_a_final_one_that_failed_is_tried_again() -> None:
    decider = running_decider()
    decider.on_sources_ended()
    start_next(decider, 0)
    decider.on_ended(5)

    assert decider.next(5) == Start(FINAL)


def test_requests_outlive_an_attempt_and_the_end_of_the_sources_does_not() -> None:
    decider = running_decider()
    decider.on_request(savepoint("kept"))
    decider.on_sources_ended()
    decider.on_stopped()
    while_stopped = decider.next(50)
    decider.on_running(60)

    assert while_stopped == WaitUntil(None)
    assert start_next(decider, 60) == savepoint("kept")
    decider.on_ended(61)
    assert decider.next(61) == WaitUntil(160)  # not the final one: the sources read again


def test_an_attempt_that_stopped_during_a_checkpoint_leaves_nothing_under_way() -> None:
    decider = running_decider()
    start_next(decider, 100)
    decider.on_stopped()
    decider.on_running(200)

    assert decider.next(300) == Start(PERIODIC)


def test_a_full_queue_refuses_and_stays_as_it_was() -> None:
    decider = running_decider(max_queued=2)

    answers = [decider.on_request(asked(name)) for name in "abc"]

    assert answers == [True, True, False]
    assert decider.drop_requests() == [asked("a"), asked("b")]
    assert decider.drop_requests() == []


def test_starting_two_at_once_or_none_while_stopped_is_a_bug() -> None:
    decider = running_decider()
    start_next(decider, 100)

    with pytest.raises(InvariantViolated):
        decider.on_started(PERIODIC, 101)
    with pytest.raises(InvariantViolated):
        TriggerDecider(INTERVAL_MS, PAUSE_MS).on_started(PERIODIC, 0)


def running_decider(*, max_queued: int = 1000) -> TriggerDecider:
    decider = TriggerDecider(INTERVAL_MS, PAUSE_MS, max_queued)
    decider.on_running(0)
    return decider


def start_next(decider: TriggerDecider, now_ms: float) -> TriggerRequest:
    """Start what is due; what was under way before is over."""
    if decider.next(now_ms) == WaitUntil(None):
        decider.on_ended(now_ms)
    decision = decider.next(now_ms)
    assert isinstance(decision, Start)
    decider.on_started(decision.request, now_ms)
    return decision.request


def finish_one(decider: TriggerDecider, now_ms: float) -> None:
    start_next(decider, now_ms)
    decider.on_ended(now_ms)


def asked(name: str) -> TriggerRequest:
    return TriggerRequest(CheckpointKind.CHECKPOINT, RequestId(name))


def savepoint(name: str) -> TriggerRequest:
    return TriggerRequest(CheckpointKind.SAVEPOINT, RequestId(name))


class Host:
    """Drives a decider at random and holds a plain model against each of its answers."""

    def __init__(self, rng: random.Random, *, max_queued: int) -> None:
        self.rng = rng
        self.now_ms = 0.0
        self.decider = TriggerDecider(INTERVAL_MS, PAUSE_MS, max_queued)
        self.max_queued = max_queued
        self.savepoints: list[TriggerRequest] = []
        self.asked: list[TriggerRequest] = []
        self.is_running = self.is_under_way = self.has_ended = False
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
            case p if p < 0.60 and self.is_under_way:
                self.end()
            case _:
                self.ask()

    def run(self) -> None:
        self.is_running, self.has_ended = True, False
        self.last_periodic_ms = self.now_ms
        self.decider.on_running(self.now_ms)

    def stop(self) -> None:
        self.is_running = self.is_under_way = False
        self.decider.on_stopped()

    def end(self) -> None:
        self.is_under_way, self.last_end_ms = False, self.now_ms
        self.decider.on_ended(self.now_ms)

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
        if not self.is_running or self.is_under_way:
            assert decision == WaitUntil(None)
            return
        queue = self.savepoints or self.asked
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
        self.is_under_way = True
        self.decider.on_started(decision.request, self.now_ms)

    def check_periodic(self, request: TriggerRequest) -> None:
        assert request is PERIODIC
        if self.last_end_ms is not None:
            assert self.now_ms >= self.last_end_ms + PAUSE_MS
        self.last_periodic_ms = self.now_ms

    def serve_everything(self) -> None:
        """A queue that is served gets empty: nobody starves once requests stop coming."""
        self.stop()
        self.run()
        while self.savepoints or self.asked:
            self.ask()
            self.end()
