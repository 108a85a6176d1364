"""One seed: a random dataflow, run by the real master and subtasks under random order and faults.

A seed fixes the dataflow, its mode and settings, the order of all turns, kills of slots and of the
driver, storage that fails, and restores at other parallelisms. What came of it is left to the
checkers.
"""

import hashlib
import itertools
import json
import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from unittest.mock import patch

import pyarrow as pa

from pipelines.bus.inbox import Inbox
from pipelines.bus.journal import JournalWriter, read_journal
from pipelines.bus.lease import Lease
from pipelines.channels.gate import Gate
from pipelines.connectors.positions import SplitPositions
from pipelines.domain.commands import Cancel, StopWithSavepoint, TakeSavepoint
from pipelines.domain.errors import Retryable
from pipelines.domain.events import CheckpointCompleted, Event, RunStarted
from pipelines.domain.ids import ChannelId, CheckpointId, RequestId, RunId
from pipelines.domain.places import SnapshotPlaces
from pipelines.domain.run import RunDirectory, RunSpec
from pipelines.domain.setting_parsing import parse_settings
from pipelines.domain.snapshots import FileHandle, Manifest
from pipelines.domain.status import JobStatus
from pipelines.flows.registry import flow
from pipelines.runtime.faults import NO_FAULTS
from pipelines.runtime.hosting import MasterHosting
from pipelines.runtime.job_events import CommandArrived
from pipelines.runtime.job_master import JobMaster
from pipelines.runtime.run_parts import RunParts
from pipelines.storage.filesystem import FileSystemCheckpointStore
from pipelines.storage.store import Publication
from tests.simulation.graphs import FLOW_NAME, Plan, draw
from tests.simulation.hosts import Chores, Door, SimulatedClock, Stages
from tests.simulation.outside import WORLDS, Part, World

TURNS_MAX = 60_000
FAULTY_TURNS = 1_500
MODES: dict[str, dict[str, str]] = {
    "aligned": {},
    "unaligned": {"execution.checkpointing.unaligned.enabled": "true"},
    "timeout": {
        "execution.checkpointing.unaligned.enabled": "true",
        "execution.checkpointing.aligned-checkpoint-timeout": "40 ms",
    },
    "concurrent": {"execution.checkpointing.max-concurrent-checkpoints": "2"},
    "at least once": {"execution.checkpointing.mode": "AT_LEAST_ONCE"},
}
GATES_BYTES = (60, 400, 8 << 20)
"""Capacities of channels: from one batch at a time to never full."""


class NoProgress(AssertionError):
    """The faults have stopped and the run does not come to its end."""


@dataclass(frozen=True)
class Faults:
    """Chances: per turn, `fail_write` per write."""

    kill_slot: float = 0.0
    kill_driver: float = 0.0
    fail_write: float = 0.0
    savepoint: float = 0.0


NONE = Faults()
KEPT = 0.6
"""Part of the points that is copied for the cut equation."""
USUAL = Faults(kill_slot=0.0015, kill_driver=0.0007, fail_write=0.03, savepoint=0.002)


@dataclass
class Outcome:
    """What a seed has left behind."""

    seed: int
    root: Path
    mode: str
    plan: Plan
    world: World
    store: FileSystemCheckpointStore
    directories: list[RunDirectory] = field(default_factory=list)
    seen: Counter[str] = field(default_factory=Counter)
    kept: list[str] = field(default_factory=list)  # copies of points, as they completed
    trace: str = ""
    events: list[Event] = field(default_factory=list)

    def of(self, *kinds: type[Event]) -> list[Event]:
        return [event for event in self.events if isinstance(event, kinds)]

    def journalled(self) -> list[Event]:
        read = (read_journal(d.journal_file, 0)[0] for d in self.directories)
        return [each.event for each in itertools.chain(*read)]

    def points(self) -> list[str]:
        """The completed points that are still there, of all runs."""
        roots = [str(d.path / "checkpoints") for d in self.directories]
        roots.append(str(self.directories[0].path.parent.parent / "savepoints"))
        return [path for root in roots for path in self.store.published(root)]


class FailingStore(FileSystemCheckpointStore):
    """Writes and publications fail now and then. Of some points a copy is kept as they complete,
    so that they can be judged although retention deletes them."""

    def __init__(
        self, roots: list[str], fails: Callable[[], bool], keeps: Callable[[], Path | None]
    ) -> None:
        super().__init__(roots)
        self._fails = fails
        self._keeps = keeps

    def write_batches(
        self,
        location: str,
        stem: str,
        schema: pa.Schema,
        batches: Iterable[pa.RecordBatch],
        *,
        open_format: bool = False,
    ) -> FileHandle:
        if self._fails():
            raise Retryable("the simulated disk is full")
        return super().write_batches(location, stem, schema, batches, open_format=open_format)

    def publish(self, location: str, manifest: Manifest) -> Publication:
        if self._fails():
            raise Retryable("the simulated disk is full")
        published = super().publish(location, manifest)
        copy = self._keeps()
        if copy is not None:
            shutil.copytree(location, copy)
        return published


class Simulation:
    """Hosts one run after the other, each from a point of the one before."""

    def __init__(self, seed: int, root: Path, *, faults: Faults = USUAL) -> None:
        self.rng = random.Random(seed)
        self.plan = draw(random.Random(seed))
        self.mode = self.rng.choice(list(MODES))
        self.root = root
        self.world_name = f"world-{seed}"
        self._seed = seed
        self._faults = faults
        self._turns = 0
        self._clock = SimulatedClock()
        self._digest = hashlib.blake2b(digest_size=8)
        self._requests = itertools.count()
        self._capacity = self.rng.choice(GATES_BYTES)
        store = FailingStore([str(root)], self._write_fails, self._place_to_keep)
        world = WORLDS[self.world_name] = World()
        self.outcome = Outcome(seed, root, self.mode, self.plan, world, store)

    def run(self) -> Outcome:
        """One to three runs; the last one reads everything."""
        runs, restore_from = self.rng.choice([1, 2, 3]), None
        for number in range(runs):
            stops_after = None if number == runs - 1 else self.rng.randint(300, 3_000)
            is_over = self.run_once(f"run-{number}", restore_from, self.plan.whole(), stops_after)
            if is_over:
                break
            points = self.outcome.points()
            newest = sorted(points, key=lambda p: self.outcome.store.manifest(p).checkpoint_id)
            restore_from = self.rng.choice(newest[-3:]) if points else restore_from
        return self._closed()

    def _closed(self) -> Outcome:
        outcome = self.outcome
        outcome.trace = self._digest.hexdigest()
        outcome.events = outcome.journalled()
        outcome.seen["restored"] = sum(
            event.restored_from is not None
            for event in outcome.events
            if isinstance(event, RunStarted)
        )
        outcome.seen["in-flight records kept"] = sum(
            event.buffered_records > 0
            for event in outcome.events
            if isinstance(event, CheckpointCompleted)
        )
        return outcome

    def run_once(
        self, run: str, restore_from: str | None, part: Part, stops_after: int | None = None
    ) -> bool:
        """False: it was stopped before it had read everything. Raises NoProgress."""
        spec = self._spec(RunId(run), restore_from, part)
        directory = RunDirectory.of(self.root, FLOW_NAME, spec.run_id)
        directory.path.mkdir(parents=True)
        self.outcome.directories.append(directory)
        self._turns = 0
        zombies: list[Stages] = []
        with patch("pipelines.runtime.deployment.Gate", self._gate):
            while True:
                driver = Driver(directory, spec, self._clock, self.rng, self.outcome.store)
                ended = self._drive(driver, zombies, stops_after)
                zombies.append(driver.stages)
                if ended is not None:
                    acted = sum(stages.zombie_turns for stages in zombies)
                    self.outcome.seen["zombie acted"] += acted
                    return ended is JobStatus.FINISHED and not driver.was_stopped
                self.outcome.seen["driver killed"] += 1

    def _drive(
        self, driver: "Driver", zombies: list[Stages], stops_after: int | None
    ) -> JobStatus | None:
        """None: the driver was killed."""
        while not driver.master.has_ended:
            self._turns += 1
            if self._turns > TURNS_MAX:
                raise NoProgress(f"after {TURNS_MAX} turns: {self.outcome.journalled()[-5:]}")
            self._clock.now_ms += self.rng.uniform(0.05, 2.5)
            if self._strikes(self._faults.kill_driver):
                driver.kill()
                return None
            self._strike_a_slot(driver.stages)
            self._ask(driver, stops_after)
            self._take_turn([driver.stages, *zombies], driver)
        return driver.finish()

    def _take_turn(self, stages: list[Stages], driver: "Driver") -> None:
        turns = [turn for each in stages for turn in each.turns()]
        turns.append(lambda: driver.chores.do_one(self.rng))
        turns += [lambda: driver.master.take_turn(may_wait=False)] * 3
        index = self.rng.randrange(len(turns))
        self._digest.update(f"{len(turns)} {index};".encode())
        turns[index]()

    def _strike_a_slot(self, stages: Stages) -> None:
        alive = [slot for slot in stages.slots if not slot.is_dead and not slot.has_ended]
        if alive and self._strikes(self._faults.kill_slot):
            stages.kill(self.rng.choice(alive))
            self.outcome.seen["slot killed"] += 1

    def _ask(self, driver: "Driver", stops_after: int | None) -> None:
        asked = {
            "request_id": RequestId(f"request-{next(self._requests)}"),
            "requested_by": "somebody",
            "reason": "a simulation",
        }
        if stops_after is not None and self._turns >= stops_after and not driver.was_stopped:
            driver.was_stopped = True
            kind = self.rng.choice([StopWithSavepoint, Cancel])
            driver.master.post(CommandArrived(kind(**asked)))
            self.outcome.seen[kind.__name__] += 1
        elif self._strikes(self._faults.savepoint):
            driver.master.post(CommandArrived(TakeSavepoint(**asked)))

    def _write_fails(self) -> bool:
        return self._strikes(self._faults.fail_write)

    def _place_to_keep(self) -> Path | None:
        if self._faults is NONE or self.rng.random() > KEPT:
            return None
        place = self.root / "kept" / f"point-{len(self.outcome.kept)}"
        self.outcome.kept.append(str(place))
        return place

    def _strikes(self, chance: float) -> bool:
        return self._turns < FAULTY_TURNS and self.rng.random() < chance

    def _gate(self, channels: list[ChannelId]) -> Gate:
        return Gate(channels, self._capacity)

    def _spec(self, run_id: RunId, restore_from: str | None, part: Part) -> RunSpec:
        ends: dict[str, dict[str, int]] = {str(source): {} for source in self.plan.sources}
        for (source, split), count in part.items():
            ends[str(source)][str(split)] = count
        newest = self.outcome.store.manifest(restore_from) if restore_from else None
        return RunSpec(
            run_id=run_id,
            pipeline=FLOW_NAME,
            parallelism=self.rng.randint(1, 4),
            master="simulated",
            parameters={
                "seed": str(self._seed),
                "world": self.world_name,
                "ends": json.dumps(ends),
            },
            settings={
                **MODES[self.mode],
                "execution.checkpointing.interval": self.rng.choice(["40 ms", "150 ms", "400 ms"]),
                "execution.checkpointing.num-retained": self.rng.choice(["1", "2", "20"]),
                "execution.checkpointing.tolerable-failed-checkpoints": "3",
                "restart-strategy.type": "fixed-delay",
                "restart-strategy.fixed-delay.attempts": "1000",
                "restart-strategy.fixed-delay.delay": "10 ms",
                "heartbeat.timeout": "1 h",
            },
            restore_from=restore_from,
            first_checkpoint_id=CheckpointId(newest.checkpoint_id + 1 if newest else 1),
        )


class Driver:
    """One driver process of a run; the next one finds its journal, its lease and its points."""

    def __init__(
        self,
        directory: RunDirectory,
        spec: RunSpec,
        clock: SimulatedClock,
        rng: random.Random,
        store: FileSystemCheckpointStore,
    ) -> None:
        self._rng = rng
        self._lease = Lease.acquire(directory)
        self._journal = JournalWriter(directory, spec.run_id, clock, lambda run, number: None)
        self.chores = Chores()
        self.was_stopped = False
        settings = parse_settings(spec.settings)
        root = str(directory.jobs_root)
        parts = RunParts(
            spec,
            SnapshotPlaces.of(directory, settings),
            [root],
            flow(spec.pipeline).build(spec.parameters),
            settings,
            store,
            self._lease,
            clock,
            NO_FAULTS,
        )
        hosting = MasterHosting(self.chores, Door)  # type: ignore[arg-type]
        self.master = JobMaster(parts, self._journal, Inbox(directory), hosting)
        self.stages = Stages(clock, rng, self.master.post)
        self.master.begin(self.stages)

    def kill(self) -> None:
        """SIGKILL; what it was writing may have become durable, and nobody heard of it."""
        if self._rng.random() < 0.5:
            self.chores.do_one(self._rng)
        self.stages.is_driver_dead = True
        self._close()

    def finish(self) -> JobStatus:
        status = self.master.finish()
        self._close()
        return status

    def _close(self) -> None:
        self._journal.close()
        self._lease.close()


def continued(outcome: Outcome, point: str, number: int) -> World:
    """The output when `point` is restored, and the sources end where it says that they stood.

    Nothing fails meanwhile. The outcome's own world is not touched.
    """
    simulation = Simulation(outcome.seed, outcome.root, faults=NONE)
    simulation.rng.seed(f"{outcome.seed} {number}")
    world = WORLDS[simulation.world_name] = outcome.world.copied()
    simulation.run_once(f"continued-{number}", point, read_at(outcome, point))
    return world


def read_at(outcome: Outcome, point: str) -> Part:
    """How many records of each split lie before the cut."""
    part = dict.fromkeys(outcome.plan.whole(), 0)
    for source in outcome.plan.sources:
        positions = [
            SplitPositions.from_json(operator.positions)
            for subtask in outcome.store.manifest(point).subtasks
            for operator in subtask.operators
            if operator.uid == f"source-{source}"
        ]
        for split in range(outcome.plan.splits):
            part[source, split] = _read_of(split, positions, outcome.plan.records)
    return part


def _read_of(split: int, positions: list[SplitPositions], records: int) -> int:
    """Somebody has it in the backlog, or nobody has reached it, or it was read to its end."""
    for position in positions:
        for index, offset in position.backlog:
            if index == split:
                return offset
    frontiers = [p.frontier for p in positions if split >= p.frontier]
    is_ahead = any((split - frontier) % positions[0].stride == 0 for frontier in frontiers)
    return 0 if is_ahead else records
