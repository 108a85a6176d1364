"""A subtask's part in its checkpoints: passes the barrier on, cuts, and gathers what follows.

Does not decide when to cut (the feed's machine does), nor whether a checkpoint completes (the
coordinator does). Used by the subtask's thread only.
"""

from pipelines.connectors.sink import PrepareRefused
from pipelines.domain.checkpoint_failures import CheckpointFailureReason
from pipelines.domain.clock import Clock
from pipelines.domain.elements import Barrier, CancelCheckpoint
from pipelines.domain.errors import check
from pipelines.domain.faults import FaultPoint
from pipelines.domain.ids import NO_CHECKPOINT, CheckpointId
from pipelines.domain.settings import BarrierOptions
from pipelines.protocol.fencing import CommitPermit
from pipelines.runtime.subtask.chains.chain import OperatorChain
from pipelines.runtime.subtask.chains.chain_node import ChainPlace
from pipelines.runtime.subtask.feed import (
    CheckpointStep,
    Cut,
    CutAhead,
    Decline,
    Feed,
    GiveUp,
    KeepInFlight,
    ReportDeclined,
)
from pipelines.runtime.subtask.gate_alignment import turns_at_ms
from pipelines.runtime.subtask.snapshots.snapshot_upload import Gathering, SnapshotUpload
from pipelines.runtime.subtask.snapshots.snapshotting import SubtaskCut
from pipelines.runtime.subtask.subtask_reporter import CheckpointDeclined, SubtaskReporter


class SubtaskCheckpoints:
    """Guarantee: state is cut exactly between the elements that the barrier separates.

    Needs a caller that emits nothing while it is at work.
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
        self._cut_id = NO_CHECKPOINT  # the newest
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
        """When a barrier that waits in an output turns, monotonic."""
        gathering = self._gathering
        return gathering.due_ms if gathering is not None and gathering.waiting_outputs else None

    def attend(self) -> None:
        """Barriers that may overtake in an output wait neither for input nor for credit."""
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
        """Drops what is being gathered for this checkpoint, or for an older one."""
        gathering = self._gathering
        if gathering is not None and gathering.barrier.checkpoint_id <= checkpoint_id:
            self._gathering = None

    def on_completed(self, permit: CommitPermit) -> None:
        """The output that the sinks have prepared for it becomes visible."""
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
            self._chain.commit(permit)  # what a source has quarantined

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
        """1. Pass the barrier on. 2. Cut. The records in flight, and the upload, come later.

        The barrier goes first, so that downstream aligns while this subtask cuts; nothing is
        emitted in between. None: a sink could not prepare, and the checkpoint is declined.
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
