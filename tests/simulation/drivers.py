"""One driver process of a run: the real master on its journal, its lease and its points."""

import contextlib
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from random import Random

from pipelines.bus.inbox import Inbox
from pipelines.bus.journal import JournalWriter
from pipelines.bus.lease import Lease, LeaseLost
from pipelines.domain.faults import FaultPoint
from pipelines.domain.ids import Attempt, RequestId
from pipelines.domain.run import RunDirectory, RunSpec, SnapshotPlaces
from pipelines.domain.settings.parsing import parse_settings
from pipelines.domain.status import JobStatus
from pipelines.flows.finding import find_flow
from pipelines.protocol.commit import AttemptFence
from pipelines.runtime.master.driving import given_settings
from pipelines.runtime.master.job_events import CommandArrived, WatchedExecutor
from pipelines.runtime.master.job_master import JobMaster
from pipelines.runtime.master.run_context import EventQueue, RunContext, RunRecord
from pipelines.runtime.master.start.run_opening import how_it_ended
from tests.simulation.chores import Chores
from tests.simulation.disk import Disk
from tests.simulation.slots import ProcessEnded, Surroundings, Turn
from tests.simulation.stages import Door, Stages

SEGMENT_BYTES = 10_000
"""So few that a run of a few checkpoints has several segments."""

MASTER_TURNS = 3
"""The master's turns for each turn of a slot's subtask, since it runs alone on its thread."""


class KilledAtAPoint:
    """Replaces `runtime.faults.Faults`: the process may end at any named point."""

    def __init__(self, strikes: Callable[[str], bool]) -> None:
        self._strikes = strikes

    def reach(self, point: FaultPoint, attempt: Attempt) -> None:
        del point, attempt
        if self._strikes("kill at a point"):
            raise ProcessEnded


class Driver:
    """Begins, gets turns, and finishes; or dies, as after every exception."""

    def __init__(self, directory: RunDirectory, spec: RunSpec, around: Surroundings) -> None:
        self._directory = directory
        self._spec = spec
        self._around = around
        self._seen: set[RequestId] = set()
        self.chores = Chores()
        self.is_dead = False
        self.status: JobStatus | None = None  # set once it has brought the run to its end
        self.master: JobMaster | None = None
        self.stages: Stages | None = None
        self._own_turns: list[Turn] = []
        self._lease = Lease.acquire(directory)
        self._journal = JournalWriter(
            directory,
            spec.run_id,
            around.clock,
            lambda run, number: None,
            self._lease.check_held,
            segment_bytes=SEGMENT_BYTES,
        )

    def begin(self, disk: Disk) -> None:
        """Raises Retryable if the storage does not answer."""
        self.master, self.stages = self._host(disk)
        of_master = partial(self.master.take_turn, may_wait=False)
        of_pool = partial(self.chores.do_one, self._around.rng)
        self._own_turns = [of_pool, *[of_master] * MASTER_TURNS]
        if how_it_ended(self._journal) is not None:
            self._end(self.master.run(self.stages))  # its predecessor died while it cleaned up
            return
        self.master.begin(self.stages)
        self.look_into_inbox()

    def _host(self, disk: Disk) -> tuple[JobMaster, Stages]:
        spec = self._spec
        settings = parse_settings(given_settings(spec, self._journal))
        root = str(self._directory.jobs_root)
        self._inbox = Inbox(self._directory)
        events: EventQueue = SimpleQueue()
        fence = AttemptFence()
        self._context = RunContext(
            spec=spec,
            pipeline=find_flow(spec.pipeline).build(spec.parameters),
            settings=settings,
            places=SnapshotPlaces.of(self._directory, settings.storage),
            storage_roots=[root],
            store=disk.open(),
            lease=self._lease,
            journal=self._journal,
            fence=fence,
            record=RunRecord(self._journal, fence),
            inbox=self._inbox,
            events=events,
            executor=WatchedExecutor(self.chores, events.put),
            control=Door(settings.heartbeat),  # type: ignore[arg-type]
            clock=self._around.clock,
            draw=Random(spec.run_id).uniform,
            faults=KilledAtAPoint(self._around.dice.strikes),  # type: ignore[arg-type]
        )
        return JobMaster(self._context), Stages(self._around, self._context.post)

    def look_into_inbox(self) -> None:
        for command in self._inbox.pending():
            if command.request_id not in self._seen:
                self._seen.add(command.request_id)
                self._context.post(CommandArrived(command))

    def turns(self) -> list[Turn]:
        """Returns its own turns and those of its slots."""
        turns = [] if self.stages is None else self.stages.turns()
        if not self.is_dead:
            turns += self._own_turns
        return turns

    def lose_lease(self) -> None:
        """Removes the lock's file, as a restore from a backup may; another driver may take over."""
        self._directory.lease_lock.unlink()

    def act_late(self, turn: Turn) -> None:
        """Takes a turn after its replacement; when it finds out, it ends."""
        try:
            turn()
        except (LeaseLost, ProcessEnded):
            self.die()

    def kill(self) -> None:
        """Kills it as SIGKILL does; its last write may be durable without any process knowing."""
        with contextlib.suppress(ProcessEnded):
            if self._around.rng.random() < 0.5:
                self.chores.do_one(self._around.rng)
        self.die()

    @property
    def has_ended(self) -> bool:
        """Returns True if only `finish` is left to do, or nothing."""
        return self.status is not None or self.master.has_ended

    def finish(self) -> None:
        if self.status is None:
            self._end(self.master.finish(may_wait=False))

    def _end(self, status: JobStatus) -> None:
        self.status = status
        self.die()

    def end(self) -> None:
        """Ends the process and its slots, so that nothing of it is left."""
        self.die()
        if self.stages is not None:
            self.stages.end()

    def die(self) -> None:
        if self.is_dead:
            return
        self.is_dead = True
        if self.stages is not None:
            self.stages.is_driver_dead = True
        self._journal.close()
        self._lease.close()
