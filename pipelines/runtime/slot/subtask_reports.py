"""Turns the reports of one slot's subtasks into messages of its control connection.

Owns how many of them still run. `slot_mail` delivers what the master says to the slot; sockets and
the process itself are in `slot`.

Delivers what the master says about checkpoints to the subtasks of one slot.

`subtask_reports` is the other direction.
"""

import threading
import traceback
from collections.abc import Callable

from pipelines.domain.checkpoint_failures import CheckpointFailureReason, SubtaskPhases
from pipelines.domain.elements import Barrier
from pipelines.domain.faults import FaultPoint
from pipelines.domain.ids import CheckpointId, Uid
from pipelines.domain.snapshots import SubtaskSnapshot
from pipelines.domain.status import SavepointFormat
from pipelines.runtime.control import (
    Aborted,
    Acknowledged,
    Committed,
    Completed,
    Declined,
    Ended,
    Failed,
    Inject,
    Message,
    ReservationWanted,
    SourcesEnded,
)
from pipelines.runtime.control_link import MessageTooLong
from pipelines.runtime.slot.deployment import Deployment
from pipelines.runtime.subtask.chains.chain_node import ChainPlace
from pipelines.runtime.subtask.mailbox import CheckpointAborted, CheckpointCompleted, InjectBarrier
from pipelines.runtime.subtask.operator_failure import (
    OperatorFailed,
    damaged_file_of,
    described,
    is_damage,
    is_fatal,
    lost_output_of,
)
from pipelines.runtime.subtask.subtask_reporter import failure_reason

Send = Callable[[Message], object]
Reach = Callable[[FaultPoint], object]


class SubtaskReports:
    """Implements `SubtaskReporter`. Thread-safe, if `send` is.

    Calls `reach` at every fault point; what it raises goes to the caller that came there.
    """

    def __init__(self, send: Send, reach: Reach) -> None:
        self._send = send
        self._reach = reach
        self._counting = threading.Lock()
        self._running_count = 0
        self._have_all_ended = False

    def on_deployed(self, subtask_count: int) -> None:
        self._running_count = subtask_count

    @property
    def have_all_ended(self) -> bool:
        """Every subtask has ended after the final checkpoint, and the master knows it."""
        return self._have_all_ended

    def slot_failed(self, error: BaseException) -> None:
        """Reports a failure that belongs to no subtask."""
        self._report_failure(None, None, error)

    # Reports of subtasks.

    def acknowledged(
        self, checkpoint_id: CheckpointId, snapshot: SubtaskSnapshot, phases: SubtaskPhases
    ) -> None:
        head = snapshot.operators[0]
        message = Acknowledged(
            checkpoint_id=checkpoint_id,
            snapshot=snapshot,
            phases=phases,
            source_records=head.counters.get("records_read", 0),
            watermark_ms=head.watermark_ms,
        )
        try:
            self._send(message)
        except MessageTooLong as error:
            declined = Declined(
                checkpoint_id=checkpoint_id,
                vertex=snapshot.vertex,
                subtask=snapshot.subtask,
                reason=CheckpointFailureReason.CHECKPOINT_DECLINED,
                message=f"{error} It lists the files and positions of one subtask's snapshot:"
                " raise the parallelism, or let the sources have fewer splits.",
            )
            self._send(declined)

    def declined(self, place: ChainPlace, checkpoint_id: CheckpointId, error: Exception) -> None:
        self._send(
            Declined(
                checkpoint_id=checkpoint_id,
                vertex=place.vertex.uid,
                subtask=place.subtask,
                reason=failure_reason(error),
                message=_said_by(error),
            )
        )

    def committed(self, place: ChainPlace, checkpoint_id: CheckpointId) -> None:
        self._send(
            Committed(checkpoint_id=checkpoint_id, vertex=place.vertex.uid, subtask=place.subtask)
        )

    def sources_ended(self, place: ChainPlace) -> None:
        self._send(SourcesEnded(vertex=place.vertex.uid, subtask=place.subtask))

    def reservation_wanted(self, place: ChainPlace) -> None:
        self._send(ReservationWanted(vertex=place.vertex.uid, subtask=place.subtask))

    def failed(self, place: ChainPlace, error: BaseException) -> None:
        self._report_failure(place.vertex.uid, place.subtask, error)

    def ended(self, place: ChainPlace) -> None:
        del place
        with self._counting:
            self._running_count -= 1
            self._have_all_ended = self._running_count == 0
        if self._have_all_ended:
            self._send(Ended())

    def reach(self, point: FaultPoint) -> None:
        self._reach(point)

    def _report_failure(
        self, vertex: Uid | None, subtask: int | None, error: BaseException
    ) -> None:
        self._send(
            Failed(
                vertex=vertex,
                subtask=subtask,
                cause=_said_by(error),
                detail="".join(traceback.format_exception(error)),
                is_fatal=is_fatal(error),
                lost_output_of=lost_output_of(error),
                damaged_file=damaged_file_of(error),
                is_damage=is_damage(error),
                error=described(error) if isinstance(error, OperatorFailed) else None,
            )
        )


def _said_by(error: BaseException) -> str:
    """Some errors have no message but their type."""
    return str(error) or type(error).__name__


AboutCheckpoint = Inject | Completed | Aborted


def deliver(message: AboutCheckpoint, deployment: Deployment) -> None:
    """A barrier starts at the sources only; every subtask hears how a checkpoint ended."""
    match message:
        case Inject():
            for source in deployment.sources:
                source.mailbox.post(InjectBarrier(barrier_of(message), message.drains))
        case Completed(checkpoint_id=checkpoint_id):
            for subtask in deployment.subtasks:
                subtask.mailbox.post(CheckpointCompleted(checkpoint_id))
        case Aborted(checkpoint_id=checkpoint_id):
            for subtask in deployment.subtasks:
                subtask.mailbox.post(CheckpointAborted(checkpoint_id))


def barrier_of(message: Inject) -> Barrier:
    return Barrier(
        checkpoint_id=message.checkpoint_id,
        trigger_ms=message.trigger_ms,
        is_savepoint=message.savepoint_format is not None,
        is_native=message.savepoint_format is SavepointFormat.NATIVE,
        is_final=message.is_final,
        confirmed_id=message.confirmed_id,
        location=message.location,
    )
