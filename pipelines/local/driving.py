"""Drives a run in this process to its end: the real job master on its journal, lease and points.

A driver that is killed leaves its directory as it is, and the next one goes on from there.
"""

from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Protocol

from pipelines.bus.inbox import Inbox
from pipelines.bus.journal import JournalWriter
from pipelines.bus.lease import Lease
from pipelines.domain.commands import StopWithSavepoint
from pipelines.domain.faults import FaultPoint
from pipelines.domain.ids import Attempt, RequestId
from pipelines.domain.run import RunDirectory, RunSpec, SnapshotPlaces
from pipelines.domain.settings import check_parallelism
from pipelines.domain.settings.parsing import parse_settings
from pipelines.domain.status import JobStatus
from pipelines.local.chores import Chores
from pipelines.local.slot import ProcessKilled, Reach, Surroundings
from pipelines.local.stage import LocalDoor, LocalStages
from pipelines.protocol.fencing import AttemptFence
from pipelines.runtime.faults import Faults
from pipelines.runtime.master.job_events import CommandArrived, WatchedExecutor
from pipelines.runtime.master.job_master import JobMaster
from pipelines.runtime.master.run_context import EventQueue, RunContext, RunRecord
from pipelines.runtime.master.start.run_opening import how_it_ended
from pipelines.storage.stores import CheckpointStores

STOP = RequestId("stop")


class DriverFaults(Faults):
    """The named points that a driver passes."""

    def __init__(self, reach: Reach) -> None:
        super().__init__()
        self._of_run = reach

    def reach(self, point: FaultPoint, attempt: Attempt) -> None:
        self._of_run(point, attempt)


class Onlooker(Protocol):
    """Sees a run while it lasts, and may ask it to stop."""

    def on_turn(self, stages: LocalStages) -> bool:
        """Called once per turn. True: the run is to stop with a savepoint. Asked until then."""
        ...


@dataclass(frozen=True, slots=True)
class LocalDriver:
    """`root` is the one directory that the run may touch. `stop_after` None: at the input's end."""

    root: Path
    spec: RunSpec
    around: Surroundings
    stop_after: timedelta | None = None
    onlooker: Onlooker | None = None

    @property
    def directory(self) -> RunDirectory:
        return RunDirectory.of(self.root, self.spec.pipeline, self.spec.run_id)

    def drive(self) -> JobStatus:
        """Raises Rejected when the run cannot start as asked."""
        self.directory.path.mkdir(parents=True, exist_ok=True)
        status = None
        while status is None:
            with suppress(ProcessKilled):  # of this driver; another one goes on
                status = self._drive_once()
        return status

    def _drive_once(self) -> JobStatus:
        time = self.around.time
        with (
            Lease.acquire(self.directory) as lease,
            JournalWriter(
                self.directory, self.spec.run_id, time, _announce_nothing, lease.check_held
            ) as journal,
        ):
            executor = Chores()
            context = self._context(lease, journal, executor)
            master = JobMaster(context)
            stages = LocalStages(self.around, context.post)
            try:
                if how_it_ended(journal) is not None:
                    return master.run(stages)  # its predecessor died while it cleaned up
                master.begin(stages)
                self._take_turns(context, master, executor, stages)
                return master.finish(may_wait=False)
            finally:
                stages.end()

    def _context(self, lease: Lease, journal: JournalWriter, executor: Chores) -> RunContext:
        spec, pipeline = self.spec, self.around.pipeline
        settings = parse_settings(spec.settings)
        check_parallelism(spec.parallelism, spec.max_parallelism)
        pipeline.check_fits(settings)
        pipeline.validate_sinks()
        if spec.restore_from is None and lease.attempts_so_far() == 0:
            pipeline.validate_sources(settings)
        roots, fence, events = [str(self.root)], AttemptFence(), EventQueue()
        return RunContext(
            spec=spec,
            pipeline=pipeline,
            settings=settings,
            places=SnapshotPlaces.of(self.directory, settings),
            storage_roots=roots,
            store=CheckpointStores(roots, settings.max_memory_state_bytes),
            lease=lease,
            journal=journal,
            fence=fence,
            record=RunRecord(journal, fence),
            inbox=Inbox(self.directory),
            events=events,
            executor=WatchedExecutor(executor, events.put),
            control=LocalDoor(settings.heartbeat),
            clock=self.around.time,
            draw=Random(spec.run_id).uniform,
            faults=DriverFaults(self.around.reach),
        )

    def _take_turns(
        self, context: RunContext, master: JobMaster, executor: Chores, stages: LocalStages
    ) -> None:
        time, stop_at_ms = self.around.time, self._stop_at_ms()
        onlooker = self.onlooker
        while not master.has_ended:
            time.on_turn()
            if onlooker is not None and onlooker.on_turn(stages):
                onlooker = None
                context.post(CommandArrived(_stop("the pipeline is to start again")))
            is_busy = master.take_turn(may_wait=False)
            is_busy = executor.take_turn() or is_busy
            is_busy = stages.take_turn() or is_busy
            if stop_at_ms is not None and time.monotonic_ms() >= stop_at_ms:
                stop_at_ms = None
                context.post(CommandArrived(_stop("its time is over")))
            if not is_busy:
                time.pass_time()

    def _stop_at_ms(self) -> float | None:
        if self.stop_after is None:
            return None
        return self.around.time.monotonic_ms() + self.stop_after / timedelta(milliseconds=1)


def _stop(reason: str) -> StopWithSavepoint:
    return StopWithSavepoint(request_id=STOP, requested_by="run_local", reason=reason)


def _announce_nothing(run_id: object, number: object) -> None:
    """No other process waits for news of this run."""
