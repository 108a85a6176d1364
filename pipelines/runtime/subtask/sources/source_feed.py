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
from pipelines.runtime.subtask.chains.chain_node import RECORDS_READ
from pipelines.runtime.subtask.feed import IDLE_WAIT_MS
from pipelines.runtime.subtask.operator_failure import located
from pipelines.runtime.subtask.sources.reserving_reader import ReplayingReader, ReservingReader
from pipelines.runtime.subtask.sources.source_reader import (
    PACED_WAIT_MS,
    SourceReader,
    SplitInWork,
    ToldProgress,
)
from pipelines.runtime.subtask.sources.spout_reader import SpoutReader
from pipelines.runtime.subtask.subtask import Subtask

if TYPE_CHECKING:
    from pipelines.protocol.watermarks import EventTimeMark


TIMESTAMPS_FAR_AHEAD = "timestamps_far_ahead"
"""Counts records whose event time leapt further than `connectors.watermark_strategy` believes."""

RECORDS_REPLAYED = "records_replayed"
"""Counts records of the quarantine that operators get once more; the source read them before."""


class SourceFeed:
    def __init__(
        self,
        reader: SourceReader | ReservingReader | SpoutReader | ReplayingReader,
        told: ToldProgress | None = None,
        quarantine: SourceReader | None = None,
        pending: KnowsPending | None = None,
    ) -> None:
        """`quarantine`: the source's, if any of it was ever read again, by `reader` or not."""
        self._reader = reader
        self._quarantine = quarantine
        self._told = told
        self._pending = pending
        self._spout = reader if isinstance(reader, SpoutReader) else None
        self._reserving = reader if isinstance(reader, ReservingReader) else None
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
        return None if self._spout is None else self._spout.due_ms

    def attend(self, subtask: Subtask) -> bool:
        return self._spout is not None and self._spout.attend()

    def advance(self, subtask: Subtask) -> bool:
        if self._stopping_id is not None or self._exhaustion_reported:
            return False
        batch = self._read(subtask)
        chain, marks = subtask.chain, self._reader.take_marks()
        # An active source reports that ahead of the records that show it.
        before = 1 if marks[:1] == [WatermarkStatus(is_idle=False)] else 0
        chain.on_event_time(marks[:before])
        if batch is not None:
            self._count(batch, subtask)
            split = self._reader.split
            offsets = None if split is None else split.offsets
            trees = None if self._spout is None else self._spout.trees
            chain.emit_from_source(batch, _origins(subtask, split), offsets, trees)
        chain.on_event_time(marks[before:])
        self._count_events(subtask)
        if self._reserving is not None and self._reserving.take_wish():
            subtask.reporter.reservation_wanted(subtask.place)
        if batch is None and self._reader.is_exhausted:
            self._exhaustion_reported = True
            subtask.reporter.sources_ended(subtask.place)
        return batch is not None or (self._reserving is not None and self._reserving.has_read)

    def drain(self, subtask: Subtask) -> None:
        """Does nothing if the source has read everything: then it has ended event time itself."""
        self._is_drained = not self._exhaustion_reported
        if self._exhaustion_reported:
            return
        ended: list[EventTimeMark] = [WatermarkStatus(is_idle=False), Watermark(MAX_WATERMARK_MS)]
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
        if self._reserving is not None:
            self._reserving.on_completed(checkpoint_id)
        if checkpoint_id == self._stopping_id:
            self._has_ended = True
            subtask.chain.broadcast(EndOfInput())

    def on_aborted(self, checkpoint_id: CheckpointId, subtask: Subtask) -> None:
        """If a final checkpoint failed, the stream goes on, unless event time has ended.

        Raises Retryable: what draining has fired must be taken back.
        """
        if self._told is not None:
            self._told.on_aborted(checkpoint_id)
        if self._reserving is not None:
            self._reserving.on_aborted(checkpoint_id)
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
        return 0 if self._spout is None else self._spout.records_beyond_positions()

    def close(self) -> None:
        """Call once the subtask has ended."""
        self._reader.close()
        if self._quarantine is not None:
            self._quarantine.close()

    def reserved(self, checkpoint_id: CheckpointId) -> Json:
        return None if self._reserving is None else self._reserving.reserved(checkpoint_id)

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

    def _count(self, batch: pa.RecordBatch, subtask: Subtask) -> None:
        context = subtask.chain.head_context()
        if isinstance(self._reader, ReplayingReader) and self._reader.is_replaying:
            context.count(RECORDS_REPLAYED, batch.num_rows)
        elif self._spout is None or not self._spout.is_replay:
            context.count(RECORDS_READ, batch.num_rows)
        far_ahead = self._reader.take_far_ahead_count()
        if far_ahead:
            context.count(TIMESTAMPS_FAR_AHEAD, far_ahead)

    def _count_events(self, subtask: Subtask) -> None:
        for counting in (self._spout, self._told):
            for name, count in counting.take_counts().items() if counting is not None else ():
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
