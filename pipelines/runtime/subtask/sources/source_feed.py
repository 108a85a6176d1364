"""Feeds a source subtask: batches from the reader, barriers from the master.

A source that has read everything does not end yet: it answers barriers until the final checkpoint
completes, so that its last records are committed like all others (Flink, FLIP-147).
"""

from collections.abc import Mapping

import pyarrow as pa

from pipelines.channels.channel import ChannelStatistics
from pipelines.connectors.source import KnowsPending, MalformedRecord, ReportsProblem
from pipelines.domain.clock import Clock
from pipelines.domain.elements import Barrier, EndOfInput, Watermark, WatermarkStatus
from pipelines.domain.errors import Retryable, check
from pipelines.domain.event_time import MAX_WATERMARK_MS
from pipelines.domain.ids import CheckpointId
from pipelines.domain.origins import Origins, RecordOrigin
from pipelines.domain.snapshots import Json
from pipelines.protocol.watermarks import EventTimeMark
from pipelines.runtime.subtask.chains.chain_node import ChainPlace
from pipelines.runtime.subtask.feed import (
    IDLE_WAIT_MS,
    AskForReservation,
    Broadcast,
    Count,
    Cut,
    Effects,
    Emit,
    PassTime,
    ReportSourcesEnded,
)
from pipelines.runtime.subtask.operator_failure import located
from pipelines.runtime.subtask.sources.direct_reader import PACED_WAIT_MS, ProgressReporter
from pipelines.runtime.subtask.sources.source_reader import SourceReader, SplitInWork

_ACTIVE: list[EventTimeMark] = [WatermarkStatus(is_idle=False)]


class SourceFeed:
    def __init__(
        self,
        place: ChainPlace,
        reader: SourceReader,
        clock: Clock,
        progress: ProgressReporter | None = None,
        quarantine: SourceReader | None = None,
        pending: KnowsPending | None = None,
    ) -> None:
        """`quarantine`: the reader of the source's quarantine, if any of it was ever read again.
        `reader` may include it or not."""
        self._uid, self._subtask = place.vertex.uid, place.subtask
        self._reader = reader
        self._clock = clock
        self._quarantine = quarantine
        self._progress = progress
        self._pending = pending
        self._stopping_id: CheckpointId | None = None  # the final barrier is sent: emit nothing
        self._exhaustion_reported = False
        self._has_ended = False
        self._is_drained = False

    @property
    def has_ended(self) -> bool:
        return self._has_ended

    @property
    def wait_ms(self) -> float:
        return IDLE_WAIT_MS if self._exhaustion_reported else PACED_WAIT_MS

    @property
    def due_ms(self) -> float | None:
        return self._reader.due_ms

    def attend(self) -> Effects | None:
        return [] if self._reader.attend() else None

    def advance(self) -> Effects | None:
        if self._stopping_id is not None or self._exhaustion_reported:
            return None
        batch = self._read()
        effects: Effects = []
        marks = self._reader.take_marks()
        if marks[:1] == _ACTIVE:  # ahead of the records that make the source active
            effects.append(PassTime(_ACTIVE))
            marks = marks[1:]
        if counts := self._take_counts():
            effects.append(Count(counts))
        if batch is not None:
            split = self._reader.split
            offsets = None if split is None else split.offsets
            effects.append(Emit(batch, self._origins(split), offsets, self._reader.trees))
        if marks:
            effects.append(PassTime(marks))
        if self._reader.take_wish():
            effects.append(AskForReservation())
        if batch is None and self._reader.is_exhausted:
            self._exhaustion_reported = True
            effects.append(ReportSourcesEnded())
        return effects if effects or self._reader.has_read_ahead else None

    def drain(self) -> Effects:
        """Ends event time. Does nothing if the source has read everything, which has ended it."""
        self._is_drained = not self._exhaustion_reported
        return [PassTime([*_ACTIVE, Watermark(MAX_WATERMARK_MS)])] if self._is_drained else []

    def on_injected(self, barrier: Barrier) -> Effects:
        stopping_id, new_id = self._stopping_id, barrier.checkpoint_id
        check(stopping_id is None, "nothing follows a final barrier", final=stopping_id, new=new_id)
        if barrier.is_final:
            self._stopping_id = barrier.checkpoint_id
        try:
            self._reader.confirm()
        except Exception as error:
            raise located(self._uid, (), error) from error
        if self._progress is not None:
            self._progress.on_cut(barrier.checkpoint_id, self.positions())
        delay_ms = max(0.0, float(self._clock.wall_ms() - barrier.trigger_ms))
        return [Cut(barrier, delay_ms)]

    def on_completed(self, checkpoint_id: CheckpointId) -> Effects:
        if self._progress is not None:
            self._progress.on_completed(checkpoint_id)
        self._reader.on_completed(checkpoint_id)
        if checkpoint_id != self._stopping_id:
            return []
        self._has_ended = True
        return [Broadcast(EndOfInput())]

    def on_aborted(self, checkpoint_id: CheckpointId) -> Effects:
        """If a final checkpoint failed, the stream continues, unless event time has ended.

        Raises Retryable then, because the results that draining has fired must be taken back.
        """
        if self._progress is not None:
            self._progress.on_aborted(checkpoint_id)
        self._reader.on_aborted(checkpoint_id)
        if checkpoint_id != self._stopping_id:
            return []
        self._stopping_id = None
        if self._is_drained:
            raise Retryable(
                f"the savepoint {checkpoint_id} failed after {self._uid}[{self._subtask}] had"
                " drained; the run goes back to before its windows fired"
            )
        return []

    def positions(self) -> Json:
        return self._reader.positions()

    def counts_beyond_positions(self) -> Mapping[str, int]:
        return self._reader.counts_beyond_positions()

    def close(self) -> None:
        self._reader.close()
        if self._quarantine is not None:
            self._quarantine.close()

    def reserved(self, checkpoint_id: CheckpointId) -> Json:
        return self._reader.reserved(checkpoint_id)

    def replayed(self) -> Json:
        return None if self._quarantine is None else self._quarantine.positions()

    def watermark_ms(self) -> int | None:
        return self._reader.watermark_ms()

    def queued(self) -> list[ChannelStatistics]:
        return []

    def pending_records(self) -> int | None:
        return None if self._pending is None else self._pending.pending_records()

    def source_problem(self) -> str:
        return self._pending.source_problem() if isinstance(self._pending, ReportsProblem) else ""

    def _read(self) -> pa.RecordBatch | None:
        """Raises OperatorFailed with the record on which the source or its watermarks failed."""
        try:
            return self._reader.next()
        except Exception as error:
            where = self._origins(self._reader.requested)
            is_of_record = isinstance(error, MalformedRecord)
            if isinstance(error, MalformedRecord):
                where = tuple(origin.at_offset(error.offset) for origin in where)
            raise located(self._uid, where, error, is_of_record=is_of_record) from error

    def _take_counts(self) -> Mapping[str, int]:
        counts = self._reader.take_counts()
        return counts if self._progress is None else {**counts, **self._progress.take_counts()}

    def _origins(self, split: SplitInWork | None) -> Origins:
        if split is None:
            return ()
        origin = RecordOrigin(
            source=self._uid,
            subtask=self._subtask,
            split=split.name,
            first_offset=split.first_offset,
            last_offset=split.next_offset - 1,
        )
        return (origin,)
