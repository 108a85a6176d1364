"""The checkpoint host over random faults: late and repeated replies, storage that fails, drivers
that die and drivers that are replaced without knowing it.

The machines, the host and the store are the real ones; slots, threads and time are played. A seed
fixes everything. The checkers know nothing of how the host works: they look at what it told the
world, what it told the slots, and what lies in the storage.
"""

import os
import random
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pipelines.domain.checkpoint_failures import CheckpointFailureReason
from pipelines.domain.errors import Retryable
from pipelines.domain.events import (
    CheckpointCompleted,
    CheckpointFailed,
    CheckpointTriggered,
    Event,
)
from pipelines.domain.ids import Attempt, CheckpointId, Uid
from pipelines.domain.setting_parsing import parse_settings
from pipelines.domain.snapshots import Manifest, OperatorSnapshot, StateHandle, SubtaskSnapshot
from pipelines.domain.status import CheckpointKind
from pipelines.protocol.fencing import AttemptFence
from pipelines.protocol.retention import RetainedPoints
from pipelines.protocol.triggering import TriggerRequest
from pipelines.runtime.checkpoint_host import CheckpointHost
from pipelines.runtime.checkpoint_surroundings import CheckpointListener, CheckpointSurroundings
from pipelines.runtime.control import Aborted, Acknowledged, Completed, Declined, Inject
from pipelines.runtime.job_events import JobEvent, LocationPrepared, ManifestWritten
from pipelines.runtime.point_files import PointFiles
from pipelines.runtime.restore_points import own_points
from pipelines.storage.filesystem import FileSystemCheckpointStore
from pipelines.storage.store import Publication
from tests.unit.runtime.fakes import SCHEMA, ListSource, ManualClock, batch_of
from tests.unit.runtime.hosted import MemorySink, joining_pipeline
from tests.unit.runtime.points import places_in, spec_of
from tests.unit.runtime.recording_attempt import RecordingAttempt, phases_of

pytestmark = pytest.mark.slow

VERTICES = ("left", "right", "both")
RETAINED = 2
STEPS = 100
INTERVAL_MS, TIMEOUT_MS = 100.0, 400
SAVEPOINT = TriggerRequest(CheckpointKind.SAVEPOINT)


@pytest.fixture(autouse=True)
def _no_machine_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only processes die here, and what they wrote survives them without being synced."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.mark.parametrize("seed", range(25))
def test_whatever_fails_points_stay_restorable_and_nothing_unused_stays(
    seed: int, tmp_path: Path
) -> None:
    world = World(random.Random(seed), tmp_path)

    for _ in range(STEPS):
        world.step()
        world.check()
    world.come_to_rest()

    world.check()
    assert world.stored() == {point.location for point in world.driver.host.points.newest_first()}
    assert_every_checkpoint_ended_once(world)
    assert_nobody_but_the_owner_completed_anything(world)


def test_the_schedules_reach_what_they_are_meant_to_reach(tmp_path: Path) -> None:
    seen: Counter[str] = Counter()
    for seed in range(8):
        world = World(random.Random(seed), tmp_path / str(seed))
        for _ in range(STEPS):
            world.step()
        seen += world.seen
        for driver in world.drivers:
            seen["completed"] += len(driver.of(CheckpointCompleted))
            seen["aborted"] += len(driver.of(CheckpointFailed))

    for event in ("completed", "aborted", "late", "died", "replaced", "refused manifest"):
        assert seen[event] >= 2, seen


def assert_every_checkpoint_ended_once(world: "World") -> None:
    """In the words of the driver that triggered it; one that died says nothing any more."""
    assert len(world.used_ids) == len(set(world.used_ids)), "an owner uses an id once"
    for driver in world.drivers:
        triggered = Counter(e.checkpoint_id for e in driver.of(CheckpointTriggered))
        ended = Counter(e.checkpoint_id for e in driver.of(CheckpointCompleted))
        ended += Counter(e.checkpoint_id for e in driver.of(CheckpointFailed) if e.checkpoint_id)
        assert ended <= triggered
        assert driver.is_dead or ended == triggered
        aborts = Counter(m.checkpoint_id for a in driver.attempts for m in a.of(Aborted))
        completions = Counter(m.checkpoint_id for a in driver.attempts for m in a.of(Completed))
        assert max([*aborts.values(), *completions.values()], default=0) <= 1


def assert_nobody_but_the_owner_completed_anything(world: "World") -> None:
    completed = [(d, e) for d in world.drivers for e in d.of(CheckpointCompleted)]
    for driver, event in completed:
        assert event.checkpoint_id in world.published_by[driver.number]


class LaterExecutor(Executor):
    """Does what it is given when it is told to, or when somebody waits for it.

    Places are made at once: how long that takes is a matter of `test_barrier_injection`.
    """

    def __init__(self) -> None:
        self.waiting: list[LaterFuture] = []

    def submit(self, call: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "LaterFuture":
        future = LaterFuture(lambda: call(*args, **kwargs))
        if call.__name__ == PointFiles._prepare.__name__:
            future.do()
        else:
            self.waiting.append(future)
        return future

    def do_one(self, rng: random.Random) -> None:
        """Two threads: the order of any two neighbours may turn."""
        if self.waiting:
            self.waiting.pop(rng.randrange(min(2, len(self.waiting)))).do()


class LaterFuture(Future[Any]):
    def __init__(self, call: Callable[[], Any]) -> None:
        super().__init__()
        self._call = call

    def do(self) -> None:
        if not self.done():
            self.set_result(self._call())

    def result(self, timeout: float | None = None) -> Any:
        self.do()
        return super().result(0)


class FailingStore(FileSystemCheckpointStore):
    """Now and then takes no manifest; remembers whose were taken."""

    def __init__(self, world: "World", driver: int, root: Path) -> None:
        super().__init__([str(root)])
        self._world, self._driver = world, driver

    def publish(self, location: str, manifest: Manifest) -> Publication:
        if self._world.is_faulty and self._world.rng.random() < 0.15:
            self._world.seen["refused manifest"] += 1
            raise Retryable("the disk is full")
        published = super().publish(location, manifest)
        if published is Publication.PUBLISHED:
            self._world.published_by[self._driver].add(manifest.checkpoint_id)
        return published


class Listener(CheckpointListener):
    def __init__(self) -> None:
        self.has_failed = False

    def checkpoint_completed(self, request: TriggerRequest, path: str) -> None:
        pass

    def checkpoint_aborted(self, request: TriggerRequest, message: str) -> None:
        pass

    def too_many_failures(self, message: str) -> None:
        self.has_failed = True


@dataclass(slots=True)
class Driver:
    """One process that believes the run is its own."""

    number: int
    host: CheckpointHost
    fence: AttemptFence
    executor: LaterExecutor
    listener: Listener
    events: list[Event]
    posted: list[JobEvent]
    attempts: list[RecordingAttempt] = field(default_factory=list)
    is_dead: bool = False
    is_running: bool = False

    def of(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]


class World:
    def __init__(self, rng: random.Random, root: Path) -> None:
        self.rng, self.root = rng, root
        self.clock = ManualClock()
        self.places = places_in(root)
        self.is_faulty = True
        self.newest_attempt = Attempt(0)
        self.seen: Counter[str] = Counter()
        self.published_by: dict[int, set[CheckpointId]] = {}
        self.drivers: list[Driver] = []
        self.events: list[list[Event]] = []
        self.used_ids: list[CheckpointId] = []
        self.writer = FileSystemCheckpointStore([str(root)])  # of the slots
        self.take_over()

    @property
    def driver(self) -> Driver:
        """The one that owns the run."""
        return self.drivers[-1]

    def step(self) -> None:
        self.clock.now_ms += self.rng.randint(0, 40)
        driver = self.rng.choice([d for d in self.drivers if not d.is_dead])
        match self.rng.random():
            case p if p < 0.50:
                self.reply(driver)
            case p if p < 0.56:
                driver.host.on_request(SAVEPOINT)
            case p if p < 0.75:
                driver.executor.do_one(self.rng)
            case p if p < 0.88:
                self.hear(driver)
            case p if p < 0.90:
                self.stop(driver)
            case p if p < 0.915:
                self.take_over()
            case _:
                self.on_time(driver)
        if driver.listener.has_failed:
            self.stop(driver)
        if not driver.is_running and driver is self.driver:
            self.begin(driver)

    def on_time(self, driver: Driver) -> None:
        driver.host.on_time()
        for event in [e for e in driver.posted if isinstance(e, LocationPrepared)]:
            driver.posted.remove(event)
            driver.host.on_prepared(event)

    def check(self) -> None:
        """Every retained point can be restored, at every instant."""
        retained = self.driver.host.points.newest_first()
        completed = any(d.of(CheckpointCompleted) for d in self.drivers)
        assert retained or not completed, "something completed, so there is a point"
        for point in retained:
            assert self.writer.verify(point.location) == []

    def take_over(self) -> None:
        """Another driver, which does not ask whether the one before it is dead or only slow."""
        if self.drivers:
            self.driver.is_dead = self.rng.random() < 0.5
            self.seen["died" if self.driver.is_dead else "replaced"] += 1
        self.drivers.append(self.new_driver(len(self.drivers)))
        self.begin(self.driver)

    def new_driver(self, number: int) -> Driver:
        settings = {
            "execution.checkpointing.interval": "100 ms",
            "execution.checkpointing.timeout": f"{TIMEOUT_MS} ms",
            "execution.checkpointing.num-retained": str(RETAINED),
            "execution.checkpointing.max-concurrent-checkpoints": "3",
            "execution.checkpointing.tolerable-failed-checkpoints": "2",
        }
        self.published_by[number] = set()
        store = FailingStore(self, number, self.root)
        self.events.append([])
        posted: list[JobEvent] = []
        fence, executor, listener = AttemptFence(), LaterExecutor(), Listener()
        surroundings = CheckpointSurroundings(
            spec=spec_of(),
            places=self.places,
            settings=parse_settings(settings),
            graph=joining_pipeline(ListSource([]), MemorySink()).graph,
            store=store,
            clock=self.clock,
            executor=executor,
            fence=fence,
            owns_run=lambda attempt: attempt == self.newest_attempt,
            emit=partial(self.emit, number),
            post=posted.append,
            draw=self.rng.uniform,
        )
        points = RetainedPoints(RETAINED, tuple(own_points(self.places, store)))
        first_id = CheckpointId(max(self.used_ids, default=0) + 1)
        host = CheckpointHost(surroundings, points, first_id, listener)
        return Driver(number, host, fence, executor, listener, self.events[number], posted)

    def emit(self, number: int, event: Event) -> None:
        """Only the owner writes the journal, from which the next driver knows the ids."""
        self.events[number].append(event)
        if isinstance(event, CheckpointTriggered) and number == len(self.drivers) - 1:
            self.used_ids.append(event.checkpoint_id)

    def begin(self, driver: Driver) -> None:
        self.newest_attempt = Attempt(self.newest_attempt + 1)
        driver.fence.on_attempt(self.newest_attempt)
        attempt = RecordingAttempt(1)
        attempt.attempt = self.newest_attempt
        driver.attempts.append(attempt)
        driver.host.on_running(attempt)
        driver.is_running, driver.listener.has_failed = True, False

    def stop(self, driver: Driver) -> None:
        if driver.is_running:
            driver.host.on_stopped(CheckpointFailureReason.CHECKPOINT_COORDINATOR_SUSPEND, "over")
        driver.is_running = False

    def hear(self, driver: Driver) -> None:
        while driver.posted:
            event = driver.posted.pop(0)
            if isinstance(event, ManifestWritten):
                driver.host.on_manifest(event)

    def reply(self, driver: Driver) -> None:
        """A subtask has written its state; it may be late, say it twice, or have failed."""
        told = driver.attempts[-1].of(Inject) if driver.is_running else []
        if not told:
            return
        inject = told[-1 - self.rng.randrange(min(4, len(told)))]
        vertex = self.rng.choice(VERTICES)
        if self.rng.random() < 0.04:
            return driver.host.on_declined(decline(inject, vertex))
        ended = {m.checkpoint_id for a in driver.attempts for m in a.of(Aborted)}
        self.seen["late"] += inject.checkpoint_id in ended
        return driver.host.on_acknowledged(self.written(inject, vertex, driver))

    def written(self, inject: Inject, vertex: str, driver: Driver) -> Acknowledged:
        """A file of its own for every reply, as uploads of different subtasks are."""
        stem = f"{vertex}-{driver.attempts[-1].attempt}-{self.rng.randrange(10**9)}"
        file = self.writer.write_batches(
            inject.location, stem, SCHEMA, [batch_of([(1, 1)])], open_format=False
        )
        state = StateHandle(
            state="seen", kind="table", file=file, key_groups=(0, 127), rows=1, schema={}
        )
        operator = OperatorSnapshot(uid=Uid(vertex), states=[state])
        return Acknowledged(
            checkpoint_id=inject.checkpoint_id,
            snapshot=SubtaskSnapshot(vertex=Uid(vertex), subtask=0, operators=[operator]),
            phases=phases_of(vertex, 0),
            source_records=0,
            watermark_ms=None,
        )

    def come_to_rest(self) -> None:
        """No more faults. Everybody finishes, then the owner completes one more checkpoint."""
        self.is_faulty = False
        for driver in self.drivers:
            if not driver.is_dead:
                self.stop(driver)
                self.finish_work(driver)
        self.begin(self.driver)
        self.finish_work(self.driver)
        before = len(self.driver.of(CheckpointCompleted))
        self.clock.now_ms += INTERVAL_MS
        self.on_time(self.driver)
        for inject in self.driver.attempts[-1].of(Inject):
            for vertex in VERTICES:
                self.driver.host.on_acknowledged(self.written(inject, vertex, self.driver))
            self.finish_work(self.driver)
        assert len(self.driver.of(CheckpointCompleted)) > before, "progress after the faults"
        self.stop(self.driver)
        self.begin(self.driver)  # which sweeps once more, behind whoever ran ahead
        self.stop(self.driver)
        self.finish_work(self.driver)

    def finish_work(self, driver: Driver) -> None:
        while driver.executor.waiting or driver.posted:
            driver.executor.do_one(self.rng)
            self.hear(driver)

    def stored(self) -> set[str]:
        """Every place in the storage that holds anything.

        A driver that does not know it was replaced may have run ahead; its places are those of
        checkpoints to come, and go with them.
        """
        roots = (self.places.checkpoints, self.places.savepoints)
        names = [(root, name) for root in roots for name in self.writer.names(root)]
        newest = max(self.used_ids)
        return {f"{r}/{n}" for r, n in names if (self.places.checkpoint_id_of(n) or 0) <= newest}


def decline(inject: Inject, vertex: str) -> Declined:
    return Declined(
        checkpoint_id=inject.checkpoint_id,
        vertex=Uid(vertex),
        subtask=0,
        reason=CheckpointFailureReason.CHECKPOINT_ASYNC_EXCEPTION,
        message="the disk is full",
    )
