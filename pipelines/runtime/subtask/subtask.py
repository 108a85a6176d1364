"""The thread of one subtask: handles mail, then input, one at a time; takes part in checkpoints.

Knows nothing of sockets: it reads from a feed, writes to exchanges and reports to a
`SubtaskReporter`. The feed's machine decides when to cut, and the coordinator decides whether a
checkpoint completes. `SubtaskCheckpoints` passes the barrier on, cuts, and gathers the rest of the
snapshot. Only the subtask's thread uses it.

Source: Flink, `StreamTask` and its mailbox model.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import replace
from enum import Enum, auto

from pipelines.channels.channel import ChannelClosed, ChannelStatistics
from pipelines.connectors.sink import PrepareRefused
from pipelines.domain.checkpoint_failures import CheckpointFailureReason
from pipelines.domain.clock import Clock
from pipelines.domain.elements import Barrier, CancelCheckpoint
from pipelines.domain.errors import check
from pipelines.domain.faults import FaultPoint
from pipelines.domain.ids import NO_CHECKPOINT, CheckpointId
from pipelines.domain.settings import BarrierOptions
from pipelines.protocol.commit import CommitPermit
from pipelines.runtime.subtask.chains.chain import OperatorChain
from pipelines.runtime.subtask.chains.chain_node import ChainPlace
from pipelines.runtime.subtask.feed import (
    IDLE_WAIT_MS,
    AskForReservation,
    Broadcast,
    CheckpointStep,
    Count,
    Cut,
    CutAhead,
    Decline,
    Effects,
    Emit,
    Feed,
    GiveUp,
    KeepInFlight,
    PassTime,
    Process,
    Reach,
    ReportDeclined,
    ReportSourcesEnded,
)
from pipelines.runtime.subtask.gate_alignment import overtakes_at_once, turns_at_ms
from pipelines.runtime.subtask.mailbox import (
    CheckpointAborted,
    CheckpointCompleted,
    InjectBarrier,
    Mail,
    Mailbox,
)
from pipelines.runtime.subtask.snapshots.snapshotting import (
    Gathering,
    SnapshotUpload,
    SnapshotWriter,
    SubtaskCut,
)
from pipelines.runtime.subtask.subtask_reporter import (
    CheckpointDeclined,
    Load,
    Spending,
    SubtaskReporter,
)


class SubtaskCheckpoints:
    """Guarantee: state is cut exactly between the elements that the barrier separates.

    Needs a caller that emits nothing while a call is under way.
    """

    def __init__(
        self,
        *,
        place: ChainPlace,
        chain: OperatorChain,
        feed: Feed,
        upload: SnapshotUpload,
        reporter: SubtaskReporter,
        clock: Clock,
        options: BarrierOptions,
    ) -> None:
        self._place = place
        self._chain = chain
        self._feed = feed
        self._upload = upload
        self._reporter = reporter
        self._clock = clock
        self._options = options
        self._gathering: Gathering | None = None  # cut, not yet uploaded
        self._final_id: CheckpointId | None = None
        self._cut_id = NO_CHECKPOINT  # the newest checkpoint that was cut
        self._completed_id = NO_CHECKPOINT

    @property
    def has_cut_final(self) -> bool:
        """True once the final barrier has passed: later output would belong to no checkpoint."""
        return self._final_id is not None

    @property
    def has_completed_final(self) -> bool:
        return self._final_id is not None and self._completed_id >= self._final_id

    @property
    def due_ms(self) -> float | None:
        """The monotonic time from which a barrier waiting in an output overtakes records."""
        gathering = self._gathering
        return gathering.due_ms if gathering is not None and gathering.waiting_outputs else None

    @property
    def has_handed_over(self) -> bool:
        """True while the newest checkpoint waits for nothing but uploads, as far as this subtask
        can tell: whatever it does, it holds up no barrier."""
        return self._gathering is None and self._upload.has_started(self._cut_id)

    def attend(self) -> None:
        """Lets barriers overtake in outputs: they wait neither for input nor for credit."""
        gathering = self._gathering
        if gathering is not None and gathering.waiting_outputs:
            gathering.look_at_outputs(self._clock.monotonic_ms())
            self._upload_if_complete()

    def obey(self, step: CheckpointStep) -> None:
        match step:
            case Cut():
                self._snapshot(step)
            case CutAhead():
                self._overtake(step)
            case KeepInFlight():
                self._on_inputs_recorded(step)
            case GiveUp(checkpoint_id):
                self.give_up(checkpoint_id)
            case Decline(checkpoint_id, why):
                reason = CheckpointFailureReason.CHECKPOINT_DECLINED
                self._report_declined(checkpoint_id, reason, why)
                self._chain.broadcast(CancelCheckpoint(checkpoint_id))
            case ReportDeclined(checkpoint_id, reason, why):
                self._report_declined(checkpoint_id, reason, why)

    def give_up(self, checkpoint_id: CheckpointId) -> None:
        """Drops the snapshot being gathered, if it is for this checkpoint or an older one."""
        gathering = self._gathering
        if gathering is not None and gathering.barrier.checkpoint_id <= checkpoint_id:
            self._gathering = None
            self._upload.drop(gathering)

    def on_completed(self, permit: CommitPermit) -> None:
        """Commits the output that the sinks have prepared for the checkpoint."""
        checkpoint_id = permit.checkpoint_id
        self._upload.on_over(checkpoint_id)
        self._completed_id = max(self._completed_id, checkpoint_id)
        self._chain.on_completed(checkpoint_id)
        if self._chain.has_sinks:
            self._reporter.reach(FaultPoint.COMMITTING)
            self._chain.commit(permit)
            self._reporter.reach(FaultPoint.COMMITTED)
            self._reporter.committed(self._place, checkpoint_id)
        else:
            self._chain.commit(permit)  # records that a source has quarantined

    def on_aborted(self, checkpoint_id: CheckpointId) -> None:
        self._upload.on_over(checkpoint_id)
        if self._final_id == checkpoint_id:
            self._final_id = None
        self._chain.on_aborted(checkpoint_id)

    def _snapshot(self, step: Cut) -> None:
        self._gathering = gathering = self._cut(step.barrier, step.start_delay_ms)
        if gathering is not None:
            gathering.on_inputs(step.alignment_ms, step.channels)
            self._upload_if_complete()

    def _overtake(self, step: CutAhead) -> None:
        self._gathering = gathering = self._cut(step.barrier, step.start_delay_ms)
        if gathering is not None:
            gathering.is_unaligned = True

    def _on_inputs_recorded(self, step: KeepInFlight) -> None:
        gathering = self._gathering
        if gathering is not None and gathering.barrier.checkpoint_id == step.checkpoint_id:
            gathering.on_inputs(step.alignment_ms, step.channels, step.recorded)
            self._upload_if_complete()

    def _report_declined(
        self, checkpoint_id: CheckpointId, reason: CheckpointFailureReason, why: str
    ) -> None:
        self._reporter.declined(self._place, checkpoint_id, CheckpointDeclined(reason, why))

    def _cut(self, barrier: Barrier, start_delay_ms: float) -> Gathering | None:
        """1. Pass the barrier on. 2. Cut. The records in flight and the upload come later.

        The barrier goes first, so that downstream aligns while this subtask cuts; nothing is
        emitted in between. Returns None if a sink could not prepare and the checkpoint is declined.
        """
        newest, checkpoint_id = self._cut_id, barrier.checkpoint_id
        check(checkpoint_id > newest, "cuts ascend", checkpoint_id=checkpoint_id, newest=newest)
        self._cut_id = checkpoint_id
        in_flight = self._chain.pass_on(barrier)
        self._reporter.reach(FaultPoint.CUTTING)
        if barrier.is_final:
            self._final_id = barrier.checkpoint_id
        began_ms = self._clock.monotonic_ms()
        try:
            cut = self._frozen(barrier)
        except PrepareRefused as refusal:
            reason = CheckpointFailureReason.CHECKPOINT_DECLINED
            self._report_declined(barrier.checkpoint_id, reason, str(refusal))
            return None
        cut_ms = self._clock.monotonic_ms()
        gathering = Gathering(
            barrier=barrier,
            cut=cut,
            start_delay_ms=start_delay_ms,
            sync_ms=cut_ms - began_ms,
            cut_ms=cut_ms,
            in_flight=in_flight,
        )
        gathering.due_ms = turns_at_ms(barrier, self._options, self._clock)
        if gathering.due_ms is not None:
            gathering.waiting_outputs = self._chain.outputs_holding(barrier.checkpoint_id)
        return gathering

    def _frozen(self, barrier: Barrier) -> SubtaskCut:
        watermark_ms = self._chain.watermark_behind(self._feed.watermark_ms())
        operators = self._chain.cut(barrier)
        counters = operators[0].counters
        for name, count in self._feed.counts_beyond_positions().items():
            if count:
                counters[name] = counters.get(name, 0) - count
        return SubtaskCut(
            place=self._place,
            operators=operators,
            positions=self._feed.positions(),
            watermark_ms=watermark_ms,
            key_times_ms=self._chain.key_times_ms(watermark_ms),
            reserved=self._feed.reserved(barrier.checkpoint_id),
            replayed=self._feed.replayed(),
        )

    def _upload_if_complete(self) -> None:
        gathering = self._gathering
        if gathering is not None and gathering.is_complete:
            self._gathering = None
            self._upload.start(gathering)


PROCESSING_TIME_STEP_MS = 10.0
"""How often a subtask checks its processing-time timers: they may fire this late."""

WAY_STEP_MS = 5.0
"""How often a subtask that makes way looks whether the uploads are done."""


class Step(Enum):
    """The outcome of one turn of a subtask."""

    WORKED = auto()
    WAITS_FOR_INPUT = auto()
    WAITS_FOR_CREDIT = auto()  # downstream accepts nothing more, so take no input
    WAITS_FOR_RESULTS = auto()  # enough requests are under way, so take no input
    MAKES_WAY = auto()  # uploads starve, so take no input


class Subtask(threading.Thread):
    """Guarantee: everything that happens to its operators happens between two elements."""

    def __init__(
        self,
        *,
        place: ChainPlace,
        chain: OperatorChain,
        feed: Feed,
        snapshots: SnapshotWriter,
        uploads: Executor,
        uploads_starve: Callable[[], bool],
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
        upload = SnapshotUpload(place, snapshots, uploads, reporter, clock)
        self.checkpoints = SubtaskCheckpoints(
            place=place,
            chain=chain,
            feed=feed,
            upload=upload,
            reporter=reporter,
            clock=clock,
            options=barriers,
        )
        self._feed = feed
        self._barriers = barriers
        self._uploads_starve = uploads_starve
        self._newest_step = Step.WORKED
        self._timers_due_ms = 0.0  # when to check processing time next

    def run(self) -> None:
        self._reported(self._loop)

    def take_turn(self) -> Step | None:
        """Takes one step, for hosts without a thread per subtask. Returns None after the end."""
        return self._newest_step if self._reported(self._turn) else None

    def _reported(self, work: Callable[[], bool]) -> bool:
        """Returns True if `work` has more to do; otherwise reports how the subtask ended."""
        try:
            if work():
                return True
            self.chain.close()
            self.reporter.ended(self.place)
        except ChannelClosed:
            pass  # the attempt is over; its end has been reported
        except BaseException as error:
            self.reporter.failed(self.place, error)
        return False

    def _loop(self) -> bool:
        while not self.is_done():
            match self.step():
                case Step.WAITS_FOR_INPUT:
                    self._wait()
                case Step.WAITS_FOR_CREDIT:
                    self._wait_for_credit()
                case Step.WAITS_FOR_RESULTS:
                    self._wait_as(Spending.BUSY, self._longest_wait_ms(IDLE_WAIT_MS))
                case Step.MAKES_WAY:
                    self._wait_as(Spending.BUSY, self._longest_wait_ms(WAY_STEP_MS))
        return False

    def _turn(self) -> bool:
        if self.is_done():
            return False
        self._newest_step = self.step()
        return True

    def step(self) -> Step:
        """Handle one thing: mail first, then barriers that overtake, then input. Never blocks.

        Raises ChannelClosed once the attempt is over, and whatever an operator raises.
        """
        mail = self.mailbox.try_take()
        if mail is not None:
            self._on_mail(mail)
            return Step.WORKED
        self.checkpoints.attend()
        feed = self._feed
        effects = feed.attend()
        if effects is None:
            if not self.chain.flush():
                return Step.WAITS_FOR_CREDIT
            if self.awaits_results:
                self.chain.on_results()
            if self.chain.awaits_processing_time:
                self._on_processing_time()
            if self.awaits_results and self.chain.is_full:
                return Step.WAITS_FOR_RESULTS
            if self._uploads_starve() and self.checkpoints.has_handed_over:
                return Step.MAKES_WAY
            effects = None if feed.has_ended else feed.advance()
            if effects is None:
                return Step.WAITS_FOR_INPUT
        self.obey(effects)
        return Step.WORKED

    def is_done(self) -> bool:
        """Returns True once the input has ended, all output is sent, and the end is committed."""
        if not self._feed.has_ended or not self.chain.flush():
            return False
        return self.checkpoints.has_completed_final

    @property
    def awaits_results(self) -> bool:
        """True while requests are under way and their rows are not part of the final snapshot."""
        return self.chain.awaits_results and not self.checkpoints.has_cut_final

    def watermark_ms(self) -> int | None:
        return self._feed.watermark_ms()

    def queued(self) -> list[ChannelStatistics]:
        """Returns how much waits in front of this subtask, per input channel."""
        return self._feed.queued()

    def pending_records(self) -> int | None:
        return self._feed.pending_records()

    def source_problem(self) -> str:
        return self._feed.source_problem()

    def _on_mail(self, mail: Mail) -> None:
        match mail:
            case InjectBarrier(barrier, drains):
                if drains:
                    self.obey(self._feed.drain())
                overtakes = overtakes_at_once(barrier, self._barriers)
                self.obey(self._feed.on_injected(replace(barrier, overtakes=overtakes)))
            case CheckpointCompleted(permit):
                self.checkpoints.on_completed(permit)
                self.obey(self._feed.on_completed(permit.checkpoint_id))
            case CheckpointAborted(checkpoint_id):
                self.checkpoints.on_aborted(checkpoint_id)
                self.obey(self._feed.on_aborted(checkpoint_id))
                self.checkpoints.give_up(checkpoint_id)

    def obey(self, effects: Effects) -> None:
        """Carries out the effects of its feed, in order."""
        chain = self.chain
        for effect in effects:
            match effect:
                case Process():
                    chain.on_batch(*effect)
                case PassTime():
                    chain.on_event_time(effect.marks)
                case Emit():
                    chain.emit_from_source(*effect)
                case Count():
                    chain.count(effect.counts)
                case Broadcast(mark):
                    chain.broadcast(mark)
                case ReportSourcesEnded():
                    self.reporter.sources_ended(self.place)
                case AskForReservation():
                    self.reporter.reservation_wanted(self.place)
                case Reach(point):
                    self.reporter.reach(point)
                case step:
                    self.checkpoints.obey(step)

    def _on_processing_time(self) -> None:
        if self.checkpoints.has_cut_final:
            return
        now_ms = self.clock.monotonic_ms()
        if now_ms >= self._timers_due_ms:
            self._timers_due_ms = now_ms + PROCESSING_TIME_STEP_MS
            self.chain.on_processing_time()

    def _wait(self) -> None:
        self._wait_as(Spending.IDLE, self._longest_wait_ms(self._feed.wait_ms))

    def _longest_wait_ms(self, wait_ms: float) -> float:
        awaits_time = self.chain.awaits_processing_time
        return min(wait_ms, PROCESSING_TIME_STEP_MS) if awaits_time else wait_ms

    def _wait_for_credit(self) -> None:
        self._wait_as(Spending.BACKPRESSURED, IDLE_WAIT_MS)

    def _wait_as(self, spending: Spending, longest_ms: float) -> None:
        self.load = self.load.turned(spending, self.clock.monotonic_ms())
        self.mailbox.wait(self._until_due(longest_ms))
        self.load = self.load.turned(Spending.BUSY, self.clock.monotonic_ms())

    def _until_due(self, longest_ms: float) -> float:
        """Returns how long to wait: at most until a barrier overtakes in the input or an output."""
        dues = (self._feed.due_ms, self.checkpoints.due_ms)
        now_ms = self.clock.monotonic_ms()
        return min([longest_ms, *(max(0.0, due - now_ms) for due in dues if due is not None)])
