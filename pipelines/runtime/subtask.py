"""The thread of one subtask: mail, then input, one thing at a time, so operators need no locks.

Carries out what the aligner decides and cuts the state between two elements. Knows nothing of
sockets: it reads from a gate, writes to exchanges and reports to a `SubtaskReporter`.

Source: Flink, `StreamTask` and its mailbox model.
"""

import threading
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Protocol

from pipelines.channels.channel import ChannelClosed, ChannelStatistics
from pipelines.domain.clock import Clock
from pipelines.domain.elements import Barrier, CancelCheckpoint, EndOfInput
from pipelines.domain.failures import CheckpointFailureReason
from pipelines.domain.faults import FaultPoint
from pipelines.domain.ids import CheckpointId
from pipelines.domain.phases import ChannelAlignment, SubtaskPhases
from pipelines.domain.settings import BarrierOptions
from pipelines.domain.snapshots import Json, SubtaskSnapshot
from pipelines.runtime.barrier_modes import overtakes_at_once, turns_at_ms
from pipelines.runtime.chain import ChainPlace, OperatorChain
from pipelines.runtime.checkpoint_locations import Upload
from pipelines.runtime.gathering import Gathering
from pipelines.runtime.in_flight import InFlightRecords
from pipelines.runtime.mailbox import (
    CheckpointAborted,
    CheckpointCompleted,
    InjectBarrier,
    Mail,
    Mailbox,
)
from pipelines.runtime.snapshotting import SnapshotWriter, SubtaskCut, snapshot_bytes

IDLE_WAIT_MS = 500.0
"""A bound only: arrivals and mail wake a subtask at once."""

PROCESSING_TIME_STEP_MS = 10.0
"""How late a processing-time timer may be because nothing was looked at meanwhile."""


class SubtaskReporter(Protocol):
    """What a subtask tells the world; called from its thread and from upload threads."""

    def acknowledged(
        self, checkpoint_id: CheckpointId, snapshot: SubtaskSnapshot, phases: SubtaskPhases
    ) -> None: ...

    def declined(
        self, place: ChainPlace, checkpoint_id: CheckpointId, error: Exception
    ) -> None: ...

    def committed(self, place: ChainPlace, checkpoint_id: CheckpointId) -> None: ...

    def sources_ended(self, place: ChainPlace) -> None: ...

    def failed(self, place: ChainPlace, error: BaseException) -> None: ...

    def ended(self, place: ChainPlace) -> None: ...

    def reach(self, point: FaultPoint) -> None:
        """A fault on purpose may hit here: raise, or end or stop the process."""
        ...

    def location_of(self, checkpoint_id: CheckpointId) -> str | None:
        """Where this checkpoint's files go, as the master said when it triggered.

        None: it was given up meanwhile.
        """
        ...

    def once_heard_of(self, checkpoint_id: CheckpointId, upload: Upload) -> None:
        """Call `upload` as soon as the master has said where to; at once if it has."""
        ...


class Feed(Protocol):
    """Where a subtask's records come from: an input gate or a source."""

    def advance(self, subtask: "Subtask") -> bool:
        """Handle one element; False: there is nothing to do now."""
        ...

    def attend(self, subtask: "Subtask") -> bool:
        """Handle what waits neither for records nor for credit; False: there is nothing."""
        ...

    def drain(self, subtask: "Subtask") -> None:
        """Event time ends: nothing more will be read."""
        ...

    def on_injected(self, barrier: Barrier, subtask: "Subtask") -> None: ...

    def on_completed(self, checkpoint_id: CheckpointId, subtask: "Subtask") -> None: ...

    def on_aborted(self, checkpoint_id: CheckpointId, subtask: "Subtask") -> None: ...

    def positions(self) -> Json: ...

    def reserved(self, checkpoint_id: CheckpointId) -> Json:
        """At most once: where a recovery from this checkpoint begins to read."""
        ...

    def watermark_ms(self) -> int | None: ...

    def queued(self) -> list[ChannelStatistics]: ...

    @property
    def has_ended(self) -> bool: ...

    @property
    def wait_ms(self) -> float: ...

    @property
    def due_ms(self) -> float | None:
        """When `attend` has something to do by itself, monotonic."""
        ...


class Step(Enum):
    """What became of one turn of a subtask."""

    WORKED = auto()
    WAITS_FOR_INPUT = auto()
    WAITS_FOR_CREDIT = auto()  # downstream takes nothing more: take no input either


@dataclass(slots=True)
class Load:
    """How a subtask has spent its time since it began."""

    began_ms: float
    idle_ms: float = 0.0
    blocked_ms: float = 0.0  # downstream took nothing: backpressure


class Subtask(threading.Thread):
    """Guarantee: state is cut exactly between the elements that the barrier separates."""

    def __init__(
        self,
        place: ChainPlace,
        chain: OperatorChain,
        feed: Feed,
        snapshots: SnapshotWriter,
        uploads: Executor,
        reporter: SubtaskReporter,
        clock: Clock,
        mailbox: Mailbox,
        barriers: BarrierOptions,
    ) -> None:
        super().__init__(name=f"{place.vertex.uid}[{place.subtask}]", daemon=True)
        self.place = place
        self.chain = chain
        self.mailbox = mailbox
        self.reporter = reporter
        self.clock = clock
        self.load = Load(clock.monotonic_ms())
        self._feed = feed
        self._snapshots = snapshots
        self._uploads = uploads
        self._barriers = barriers
        self._gathering: Gathering | None = None  # cut, not yet uploaded
        self._final_id: CheckpointId | None = None  # nothing follows this one
        self._completed_id = CheckpointId(0)
        self._timers_due_ms = 0.0  # when processing time is looked at next

    def run(self) -> None:
        try:
            self._loop()
            self.chain.close()
            self.reporter.ended(self.place)
        except ChannelClosed:
            pass  # the attempt is over; whoever ended it has reported why
        except BaseException as error:
            self.reporter.failed(self.place, error)

    def _loop(self) -> None:
        while not self.is_done():
            match self.step():
                case Step.WAITS_FOR_INPUT:
                    self._wait()
                case Step.WAITS_FOR_CREDIT:
                    self._wait_for_credit()

    def step(self) -> Step:
        """Handle one thing: mail first, then barriers that overtake, then input. Never blocks.

        Raises ChannelClosed once the attempt is over, and whatever an operator raises.
        """
        mail = self.mailbox.try_take()
        if mail is not None:
            self._on_mail(mail)
            return Step.WORKED
        if self._attend():
            return Step.WORKED
        if not self.chain.flush():
            return Step.WAITS_FOR_CREDIT
        self._on_processing_time()
        if self._feed.has_ended or not self._feed.advance(self):
            return Step.WAITS_FOR_INPUT
        return Step.WORKED

    def _on_processing_time(self) -> None:
        """Nothing more is emitted behind the final barrier: it would belong to no checkpoint."""
        if self._final_id is not None or not self.chain.awaits_processing_time:
            return
        now_ms = self.clock.monotonic_ms()
        if now_ms >= self._timers_due_ms:
            self._timers_due_ms = now_ms + PROCESSING_TIME_STEP_MS
            self.chain.on_processing_time()

    def _attend(self) -> bool:
        """What must wait neither for input nor for credit: barriers that overtake."""
        gathering = self._gathering
        if gathering is not None and gathering.waiting_outputs:
            gathering.look_at_outputs(self.clock.monotonic_ms())
            self._upload_if_complete()
        return self._feed.attend(self)

    def watermark_ms(self) -> int | None:
        return self._feed.watermark_ms()

    def queued(self) -> list[ChannelStatistics]:
        """What waits in front of this subtask, per input channel."""
        return self._feed.queued()

    def snapshot(
        self,
        barrier: Barrier,
        start_delay_ms: float,
        alignment_ms: float,
        channels: list[ChannelAlignment],
    ) -> None:
        """Every input has delivered its barrier."""
        self._gathering = gathering = self._cut(barrier, start_delay_ms)
        gathering.on_inputs(alignment_ms, channels)
        self._upload_if_complete()

    def overtake(self, barrier: Barrier, start_delay_ms: float) -> None:
        """Cut before every input has delivered its barrier; `inputs_recorded` has to follow."""
        self._gathering = self._cut(barrier, start_delay_ms)
        self._gathering.is_unaligned = True

    def inputs_recorded(
        self,
        checkpoint_id: CheckpointId,
        alignment_ms: float,
        channels: list[ChannelAlignment],
        recorded: list[InFlightRecords],
    ) -> None:
        """What was in flight on the inputs of a checkpoint that was cut by overtaking."""
        gathering = self._gathering
        if gathering is not None and gathering.barrier.checkpoint_id == checkpoint_id:
            gathering.on_inputs(alignment_ms, channels, recorded)
            self._upload_if_complete()

    def decline(self, checkpoint_id: CheckpointId, why: str) -> None:
        """It will not be cut here: tell the coordinator, and downstream in the stream itself."""
        self.reporter.declined(self.place, checkpoint_id, CheckpointDeclined(why))
        self.chain.broadcast(CancelCheckpoint(checkpoint_id))

    def give_up(self, checkpoint_id: CheckpointId) -> None:
        """Drop what is being gathered for it, or for an older one."""
        gathering = self._gathering
        if gathering is not None and gathering.barrier.checkpoint_id <= checkpoint_id:
            self._gathering = None

    def _cut(self, barrier: Barrier, start_delay_ms: float) -> Gathering:
        """1. Pass the barrier on. 2. Cut. What is in flight, and the upload, come later.

        The barrier goes first, so that downstream aligns while this subtask cuts; nothing is
        emitted in between.
        """
        in_flight = self.chain.pass_on(barrier)
        self.reporter.reach(FaultPoint.CUTTING)
        if barrier.is_final:
            self._final_id = barrier.checkpoint_id
        began_ms = self.clock.monotonic_ms()
        watermark_ms = self._feed.watermark_ms()
        cut = SubtaskCut(
            self.place,
            self.chain.cut(barrier),
            self._feed.positions(),
            watermark_ms,
            self.chain.key_times_ms(watermark_ms),
            self._feed.reserved(barrier.checkpoint_id),
        )
        cut_ms = self.clock.monotonic_ms()
        gathering = Gathering(barrier, cut, start_delay_ms, cut_ms - began_ms, cut_ms, in_flight)
        gathering.due_ms = turns_at_ms(barrier, self._barriers, self.clock)
        if gathering.due_ms is not None:
            gathering.waiting_outputs = self.chain.outputs_holding(barrier.checkpoint_id)
        return gathering

    def _upload_if_complete(self) -> None:
        gathering = self._gathering
        if gathering is not None and gathering.is_complete:
            self._gathering = None
            self.reporter.once_heard_of(
                gathering.barrier.checkpoint_id,
                lambda: self._uploads.submit(self._upload, gathering),
            )

    def _upload(self, gathered: Gathering) -> None:
        """Runs on an upload thread; a failure declines the checkpoint and hurts nobody else."""
        try:
            self._try_upload(gathered)
        except Exception as error:  # nobody would ever see what an upload thread ends with
            self.reporter.declined(self.place, gathered.barrier.checkpoint_id, error)

    def _try_upload(self, gathered: Gathering) -> None:
        barrier, checkpoint_id = gathered.barrier, gathered.barrier.checkpoint_id
        self.reporter.reach(FaultPoint.UPLOADING)
        location = self.reporter.location_of(checkpoint_id)
        if location is None:
            return  # nobody waits for it any more
        is_canonical = barrier.is_savepoint and not barrier.is_native
        written = self._snapshots.write(
            gathered.cut,
            checkpoint_id,
            location,
            open_format=is_canonical,
            in_flight=gathered.in_flight,
        )
        snapshot = written.snapshot
        self.reporter.reach(FaultPoint.UPLOADED)
        now_ms = self.clock.monotonic_ms()
        phases = SubtaskPhases(
            vertex=self.place.vertex.uid,
            subtask=self.place.subtask,
            start_delay_ms=gathered.start_delay_ms,
            alignment_ms=gathered.alignment_ms,
            sync_ms=gathered.sync_ms,
            async_ms=now_ms - gathered.cut_ms,
            acknowledged_ms=0.0,  # the coordinator fills this in, on its own clock
            state_bytes=snapshot_bytes(snapshot),
            uploaded_bytes=written.uploaded_bytes,
            is_unaligned=gathered.is_unaligned,
            persisted_bytes=snapshot.in_flight_bytes,
            channels=gathered.channels,
        )
        self.reporter.acknowledged(checkpoint_id, snapshot, phases)

    def _on_mail(self, mail: Mail) -> None:
        match mail:
            case InjectBarrier(barrier, drains):
                if drains:
                    self._feed.drain(self)
                overtakes = overtakes_at_once(barrier, self._barriers)
                self._feed.on_injected(replace(barrier, overtakes=overtakes), self)
            case CheckpointCompleted(checkpoint_id):
                self._completed_id = max(self._completed_id, checkpoint_id)
                self.chain.on_completed(checkpoint_id)
                self._commit(checkpoint_id)
                if self.chain.has_sinks:
                    self.reporter.committed(self.place, checkpoint_id)
                self._feed.on_completed(checkpoint_id, self)
            case CheckpointAborted(checkpoint_id):
                if self._final_id == checkpoint_id:
                    self._final_id = None
                self.chain.on_aborted(checkpoint_id)
                self._feed.on_aborted(checkpoint_id, self)
                self.give_up(checkpoint_id)

    def _commit(self, checkpoint_id: CheckpointId) -> None:
        if self.chain.has_sinks:
            self.reporter.reach(FaultPoint.COMMITTING)
            self.chain.commit(checkpoint_id)
            self.reporter.reach(FaultPoint.COMMITTED)

    def is_done(self) -> bool:
        """The input has ended, all is on its way and the final checkpoint is committed."""
        if not self._feed.has_ended or not self.chain.flush():
            return False
        return self._final_id is not None and self._completed_id >= self._final_id

    def _wait(self) -> None:
        began_ms = self.clock.monotonic_ms()
        wait_ms = self._feed.wait_ms
        if self.chain.awaits_processing_time:
            wait_ms = min(wait_ms, PROCESSING_TIME_STEP_MS)
        self.mailbox.wait(self._until_due(wait_ms))
        self.load.idle_ms += self.clock.monotonic_ms() - began_ms

    def _wait_for_credit(self) -> None:
        began_ms = self.clock.monotonic_ms()
        self.mailbox.wait(self._until_due(IDLE_WAIT_MS))
        self.load.blocked_ms += self.clock.monotonic_ms() - began_ms

    def _until_due(self, longest_ms: float) -> float:
        """Not longer than until a barrier turns, here or downstream."""
        gathering = self._gathering
        is_waiting = gathering is not None and gathering.waiting_outputs
        dues = [self._feed.due_ms, gathering.due_ms if gathering and is_waiting else None]
        now_ms = self.clock.monotonic_ms()
        return min([longest_ms, *(max(0.0, due - now_ms) for due in dues if due is not None)])


class CheckpointDeclined(Exception):
    """This subtask will not take part in a checkpoint, for the reason that it says."""


def failure_reason(error: Exception) -> CheckpointFailureReason:
    """Whatever else goes wrong, on an upload thread, is the asynchronous phase's failure."""
    if isinstance(error, CheckpointDeclined):
        return CheckpointFailureReason.CHECKPOINT_DECLINED
    return CheckpointFailureReason.CHECKPOINT_ASYNC_EXCEPTION


def end_of_stream(subtask: Subtask) -> None:
    """Tell downstream that nothing follows."""
    subtask.chain.broadcast(EndOfInput())
