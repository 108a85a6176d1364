"""The life of a run's attempts, one after the other: begin, deploy, run, end.

`failures` decides why an attempt ends, and `next_start` where the next one starts. This module
builds the deployment for an attempt's slots (what to run, how, from which point) and brings up the
attempt. It reports when some or all sources have no more input, and fences the attempt when it
ends.
"""

from collections.abc import Collection
from typing import TYPE_CHECKING

from pipelines.domain.checkpoint_failures import CheckpointFailureReason
from pipelines.domain.errors import CertificateRefused, InvariantViolated, check
from pipelines.domain.events import (
    RestartScheduled,
    RestoreProgress,
    SlotConnected,
    ZombieRefused,
)
from pipelines.domain.faults import FaultPoint, parse_faults
from pipelines.domain.ids import Attempt, CheckpointId, Uid
from pipelines.domain.poison import Isolation
from pipelines.domain.run import MEMORY, scheme_of
from pipelines.domain.settings import AS_SENT, CheckpointingMode
from pipelines.domain.snapshots import Manifest
from pipelines.domain.status import JobStatus, RecoveryPhase
from pipelines.protocol.effects import SubtaskId
from pipelines.runtime.control import Deploy
from pipelines.runtime.master.attempt.attempt_host import AttemptHost, Readiness
from pipelines.runtime.master.attempt.watchers import RunWatchers
from pipelines.runtime.master.checkpoints.checkpoint_host import CheckpointHost
from pipelines.runtime.master.job_events import SlotArrived
from pipelines.runtime.master.requests.run_end import RunEnd
from pipelines.runtime.master.requests.start_undo import StartUndo
from pipelines.runtime.master.run_context import RunContext, StageHost
from pipelines.runtime.master.start.next_start import NextStart
from pipelines.runtime.master.start.starting_point import EndsNotReady, StartingPoint, forgets_state

if TYPE_CHECKING:
    from pipelines.runtime.networking import SlotAddress


def deployment_of(
    context: RunContext, host: AttemptHost, start: StartingPoint | None, isolation: Isolation
) -> Deploy:
    """Builds the deployment. With `start` None, the attempt starts from the beginning."""
    spec, settings = context.spec, context.settings
    is_acked = settings.barriers.mode is CheckpointingMode.ACKED
    return Deploy(
        run_id=spec.run_id,
        pipeline=spec.pipeline,
        parameters=spec.parameters,
        parallelism=spec.parallelism,
        max_parallelism=spec.max_parallelism,
        peers=host.peers(),
        storage_roots=context.storage_roots,
        max_memory_state_bytes=settings.storage.max_memory_state_bytes,
        compresses_snapshots=settings.storage.compresses_snapshots,
        digests_output=settings.digests_output,
        restore_location=start.location if start else None,
        restore_manifest=_manifest_to_send(context, start),
        forgets_state=forgets_state(settings, start),
        dropped_states=list(start.dropped_states) if start else [],
        barriers=settings.barriers,
        acking=settings.acking if is_acked else None,
        inputs=AS_SENT if is_acked else settings.inputs,
        state=settings.state,
        faults=list(parse_faults(settings.faults)),
        quarantine=context.places.quarantine,
        isolation=isolation,
        replayed_sources=spec.replayed_sources,
        renamed_uids=spec.renamed_uids if start and start.location == spec.restore_from else {},
        shows_failed_records=settings.shows_failed_records,
        beginning=context.beginning.packed,
        code=spec.code,
    )


def _manifest_to_send(context: RunContext, start: StartingPoint | None) -> Manifest | None:
    """Returns the manifest that slots cannot read from the storage, or None.

    That is a point in this process's memory, or one whose sources continue behind gaps, so that
    every slot skips the same gaps."""
    if start is not None and start.moved is not None:
        return start.moved
    location = start.location if start else None
    if location is None or scheme_of(location) != MEMORY:
        return None
    return context.store.manifest(location)


class SourcesLeft:
    def __init__(self, context: RunContext, checkpoints: CheckpointHost) -> None:
        sources, every = context.pipeline.sources, context.subtasks()
        self._all = frozenset(subtask for subtask in every if subtask.vertex in sources)
        self._checkpoints = checkpoints
        self._left: set[SubtaskId] = set()

    def on_begun(self) -> None:
        """An attempt has begun."""
        self._left = set(self._all)

    def on_ended(self, vertex: Uid, subtask: int) -> None:
        self._left.discard(SubtaskId(vertex, subtask))

    def tell(self) -> None:
        """Reports ended sources. Call once all slots run: an empty source ends before that."""
        if len(self._left) == len(self._all):
            return
        self._checkpoints.triggers.on_source_finished()
        if not self._left:
            self._checkpoints.triggers.on_sources_ended()


STAGE_END_TIMEOUT_MS = 10_000.0
ANNOUNCED_FROM_MS = 1_000.0


class Attempts:
    """Guarantee: at most one attempt lives, and its number was never used before."""

    def __init__(
        self,
        context: RunContext,
        watchers: RunWatchers,
        end: RunEnd,
        undo: StartUndo,
    ) -> None:
        self._context = context
        self._undo = undo
        self._record = context.record
        self._fence = context.fence
        self._watchers = watchers
        self._end = end
        self._next = NextStart(context, watchers, end)
        self._stages: StageHost | None = None
        self._host: AttemptHost | None = None
        self._address: SlotAddress | None = None
        self._stage_is_over = True
        self._began_ms = 0.0
        self._restart_due_ms: float | None = None
        self._sources = SourcesLeft(context, watchers.checkpoints)

    @property
    def host(self) -> AttemptHost | None:
        """None between two attempts."""
        return self._host

    @property
    def newest(self) -> Attempt:
        """The newest attempt that has begun. It may be over; 0 before the first."""
        return self._fence.current

    @property
    def began_ms(self) -> float:
        """The monotonic time at which the newest attempt began."""
        return self._began_ms

    @property
    def restoring(self) -> RestoreProgress | None:
        """The progress of the restore; None if no slot is loading state."""
        return None if self._host is None else self._host.restoring

    @property
    def is_stage_over(self) -> bool:
        """True if no slot of the newest attempt is left, as far as the stage host knows."""
        return self._stage_is_over

    @property
    def restart_due_ms(self) -> float | None:
        """Monotonic; None if no restart is due, or if it waits for the end of a stage."""
        return self._restart_due_ms if self._stage_is_over else None

    def admit(self, attempt: Attempt, claim: str | None) -> AttemptHost | None:
        """Returns the host of the current attempt, or None if `attempt` is over.

        Reports the claim of an attempt that is over, unless it was sent before the attempt ended.
        """
        stale = self._fence.admit(attempt)
        if stale is None:
            return self.current()
        if claim is not None and stale.is_replaced:
            self._record.emit(ZombieRefused(zombie_attempt=stale.attempt, what=claim))
        return None

    def current(self) -> AttemptHost:
        if self._host is None:
            raise InvariantViolated("an attempt is running")
        return self._host

    # Begin.

    def begin_first(self, stages: StageHost) -> None:
        """A driver that replaces a dead one recovers; a new run starts where its spec says.

        Raises Rejected if it cannot start as requested, TargetTaken, EndsNotReady, and Retryable
        if the storage does not answer.
        """
        self._stages = stages
        resumes = self._context.lease.attempts_so_far() > 0
        self._next.choose_first(resumes=resumes)
        self._begin()

    def restart_after(self, delay_ms: float) -> None:
        """Raises Rejected if there is no point to start from."""
        check(self._host is None, "an attempt ends before the next one is chosen")
        self._context.faults.reach(FaultPoint.RESTARTING, self._fence.current)
        with self._context.loop.long_step():
            self._next.choose()
        self._restart_due_ms = self._context.clock.monotonic_ms() + delay_ms
        self.announce_restart(delay_ms)
        self._wait_for_restart()

    def announce_restart(self, delay_ms: float) -> None:
        """Announces a restart if the wait is long enough for a person to notice."""
        if delay_ms < ANNOUNCED_FROM_MS:
            return
        at_ms, attempt = self._context.clock.wall_ms() + round(delay_ms), self.newest + 1
        self._record.emit(
            RestartScheduled(at_ms=at_ms, attempt=Attempt(attempt), delay_ms=delay_ms)
        )

    def _wait_for_restart(self) -> None:
        """Counts the rest of the delay as backoff, once the stage of the old attempt has ended."""
        if self._restart_due_ms is not None and self._stage_is_over:
            self._watchers.recovery.reached(RecoveryPhase.STOP)
            self._watchers.recovery.on_wait()

    def undo_start(self) -> None:
        """Ends the attempt. Once its stage has ended, `StartUndo` decides what follows."""
        self.end(CheckpointFailureReason.CHECKPOINT_COORDINATOR_SHUTDOWN, "The start is undone.")
        self._restart_due_ms = self._context.clock.monotonic_ms()

    def retry_now(self, now_ms: float) -> bool:
        """Ends the wait for the next attempt. Returns False if none is due."""
        if self._restart_due_ms is None:
            return False
        self._restart_due_ms = min(self._restart_due_ms, now_ms)
        return True

    def begin_when_due(self, now_ms: float) -> None:
        """Raises TargetTaken, EndsNotReady."""
        due_ms = self._restart_due_ms
        if due_ms is None or now_ms < due_ms:
            return
        if not self._stage_is_over and now_ms < due_ms + STAGE_END_TIMEOUT_MS:
            return  # otherwise two attempts would want the same Spark slots
        self._restart_due_ms = None
        self._watchers.recovery.reached(RecoveryPhase.STOP)
        self._watchers.recovery.on_waited()
        self._watchers.recovery.reached(RecoveryPhase.BACKOFF)
        self._begin()

    def _begin(self) -> None:
        check(self._host is None, "an attempt ends before the next one begins")
        with self._context.loop.long_step():
            self._next.hold_targets()
        if self._undo.is_due:
            self._put_output_back()
            return
        slot_count = self._context.slot_count
        attempt = self._context.lease.next_attempt()
        self._fence.on_attempt(attempt)
        self._record.move_to(JobStatus.INITIALIZING)
        self._context.faults.reach(FaultPoint.REWINDING, attempt)
        with self._context.loop.long_step():
            self._next.make_ready()
        self._context.faults.reach(FaultPoint.REWOUND, attempt)
        self._address = self._opened_for(attempt)
        self._began_ms = self._context.clock.monotonic_ms()
        self._host = AttemptHost(attempt, slot_count, self._began_ms)
        self._sources.on_begun()
        self._stage_is_over = False
        if self._stages is not None:
            self._stages.start(self._address, slot_count)

    def _put_output_back(self) -> None:
        """Puts earlier output back. No slot of the run writes any more, and none will."""
        if self._fence.current == 0 and (used := self._context.lease.attempts_so_far()):
            self._fence.on_attempt(used)  # of the previous driver: lets this one delete files
            self._fence.on_ended()
        self._undo.check_nothing_committed()
        with self._context.loop.long_step():
            lineage = self._undo.output_before
            self._next.put_back(lineage)
        self._undo.on_put_back(lineage)

    def _opened_for(self, attempt: Attempt) -> "SlotAddress":
        try:
            return self._context.control.open_for(attempt)
        except CertificateRefused as error:
            raise EndsNotReady(f"The attempt cannot begin: {error}") from error

    def clean_up(self) -> None:
        """Deletes the unfinished output of a run from its targets, at its end. Raises LeaseLost."""
        with self._context.loop.long_step():
            self._next.clean_up_own()

    # Progress.

    def on_slot_arrived(self, event: SlotArrived) -> None:
        host, hello = self.admit(event.attempt, "a slot that connected"), event.hello
        if host is None:
            event.link.close()
            return
        host.on_arrived(hello, event.link, self._context.clock.monotonic_ms())
        self._record.emit(SlotConnected(slot=hello.slot, pid=hello.pid, host=hello.host))
        if host.readiness is Readiness.DEPLOYING:
            self._watchers.recovery.reached(RecoveryPhase.STOP)
            self._watchers.recovery.reached(RecoveryPhase.BACKOFF)
            self._watchers.recovery.reached(RecoveryPhase.START)
            host.deploy(self._orders(host))

    def _orders(self, host: AttemptHost) -> Deploy:
        return deployment_of(self._context, host, self._next.start, self._watchers.poison.isolation)

    def on_restoring(self, slot: int, progress: RestoreProgress) -> None:
        self.current().on_restoring(slot, progress, self._context.clock.monotonic_ms())

    def on_deployed(self, slot: int) -> None:
        host = self.current()
        host.on_deployed(slot, self._context.clock.monotonic_ms())
        if host.readiness is not Readiness.BEGINNING:
            return
        if self._end.is_due:  # the restore has committed everything
            self.end(CheckpointFailureReason.CHECKPOINT_COORDINATOR_SHUTDOWN, "The run has ended.")
            self._end.on_all_committed()
        else:
            host.begin()

    def on_running(self, slot: int) -> None:
        host = self.current()
        host.on_running(slot, self._context.clock.monotonic_ms())
        if host.readiness is Readiness.RUNNING:
            self._record.move_to(JobStatus.RUNNING)
            self._watchers.recovery.reached(RecoveryPhase.RESTORE)
            self._watchers.checkpoints.on_running(host)
            self._sources.tell()

    def on_sources_ended(self, vertex: Uid, subtask: int) -> None:
        self._sources.on_ended(vertex, subtask)
        if self.current().readiness is Readiness.RUNNING:
            self._sources.tell()

    def on_output_lost(self, checkpoint_id: CheckpointId, why: str) -> None:
        self._next.on_output_lost(checkpoint_id, why)

    def on_damage_met(self, file: str | None, why: str) -> bool:
        """Returns True if the run can go back to another point."""
        return self._next.on_damage_met(file, why)

    def on_stage_ended(self, attempt: Attempt) -> None:
        stale = self._fence.admit(attempt)
        if stale is None or not stale.is_replaced:
            self._stage_is_over = True
            self._wait_for_restart()

    # End.

    def on_slot_ended(self, slot: int) -> bool:
        """Returns True if it was the last slot, so that the attempt has ended normally."""
        host = self.current()
        host.on_ended(slot)
        if not host.have_all_ended:
            return False
        host.end()
        self._host = None
        shutdown = CheckpointFailureReason.CHECKPOINT_COORDINATOR_SHUTDOWN
        self._watchers.checkpoints.on_stopped(shutdown, "The run has ended.")
        self._fence.on_ended()
        return True

    def end(
        self, reason: CheckpointFailureReason, why: str, failed: Collection[SubtaskId] = ()
    ) -> None:
        """Fences the attempt: closes its connections, which ends all of its slots.

        `failed` are the subtasks whose failure or loss is the cause.
        """
        if self._host is None:
            return
        self.abandon()
        with self._context.loop.long_step():
            self._watchers.checkpoints.on_stopped(reason, why, failed)
        self._fence.on_ended()

    def abandon(self) -> None:
        """Ends the attempt's slots and reports nothing."""
        host, self._host = self._host, None
        if host is None:
            return
        host.end()
        if self._stages is not None and self._address is not None:
            self._stages.cancel(self._address)
