"""One seed: a random dataflow, run by the real master and subtasks under random order and faults.

A seed fixes the dataflow, its mode and settings, the order of all turns, every fault, the requests
of people, and restores at other parallelisms. The checkers judge the result.
"""

import hashlib
import itertools
import json
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from unittest.mock import patch

from pipelines.bus.inbox import submit
from pipelines.channels.gate import Gate
from pipelines.domain.commands import (
    ChangeSettings,
    DriverCommand,
    KillSlot,
    StopWithSavepoint,
)
from pipelines.domain.errors import Retryable
from pipelines.domain.events import RequestEnded
from pipelines.domain.ids import CheckpointId, RequestId, RunId, Uid
from pipelines.domain.run import RunDirectory, RunSpec
from pipelines.domain.status import ClaimMode, JobStatus
from pipelines.storage.filesystem import FileSystemCheckpointStore
from tests.simulation.assembly import FLOW_NAME
from tests.simulation.circumstances import (
    AT_MOST_ONCE,
    CHECKPOINTING,
    FAULTY_TURNS,
    USUAL,
    Chances,
    Circumstances,
    Dice,
    draw_circumstances,
)
from tests.simulation.clock import HOUR_MS, SimulatedClock
from tests.simulation.disk import Disk
from tests.simulation.drivers import Driver
from tests.simulation.machines import machines_validated
from tests.simulation.model import Output
from tests.simulation.outcome import Outcome, read_at
from tests.simulation.outside import WORLDS, Part, World
from tests.simulation.plans import draw
from tests.simulation.requests import drawn_end, drawn_point
from tests.simulation.slots import ProcessEnded, Slot, Surroundings

TURNS_MAX = 60_000
KEPT = 0.6
"""The share of points kept for the cut equation."""
STARTED_OVER = 0.6
"""The share of runs with poison after which the next run starts from nothing.

That run starts before the records set aside; most points come after them.
"""
WITH_OWN, OWN = 0.5, 0.4
"""The share of seeds in which operators have their own parallelism, and of those operators."""
GROUPS = 2
"""Operators of one group have equal parallelisms."""


class NoProgress(AssertionError):
    """The faults have stopped, but the run does not end."""


class Simulation:
    """Hosts one run after the other, each from a point of the one before."""

    def __init__(
        self,
        seed: int,
        root: Path,
        *,
        chances: Chances = USUAL,
        circumstances: Circumstances | None = None,
    ) -> None:
        """Uses `circumstances` of an earlier simulation, if given, instead of drawing them."""
        self.rng = random.Random(seed)
        self.plan = draw(random.Random(seed))
        drawn = circumstances or draw_circumstances(self.rng, self.plan, chances)
        self.circumstances = drawn
        self.root = root
        self.world_name = f"world-{seed}"
        self._seed = seed
        self._is_disturbed = bool(drawn.chances)
        seen: Counter[str] = Counter()
        self._dice = Dice(self.rng, self.circumstances.chances, seen)
        self._around = Surroundings(SimulatedClock(), self.rng, self._dice, self.circumstances)
        self._own_rng = random.Random(f"parallelisms of {seed}")
        self._own = self._draw_own()
        self._digest = hashlib.blake2b(digest_size=8)
        self._requests = itertools.count()
        self._drains: set[RequestId] = set()
        self._turns = 0
        self._replaced: list[Driver] = []  # dead ones with living slots, and some that live on
        disk = Disk(
            root,
            self._disk_fails,
            self._place_to_keep,
            self._on_published,
            keeps_newest=self.plan.has_lists,
        )
        world = WORLDS[self.world_name] = World(
            fails=self._world_fails, on_rolled_back=disk.rolled_back
        )
        store = FileSystemCheckpointStore([str(root)])
        self.outcome = Outcome(
            seed, root, self.circumstances, self.plan, world, disk, store, seen=seen
        )

    def run(self) -> Outcome:
        """Hosts one to three runs; the last one reads everything, unless it is drained."""
        runs, restore_from = self.rng.choice([1, 2, 3]), None
        if self.circumstances.mode == AT_MOST_ONCE:
            runs = 1  # a person's restore keeps the state: that is another promise
        sets_aside = bool(self.circumstances.poison.ids)
        for number in range(runs):
            is_last = number == runs - 1
            status = self.run_once(
                f"run-{number}", restore_from, self.plan.whole(), is_last=is_last
            )
            self.outcome.drained_at = self._drained_at()
            restore_from = self._drawn_point()
            if sets_aside and self.rng.random() < STARTED_OVER:
                restore_from = None
            elif status is JobStatus.FINISHED and restore_from is None:
                break  # it has read everything, and left nothing to start from
        self.outcome.trace = self._digest.hexdigest()
        self.outcome.look_into_quarantine()
        return self.outcome

    def _drained_at(self) -> str | None:
        newest = self.outcome.directories[-1]
        answers = [e for e in self.outcome.events_of(newest) if isinstance(e, RequestEnded)]
        drained = [e.path for e in answers if e.request_id in self._drains]
        return next((path for path in drained if path is not None), None)

    def _drawn_point(self) -> str | None:
        """Draws one of the newest points of any run."""
        store = self.outcome.store
        newest = sorted(self.outcome.points(), key=lambda p: (store.manifest(p).checkpoint_id, p))
        return self.rng.choice(newest[-3:]) if newest else None

    def run_once(
        self, run: str, restore_from: str | None, part: Part, *, is_last: bool
    ) -> JobStatus:
        """Raises NoProgress if the run does not end."""
        spec = self._spec(RunId(run), restore_from, part)
        directory = RunDirectory.of(self.root, FLOW_NAME, spec.run_id)
        directory.path.mkdir(parents=True)
        self.outcome.directories.append(directory)
        self.outcome.parallelisms.append(spec.parallelism)
        self._turns, self._dice.is_faulty = 0, self._is_disturbed
        self._asks = self._planned_requests(is_last=is_last)
        with self._simulated_parts():
            try:
                return self._drive(directory, spec)
            finally:
                while self._replaced:
                    self._replaced.pop().end()

    def _drive(self, directory: RunDirectory, spec: RunSpec) -> JobStatus:
        """Hosts one driver after the other, until one brings the run to its end."""
        while True:
            driver = Driver(directory, spec, self._around)
            self._replaced.append(driver)
            try:
                self._host(driver)
            except (ProcessEnded, Retryable):
                driver.die()
                self.outcome.seen["driver killed"] += 1
            if driver.status is not None:
                return driver.status

    def _host(self, driver: Driver) -> None:
        """Hosts a driver until it has ended the run, or was replaced."""
        driver.begin(self.outcome.disk)
        while not driver.has_ended:
            self._pass_time()
            if self._dice.is_faulty and self._strike(driver):
                return
            self._ask(driver)
            self._take_turn(driver)
        self.outcome.disk.ended.add(self.outcome.directories[-1].run_id)
        self._dice.is_faulty = False
        driver.finish()

    def _pass_time(self) -> None:
        self._turns += 1
        self.outcome.turns += 1
        self._dice.is_faulty = self._is_disturbed and self._turns < FAULTY_TURNS
        if self._turns > TURNS_MAX:
            events = self.outcome.events_of(self.outcome.directories[-1])
            raise NoProgress(f"after {TURNS_MAX} turns: {events[-5:]}")
        self._around.clock.now_ms += self.rng.uniform(0.05, 2.5)

    def _take_turn(self, driver: Driver) -> None:
        turns = driver.turns()
        for each in self._replaced:
            if each is not driver:
                turns += [partial(each.act_late, turn) for turn in each.turns()]
        index = self.rng.randrange(len(turns))
        self._digest.update(f"{len(turns)} {index};".encode())
        turns[index]()

    def _strike(self, driver: Driver) -> bool:
        """Returns True if the driver is dead or replaced."""
        if self._dice.strikes("set the wall clock"):
            self._around.clock.set_wall(self.rng.choice([-HOUR_MS, HOUR_MS]))
        if self._dice.strikes("kill the driver"):
            driver.kill()
            return True
        if self._dice.strikes("replace the driver"):
            driver.lose_lease()
            return True
        self._strike_a_slot(driver.stages.living())
        return False

    def _strike_a_slot(self, alive: list[Slot]) -> None:
        if not alive:
            return
        if self._dice.strikes("kill a slot"):
            self.rng.choice(alive).die()
        if self._dice.strikes("silence a slot"):
            self.rng.choice(alive).silence()
        if self._dice.strikes("stop a slot"):
            self.rng.choice(alive).stop(self.rng.uniform(100, 3_000))

    # Requests of people.

    def _planned_requests(self, *, is_last: bool) -> dict[int, DriverCommand]:
        """Returns requests by turn: to end the run, and to lengthen the checkpoint timeout."""
        planned: dict[int, DriverCommand] = {}
        if self.circumstances.has_short_timeout:
            longer = {CHECKPOINTING + "timeout": "10 min"}
            planned[FAULTY_TURNS] = ChangeSettings(settings=longer, **self._asker())
        if not self._is_disturbed:
            return planned
        if not is_last or self.rng.random() < 0.15:
            turn = self.rng.randint(300, 3_000)
            planned[turn] = drawn_end(self.rng, self._asker(), is_last=is_last)
        return planned

    def _ask(self, driver: Driver) -> None:
        command = self._planned_by_now()
        if command is None and self._dice.is_faulty:
            command = self._asked_for_by_chance()
        if command is None:
            return
        if isinstance(command, StopWithSavepoint) and command.drain:
            self._drains.add(command.request_id)
        self.outcome.seen[type(command).__name__] += 1
        submit(self.outcome.directories[-1], command)
        driver.look_into_inbox()

    def _asked_for_by_chance(self) -> DriverCommand | None:
        if self._dice.strikes("ask for a point"):
            return drawn_point(self.rng, self._asker())
        if self._dice.strikes("kill itself on command"):
            return KillSlot(slot=self.rng.randrange(4), **self._asker())
        return None

    def _planned_by_now(self) -> DriverCommand | None:
        for turn in self._asks:
            if turn <= self._turns:
                return self._asks.pop(turn)
        return None

    def _asker(self) -> dict[str, str]:
        request_id = RequestId(f"request-{next(self._requests)}")
        return {"request_id": request_id, "requested_by": "somebody", "reason": "a simulation"}

    # The parts that everything runs on.

    @contextmanager
    def _simulated_parts(self) -> Iterator[None]:
        """Replaces parts that `deploy` builds by itself in a real slot."""
        capacity = self.circumstances.gate_bytes
        slot = "pipelines.runtime.slot"
        with (
            machines_validated(),
            patch(
                f"{slot}.subtask_building.Gate",
                lambda channels, **given: Gate(channels, capacity, **given),
            ),
            patch(f"{slot}.deployment.CheckpointStores", lambda *a, **k: self.outcome.disk.open()),
        ):
            yield

    def _disk_fails(self, operation: str) -> bool:
        del operation
        return self._dice.strikes("fail the disk")

    def _world_fails(self) -> bool:
        return self._dice.strikes("fail the world")

    def _on_published(self, run_id: RunId, checkpoint_id: CheckpointId) -> None:
        WORLDS[self.world_name].on_published(run_id, checkpoint_id)

    def _place_to_keep(self) -> Path | None:
        if not self._is_disturbed or self.rng.random() > KEPT:
            return None
        return self.root / "kept" / f"point-{len(self.outcome.disk.kept)}"

    def _draw_own(self) -> dict[Uid, int]:
        """Returns the group of each operator that has a parallelism of its own."""
        rng, steps = self._own_rng, list(enumerate(self.plan.steps))
        if rng.random() >= WITH_OWN:
            return {}
        uids = [Uid(f"{step.operation}-{i}") for i, step in steps]
        sinks = [Uid(f"{step.operation}-{i}-sink") for i, step in steps if step.is_end]
        return {uid: rng.randrange(GROUPS) for uid in [*uids, *sinks] if rng.random() < OWN}

    def _parallelisms(self) -> dict[Uid, int]:
        """Each run draws others. They stay unequal, so that the same operators run together."""
        numbers = self._own_rng.sample(range(1, 5), GROUPS)
        return {uid: numbers[group] for uid, group in self._own.items()}

    def _spec(self, run_id: RunId, restore_from: str | None, part: Part) -> RunSpec:
        ends: dict[str, dict[str, int]] = {str(source): {} for source in self.plan.sources}
        for (source, split), count in part.items():
            ends[str(source)][str(split)] = count
        newest = self.outcome.store.manifest(restore_from) if restore_from else None
        self.outcome.seen["parallelism of its own"] += bool(self._own)
        return RunSpec(
            run_id=run_id,
            pipeline=FLOW_NAME,
            parallelism=self.rng.randint(1, 4),
            master="simulated",
            parameters={
                "seed": str(self._seed),
                "world": self.world_name,
                "poison": self.circumstances.poison.to_json(),
                "ends": json.dumps(ends),
                "parallelisms": json.dumps(self._parallelisms()),
            },
            settings={
                **self.circumstances.settings,
                "state.backend.rocksdb.localdir": str(self.root / "databases"),
            },
            restore_from=restore_from,
            claim_mode=self.rng.choice(list(ClaimMode))
            if self._is_disturbed
            else ClaimMode.NO_CLAIM,
            first_checkpoint_id=CheckpointId(newest.checkpoint_id + 1 if newest else 1),
        )


def continued(outcome: Outcome, point: str, number: int) -> Output:
    """Returns the output when `point` is restored with sources that end at its offsets.

    Nothing fails during it, and the outcome's own world does not change.
    """
    calm = outcome.circumstances.undisturbed()
    simulation = Simulation(outcome.seed, outcome.root, circumstances=calm)
    simulation.rng.seed(f"{outcome.seed} {number}")
    world = WORLDS[simulation.world_name] = outcome.world.copied()
    part = read_at(outcome, point)
    simulation.run_once(f"continued-{number}", point, part, is_last=True)
    outcome.turns += simulation.outcome.turns
    simulation.outcome.look_into_quarantine()
    return replace(simulation.outcome, world=world).output


def points_are_often_given_up(simulation: Simulation, operation: str) -> bool:
    """Replaces `Simulation._disk_fails`: two operations fail much more often than the others.

    The caller does not learn that its manifest was written, and deletions fail.
    """
    if simulation._dice.strikes("fail the disk"):
        return True
    is_chosen = operation in ("confirm", "delete") and simulation._dice.is_faulty
    return is_chosen and simulation.rng.random() < 0.4
