"""The records to read again after a failure are the difference of two positions.

The tests compare the board and the watch with a model of a run that fails again and again, and of
successive drivers. The figure is the furthest position that the slots of any attempt have reported,
less the position of the point. No rate may claim more records than were read.
"""

import random
from dataclasses import dataclass, field

import pytest

from pipelines.domain.events import Event, MetricsSampled, RecoveryPhaseReached
from pipelines.domain.ids import CheckpointId
from pipelines.domain.status import JobStatus, RecoveryPhase
from pipelines.runtime.control import Sampled
from pipelines.runtime.master.attempt.watchers import RecoveryWatch
from pipelines.runtime.master.slots.metrics_board import MetricsBoard
from tests.unit.runtime.fakes import ManualClock

SPLITS = 6
SLOTS = 3
Positions = list[int]
"""The number of records before the position in each split."""


@pytest.mark.parametrize("seed", range(60))
def test_the_records_to_replay_are_the_difference_of_two_positions(seed: int) -> None:
    world = World(random.Random(seed))

    for _ in range(250):
        world.step()

    assert world.recoveries
    for said, at_failure, at_point in world.recoveries:
        assert said == max(0, at_failure - at_point)
    assert world.said_to_be_read <= world.really_read + 1e-6


@dataclass
class World:
    """A model of a run; `heard` is the furthest position that all slots of an attempt reported."""

    rng: random.Random
    clock: ManualClock = field(default_factory=ManualClock)
    recoveries: list[tuple[int | None, int, int]] = field(default_factory=list)
    really_read: int = 0
    said_to_be_read: float = 0.0
    heard: int = 0

    def __post_init__(self) -> None:
        self.points: list[Positions] = [[0] * SPLITS]
        self.told: dict[int, int] = {}
        self.last_report: MetricsSampled | None = None
        self._new_driver()
        self._begin(self.points[0])

    def step(self) -> None:
        self.clock.now_ms += self.rng.uniform(1, 400)
        act, weight = zip(
            (self._read, 6),
            (self._sample, 8),
            (self._report, 4),
            (self._complete, 1),
            (self._fail, 1),
            (self._lose_driver, 0.3),
            strict=True,
        )
        self.rng.choices(act, weight)[0]()

    def _read(self) -> None:
        split, count = self.rng.randrange(SPLITS), self.rng.randint(1, 5_000)
        self.now[split] += count
        self.really_read += count

    def _sample(self) -> None:
        slot = self.rng.randrange(SLOTS)
        records = sum(self.now[split] for split in range(SPLITS) if self.owner[split] == slot)
        self.told[slot] = records
        self.board.on_sampled(
            slot, Sampled(subtasks=[], source_records=records, resident_bytes=1, counters={})
        )
        if len(self.told) == SLOTS:
            self.heard = max(self.heard, sum(self.told.values()))
        assert self.board.reached_records == self.heard

    def _report(self) -> None:
        before = self.clock.now_ms - self.reported_ms
        self.last_report = self.board.report(JobStatus.RUNNING, None, None)
        self.said_to_be_read += self.last_report.records_per_s * max(before, 1.0) / 1000
        self.reported_ms = self.clock.now_ms
        assert self.last_report.reached_records == self.heard

    def _complete(self) -> None:
        self.points.append(list(self.now))

    def _fail(self) -> None:
        self.watch.on_failure(self.clock.now_ms, self.board.reached_records)
        self._recover()

    def _lose_driver(self) -> None:
        """Replaces the driver; what it has heard and not yet reported is lost."""
        said = self.last_report.reached_records if self.last_report else 0
        self.heard = said or 0
        self._new_driver(self.heard)
        self.watch.on_failure(self.clock.now_ms, self.board.reached_records)
        self._recover()

    def _recover(self) -> None:
        """Goes back to the newest point, or to the one before it if the newest is damaged."""
        if len(self.points) > 1 and self.rng.random() < 0.2:
            self.points.pop()
        point = self.points[-1]
        self.recoveries.append((None, self.heard, sum(point)))
        self._begin(point)

    def _begin(self, point: Positions) -> None:
        self.now, self.told = list(point), {}
        self.owner = [self.rng.randrange(SLOTS) for _ in range(SPLITS)]
        self.heard = max(self.heard, sum(point))
        self.board.on_attempt_ended(sum(point))
        self.watch.on_decided(CheckpointId(1), "", sum(point))

    def _new_driver(self, reached: int = 0) -> None:
        self.board = MetricsBoard(self.clock, SLOTS, reached)  # type: ignore[arg-type]
        self.watch = RecoveryWatch(self.clock, self._emit)  # type: ignore[arg-type]
        self.reported_ms = self.clock.now_ms

    def _emit(self, event: Event) -> None:
        if isinstance(event, RecoveryPhaseReached) and event.phase is RecoveryPhase.DECIDE:
            _, heard, point = self.recoveries[-1]
            self.recoveries[-1] = (event.records_to_replay, heard, point)


def test_at_most_once_a_recovery_has_nothing_to_replay_or_catch_up_with() -> None:
    events: list[Event] = []
    clock = ManualClock()
    board = MetricsBoard(clock, 1)  # type: ignore[arg-type]
    watch = RecoveryWatch(clock, events.append)  # type: ignore[arg-type]
    sample = Sampled(subtasks=[], source_records=900, resident_bytes=1, counters={})
    board.on_sampled(0, sample)

    watch.on_failure(clock.now_ms, board.reached_records)
    board.on_attempt_ended(500, reads_again=False)
    watch.on_decided(CheckpointId(1), "", 500, reads_again=False)

    decided = events[-1]
    assert isinstance(decided, RecoveryPhaseReached)
    assert decided.records_to_replay == 0
    assert board.reached_records == 500


def test_the_ten_second_mean_smooths_the_speed_of_a_source_with_batches() -> None:
    """Single samples flip between 0 and a batch of 60; the mean is 30 records per second."""
    clock = ManualClock()
    board = MetricsBoard(clock, 1)  # type: ignore[arg-type]
    singles, means = [], []

    for second in range(1, 41):
        clock.now_ms += 1_000
        records = 60 * (second // 2)
        sample = Sampled(subtasks=[], source_records=records, resident_bytes=1, counters={})
        board.on_sampled(0, sample)
        told = board.report(JobStatus.RUNNING, None, None)
        singles.append(told.records_per_s)
        means.append(told.mean_records_per_s)

    assert set(singles) == {0.0, 60.0}
    assert set(means[10:]) == {30.0}

    board.on_attempt_ended(2_000)
    assert board.report(JobStatus.RESTARTING, None, None).mean_records_per_s == 0.0
