"""Carries messages between the subtasks of one slot and the master, and samples the subtasks.

The reports of subtasks become messages on the slot's control connection. The master's messages
about checkpoints go to the subtasks. Counts the subtasks that still run. Sampling, twice a second
for the dashboard, only reads. Sockets and the process itself are in `slot`.

For an author's exception, a report shows the frames of the author's code and the record in work.
The record is a person's data: `pipeline.failures.show-records` decides whether it leaves the slot.
"""

import gc
import sys
import sysconfig
import threading
import traceback
from collections.abc import Callable
from datetime import date
from pathlib import Path
from types import FrameType

import psutil
import pyarrow as pa

from pipelines.channels.channel import ChannelStatistics
from pipelines.domain.checkpoint_failures import CheckpointFailureReason, SubtaskPhases
from pipelines.domain.clock import Clock
from pipelines.domain.elements import Barrier
from pipelines.domain.errors import check
from pipelines.domain.events import SubtaskSample
from pipelines.domain.faults import FaultPoint
from pipelines.domain.ids import CheckpointId, Uid
from pipelines.domain.snapshots import SubtaskSnapshot
from pipelines.domain.status import SavepointFormat
from pipelines.domain.texts import MASK, is_secret_value, masked, message_of
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
    MessageTooLong,
    ReservationWanted,
    Sampled,
    SourcesEnded,
)
from pipelines.runtime.slot.deployment import Deployment
from pipelines.runtime.subtask.chains.chain_node import ChainPlace
from pipelines.runtime.subtask.mailbox import CheckpointAborted, CheckpointCompleted, InjectBarrier
from pipelines.runtime.subtask.operator_failure import (
    OperatorFailed,
    damaged_file_of,
    described,
    failure_kind,
    is_damage,
    is_fatal,
    lost_output_of,
)
from pipelines.runtime.subtask.subtask import Subtask
from pipelines.runtime.subtask.subtask_reporter import Spent, failure_reason

Send = Callable[[Message], object]
Reach = Callable[[FaultPoint], object]


class SubtaskReports:
    """Implements `SubtaskReporter`. Thread-safe if `send` is.

    Calls `reach` at every fault point; its errors go to the caller that reached the point.
    """

    def __init__(self, send: Send, reach: Reach) -> None:
        self._send = send
        self._reach = reach
        self._counting = threading.Lock()
        self._running_count = 0
        self._have_all_ended = False
        self._shows_records = False

    def on_deployed(self, subtask_count: int, *, shows_records: bool = False) -> None:
        """`shows_records`: a failure may tell the master the values of the record in work."""
        self._running_count = subtask_count
        self._shows_records = shows_records

    @property
    def have_all_ended(self) -> bool:
        """True once every subtask has ended after the final checkpoint; the master learns that."""
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
            check(self._running_count > 0, "each subtask ends once", count=self._running_count)
            self._running_count -= 1
            self._have_all_ended = self._running_count == 0
        if self._have_all_ended:
            self._send(Ended())

    def reach(self, point: FaultPoint) -> None:
        self._reach(point)

    def _report_failure(
        self, vertex: Uid | None, subtask: int | None, error: BaseException
    ) -> None:
        try:
            self._send(self._whole_report(vertex, subtask, error))
        except Exception as second:  # unheard of, the failure would leave the run standing still
            cause = f"{type(error).__name__}; its report failed ({type(second).__name__})."
            where = masked("".join(traceback.format_tb(error.__traceback__)))[-TRACE_CHARS_MAX:]
            self._send(
                Failed(vertex=vertex, subtask=subtask, cause=cause, detail=where, is_fatal=False)
            )

    def _whole_report(
        self, vertex: Uid | None, subtask: int | None, error: BaseException
    ) -> Failed:
        of_operator = error if isinstance(error, OperatorFailed) else None
        return Failed(
            vertex=vertex,
            subtask=subtask,
            cause=_said_by(error),
            detail=masked(_traceback_of(error)),
            author_trace=author_trace(of_operator.error) if of_operator else "",
            record=self._record_of(error),
            is_fatal=is_fatal(error),
            kind=failure_kind(error),
            lost_output_of=lost_output_of(error),
            damaged_file=damaged_file_of(error),
            is_damage=is_damage(error),
            error=described(of_operator) if of_operator else None,
        )

    def _record_of(self, error: BaseException) -> str:
        if not self._shows_records or not isinstance(error, OperatorFailed) or error.record is None:
            return ""
        return record_text(error.record)


def _said_by(error: BaseException) -> str:
    """Returns the error's message, or its type if it has none."""
    return masked(message_of(error)) or type(error).__name__


def _traceback_of(error: BaseException) -> str:
    if isinstance(error, OperatorFailed):
        # An operator further up the chain passed it on, which made the error its own cause.
        error.__cause__ = error.error
    return "".join(traceback.format_exception(error))


AboutCheckpoint = Inject | Completed | Aborted


def deliver(message: AboutCheckpoint, deployment: Deployment) -> None:
    """Sends a barrier to the sources only, and the outcome of a checkpoint to every subtask."""
    match message:
        case Inject():
            for source in deployment.sources:
                source.mailbox.post(InjectBarrier(barrier_of(message), message.drains))
        case Completed(permit=permit):
            for subtask in deployment.subtasks:
                subtask.mailbox.post(CheckpointCompleted(permit))
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


SAMPLING_PERIOD_S = 0.5
STANDS_FROM_MS = 2_000.0
_NOTHING = Spent(0.0, 0.0, 0.0)


class Sampler(threading.Thread):
    def __init__(
        self, deployment: Deployment, clock: Clock, send: Callable[[Message], None]
    ) -> None:
        super().__init__(name="sampler", daemon=True)
        self._deployment = deployment
        self._clock = clock
        self._send = send
        self._process = psutil.Process()
        self._before: dict[str, Spent] = {}
        self._moved: dict[str, tuple[tuple[int, int], float]] = {}  # its counts, and since when
        self._ended = threading.Event()

    def run(self) -> None:
        while not self._ended.wait(SAMPLING_PERIOD_S):
            self._send(self._sample())
            if not any(subtask.is_alive() for subtask in self._deployment.subtasks):
                return

    def _sample(self) -> Sampled:
        counters: dict[str, int] = {}
        for subtask in self._deployment.subtasks:
            counters.update(subtask.chain.counters)
        return Sampled(
            subtasks=[self._subtask(subtask) for subtask in self._deployment.subtasks],
            source_records=sum(
                subtask.chain.head_context().counters.get("records_read", 0)
                for subtask in self._deployment.sources
            ),
            resident_bytes=self._process.memory_info().rss,
            counters=counters,
        )

    def _subtask(self, subtask: Subtask) -> SubtaskSample:
        spent = subtask.load.spent(self._clock.monotonic_ms())
        before = self._before.get(subtask.name, _NOTHING)
        self._before[subtask.name] = spent
        busy, idle, backpressured = ratios(before, spent)
        queued = subtask.queued()
        stands_ms, stands_at = self._standing(subtask, busy)
        return SubtaskSample(
            vertex=subtask.place.vertex.uid,
            subtask=subtask.place.subtask,
            records_in=subtask.chain.records_in,
            records_out=subtask.chain.records_out,
            busy_ratio=busy,
            backpressured_ratio=backpressured,
            idle_ratio=idle,
            busy_ms=round(spent.busy_ms),
            backpressured_ms=round(spent.backpressured_ms),
            idle_ms=round(spent.idle_ms),
            watermark_ms=subtask.watermark_ms(),
            queued_records=sum(each.queued_records for each in queued),
            queued_bytes=sum(each.queued_bytes for each in queued),
            state_bytes=subtask.chain.state_bytes(),
            pending_records=subtask.pending_records(),
            source_problem=masked(subtask.source_problem()),
            bytes_in=sum(each.read_bytes for each in queued),
            bytes_out=subtask.chain.bytes_out,
            queued_ms=_queued_ms(queued),
            window_bytes=queued[0].window_bytes if queued else None,
            metrics=subtask.chain.metrics,
            hot_keys=subtask.chain.hot_keys(),
            stands_ms=stands_ms,
            stands_at=stands_at,
        )

    def _standing(self, subtask: Subtask, busy: float) -> tuple[int | None, str]:
        """Returns how long an author's function has blocked the subtask, and its current line."""
        now_ms = self._clock.monotonic_ms()
        records = (subtask.chain.records_in, subtask.chain.records_out)
        before, since_ms = self._moved.get(subtask.name, (None, now_ms))
        if busy < 1.0 or records != before:
            self._moved[subtask.name] = (records, now_ms)
            return None, ""
        if now_ms - since_ms < STANDS_FROM_MS or not (place := _authors_place(subtask.ident)):
            return None, ""
        return round(now_ms - since_ms), place


def _authors_place(thread: int | None) -> str:
    """Returns the line of an author's code that the thread executes, or "" if there is none."""
    frame = frames_of_threads().get(thread or 0)
    while frame is not None and not _is_authors_own(frame.f_code.co_filename):
        frame = frame.f_back
    if frame is None:
        return ""
    code = frame.f_code
    return f"{Path(code.co_filename).name}:{frame.f_lineno}, in {code.co_name}"


def frames_of_threads() -> dict[int, FrameType]:
    """Returns {thread: what it executes}, while the garbage collector is switched off.

    Before Python 3.11.9, a collection that begins in there can wait for a lock that this call holds
    itself, and it waits with the interpreter's lock: the process stands still for ever (CPython's
    issue 106883).
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        return sys._current_frames()
    finally:
        if collects:
            gc.enable()


def _queued_ms(queued: list[ChannelStatistics]) -> int | None:
    known = [each.queued_ms for each in queued if each.queued_ms is not None]
    return round(sum(known)) if known else None


def ratios(before: Spent, now: Spent) -> tuple[float, float, float]:
    """Returns the busy, idle and backpressured shares between two readings; they sum to 1.

    If no time has passed, all of it counts as idle. A change during the last reading may have been
    counted on its other side, so a difference may be negative.
    """
    busy_ms = max(0.0, now.busy_ms - before.busy_ms)
    idle_ms = max(0.0, now.idle_ms - before.idle_ms)
    backpressured_ms = max(0.0, now.backpressured_ms - before.backpressured_ms)
    total_ms = busy_ms + idle_ms + backpressured_ms
    if total_ms <= 0:
        return 0.0, 1.0, 0.0
    return busy_ms / total_ms, idle_ms / total_ms, backpressured_ms / total_ms


ENGINE = str(Path(__file__).parents[2])
AUTHORS = tuple(f"{ENGINE}/{place}/" for place in ("flows", "lab"))
"""The pipelines that ship with the engine count as authors' code, too."""

TRACE_CHARS_MAX = 8_000
VALUE_CHARS_MAX = 200
RECORD_CHARS_MAX = 2_000


def author_trace(error: BaseException) -> str:
    """Returns the traceback without the engine's frames, or "" if no author's frame is in it."""
    trace = traceback.TracebackException.from_exception(error)
    if not _keep_authors(trace):
        return ""
    text = masked("".join(trace.format()))
    return text if len(text) <= TRACE_CHARS_MAX else "...\n" + text[-TRACE_CHARS_MAX:]


def record_text(row: pa.RecordBatch) -> str:
    """Returns a line for each column of one row, with secrets masked and long values cut."""
    columns = zip(row.schema.names, row.columns, strict=True)
    lines = [_line(name, column[0].as_py()) for name, column in columns]
    text = "\n".join(lines)
    return text if len(text) <= RECORD_CHARS_MAX else f"{text[:RECORD_CHARS_MAX]}..."


def _keep_authors(trace: traceback.TracebackException) -> bool:
    """Removes the engine's frames from the error and its causes. Returns True if any is left."""
    trace.stack = traceback.StackSummary.from_list(
        [frame for frame in trace.stack if _is_authors(frame.filename)]
    )
    chained = [each for each in (trace.__cause__, trace.__context__) if each is not None]
    found = [_keep_authors(each) for each in chained]
    return bool(trace.stack) or any(found)


def _is_authors(file: str) -> bool:
    if file.startswith("<frozen "):
        return False
    return not file.startswith(f"{ENGINE}/") or file.startswith(AUTHORS)


def _line(name: str, value: object) -> str:
    if is_secret_value(name, value):
        return f"{name}: {MASK}"
    text = masked(str(value) if isinstance(value, date) else repr(value))
    return f"{name}: {text if len(text) <= VALUE_CHARS_MAX else text[:VALUE_CHARS_MAX] + '...'}"


LIBRARIES = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib"))


def _is_authors_own(file: str) -> bool:
    """Returns True if the file belongs neither to the engine nor to a library."""
    return _is_authors(file) and not file.startswith(LIBRARIES)
