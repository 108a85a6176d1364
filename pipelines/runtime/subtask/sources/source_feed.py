"""Feeds a source subtask: batches from the reader, barriers from the master.

A source that has read everything stays: it answers barriers until the final checkpoint completes,
so that the tail is committed like everything before it (Flink, FLIP-147).
"""

from typing import TYPE_CHECKING

import pyarrow as pa

from pipelines.channels.channel import ChannelStatistics
from pipelines.connectors.source import KnowsPending, MalformedRecord
from pipelines.domain.elements import (
    MAX_WATERMARK_MS,
    Barrier,
    EndOfInput,
    Origins,
    RecordOrigin,
    Watermark,
    WatermarkStatus,
)
from pipelines.domain.errors import Retryable
from pipelines.domain.ids import CheckpointId
from pipelines.domain.snapshots import Json
from pipelines.runtime.subtask.feed import IDLE_WAIT_MS
from pipelines.runtime.subtask.operator_failure import located
from pipelines.runtime.subtask.sources.direct_reader import PACED_WAIT_MS, ToldProgress
from pipelines.runtime.subtask.sources.source_reader import SourceReader, SplitInWork
from pipelines.runtime.subtask.subtask import Subtask

if TYPE_CHECKING:
    from pipelines.protocol.watermarks import EventTimeMark

_ACTIVE = [WatermarkStatus(is_idle=False)]


class SourceFeed:
    def __init__(
        self,
        reader: SourceReader,
        told: ToldProgress | None = None,
        quarantine: SourceReader | None = None,
        pending: KnowsPending | None = None,
    ) -> None:
        """`quarantine`: the source's, if any of it was ever read again, by `reader` or not."""
        self._reader = reader
        self._quarantine = quarantine
        self._told = told
        self._pending = pending
        self._stopping_id: CheckpointId | None = None  # the final barrier is out: emit nothing
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

    def attend(self, subtask: Subtask) -> bool:
        return self._reader.attend()

    def advance(self, subtask: Subtask) -> bool:
        if self._stopping_id is not None or self._exhaustion_reported:
            return False
        batch = self._read(subtask)
        chain, marks = subtask.chain, self._reader.take_marks()
        # An active source reports that ahead of the records that show it.
        before = 1 if marks[:1] == _ACTIVE else 0
        chain.on_event_time(marks[:before])
        self._count(subtask)
        if batch is not None:
            split = self._reader.split
            offsets = None if split is None else split.offsets
            chain.emit_from_source(batch, _origins(subtask, split), offsets, self._reader.trees)
        chain.on_event_time(marks[before:])
        if self._reader.take_wish():
            subtask.reporter.reservation_wanted(subtask.place)
        if batch is None and self._reader.is_exhausted:
            self._exhaustion_reported = True
            subtask.reporter.sources_ended(subtask.place)
        return batch is not None or self._reader.has_read_ahead

    def drain(self, subtask: Subtask) -> None:
        """Does nothing if the source has read everything: then it has ended event time itself."""
        self._is_drained = not self._exhaustion_reported
        if self._exhaustion_reported:
            return
        ended: list[EventTimeMark] = [*_ACTIVE, Watermark(MAX_WATERMARK_MS)]
        subtask.chain.on_event_time(ended)

    def on_injected(self, barrier: Barrier, subtask: Subtask) -> None:
        if barrier.is_final:
            self._stopping_id = barrier.checkpoint_id
        try:
            self._reader.confirm()
        except Exception as error:
            raise located(subtask.place.vertex.uid, (), error) from error
        delay_ms = max(0.0, float(subtask.clock.wall_ms() - barrier.trigger_ms))
        subtask.checkpoints.snapshot(barrier, delay_ms, 0.0, [])
        if self._told is not None:
            self._told.on_cut(barrier.checkpoint_id, self.positions())

    def on_completed(self, checkpoint_id: CheckpointId, subtask: Subtask) -> None:
        if self._told is not None:
            self._told.on_completed(checkpoint_id)
        self._reader.on_completed(checkpoint_id)
        if checkpoint_id == self._stopping_id:
            self._has_ended = True
            subtask.chain.broadcast(EndOfInput())

    def on_aborted(self, checkpoint_id: CheckpointId, subtask: Subtask) -> None:
        """If a final checkpoint failed, the stream goes on, unless event time has ended.

        Raises Retryable: what draining has fired must be taken back.
        """
        if self._told is not None:
            self._told.on_aborted(checkpoint_id)
        self._reader.on_aborted(checkpoint_id)
        if checkpoint_id != self._stopping_id:
            return
        self._stopping_id = None
        if self._is_drained:
            raise Retryable(
                f"the savepoint {checkpoint_id} failed after {subtask.name} had drained; the run"
                " goes back to before its windows fired"
            )

    def positions(self) -> Json:
        return self._reader.positions()

    def records_beyond_positions(self) -> int:
        return self._reader.records_beyond_positions()

    def close(self) -> None:
        """Call once the subtask has ended."""
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

    def _read(self, subtask: Subtask) -> pa.RecordBatch | None:
        """Raises OperatorFailed with the record at which the source or its watermarks failed."""
        try:
            return self._reader.next()
        except Exception as error:
            where = _origins(subtask, self._reader.asked)
            is_of_record = isinstance(error, MalformedRecord)
            if isinstance(error, MalformedRecord):
                where = tuple(origin.at_offset(error.offset) for origin in where)
            uid = subtask.place.vertex.uid
            raise located(uid, where, error, is_of_record=is_of_record) from error

    def _count(self, subtask: Subtask) -> None:
        counts = self._reader.take_counts()
        if self._told is not None:
            counts = {**counts, **self._told.take_counts()}
        for name, count in counts.items():
            subtask.chain.head_context().count(name, count)


def _origins(subtask: Subtask, split: SplitInWork | None) -> Origins:
    if split is None:
        return ()
    origin = RecordOrigin(
        source=subtask.place.vertex.uid,
        subtask=subtask.place.subtask,
        split=split.name,
        first_offset=split.first_offset,
        last_offset=split.next_offset - 1,
    )
    return (origin,)
