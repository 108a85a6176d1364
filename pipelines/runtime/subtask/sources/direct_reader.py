"""Reads a source's splits for one subtask, knows its positions, and paces a replay.

Hands out each batch as soon as it has read it. The position always points behind the last record
handed out, so a barrier between two batches cuts exactly there. It reads several splits side by
side. The split whose event time is furthest behind comes first; among equals, the one that has
waited longest. Event time is that of the slowest split. A paced replay hands out records once event
time has reached them. That time advances at a fixed speed from where the run starts or restarts.

Some sources report the positions of completed checkpoints to another system. For these, it keeps
the positions between a cut and the end of its checkpoint. A report that fails changes nothing here.

Source: Flink, `KafkaSourceReader.notifyCheckpointComplete`.
"""

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa

from pipelines.connectors.source import (
    AnySource,
    Batch,
    GrowingSource,
    KnowsPending,
    ReportsProgress,
)
from pipelines.connectors.split_progress import NamedPositions, SplitProgress
from pipelines.connectors.watermark_strategy import WatermarkStrategy
from pipelines.domain.clock import Clock
from pipelines.domain.elements import Watermark
from pipelines.domain.event_time import MIN_WATERMARK_MS
from pipelines.domain.ids import CheckpointId
from pipelines.domain.snapshots import Json
from pipelines.protocol.watermarks import EventTimeMark, WatermarkMerger
from pipelines.runtime.subtask.chains.chain_node import RECORDS_READ
from pipelines.runtime.subtask.sources.found_splits import FixedSplits, FoundSplits, SplitSequence
from pipelines.runtime.subtask.sources.source_reader import (
    NO_COUNTS,
    SourceReader,
    SplitInWork,
    sum_of,
)
from pipelines.runtime.subtask.sources.split_reading import OpenSplit, Taken, pace_of
from pipelines.runtime.subtask.sources.split_screen import SplitScreen

TIMESTAMPS_FAR_AHEAD = "timestamps_far_ahead"
"""Counts records whose event time is further ahead than `connectors.watermark_strategy` accepts."""

COMMITS_SUCCEEDED, COMMITS_FAILED = "commits_succeeded", "commits_failed"
"""Counters of the source, as Flink names them."""


class ProgressReporter:
    """Guarantee: reports only positions of a completed checkpoint, never of an older one."""

    def __init__(self, reader: ReportsProgress) -> None:
        self._reader = reader
        self._cuts: dict[CheckpointId, tuple[SplitProgress, ...]] = {}

    def on_cut(self, checkpoint_id: CheckpointId, positions: Json) -> None:
        self._cuts[checkpoint_id] = NamedPositions.from_json(positions).splits

    def on_completed(self, checkpoint_id: CheckpointId) -> None:
        splits = self._cuts.get(checkpoint_id)
        self._forget(checkpoint_id)
        if splits:
            self._reader.tell(splits)

    def on_aborted(self, checkpoint_id: CheckpointId) -> None:
        self._cuts.pop(checkpoint_id, None)

    def take_counts(self) -> dict[str, int]:
        """Returns the counts since the last call, by the names of counters, without zeros."""
        succeeded, failed = self._reader.take_report_counts()
        counts = {COMMITS_SUCCEEDED: succeeded, COMMITS_FAILED: failed}
        return {name: count for name, count in counts.items() if count}

    def _forget(self, checkpoint_id: CheckpointId) -> None:
        """Drops this cut and older ones: a completed checkpoint subsumes older ones."""
        self._cuts = {cut: splits for cut, splits in self._cuts.items() if cut > checkpoint_id}


PACED_WAIT_MS = 20.0
"""How long a paced source sleeps if nothing is due."""

_TO_COME = "splits to come"
"""An input that holds event time back until splits are opened. If more splits may be found later,
it stays, idle, so that event time does not end with the last known split. Otherwise it ends, and
event time ends with the last split."""


class DirectReader(SourceReader):
    """Reads the splits of one subtask directly. Event time never goes back behind
    `restored_watermark_ms`, even if older records are read again."""

    def __init__(
        self,
        *,
        source: AnySource,
        restored: tuple[Json, ...],
        subtask: int,
        parallelism: int,
        clock: Clock,
        event_hours_per_s: float | None,
        strategy: WatermarkStrategy | None = None,
        restored_watermark_ms: int | None = None,
        screen: SplitScreen | None = None,
        beginning: Sequence[SplitProgress] | None = None,
    ) -> None:
        """`screen` is None if no record of the source is suspected. `beginning`: the splits that a
        growing source had when the run began, or None if each subtask looks for itself."""
        self._screen = screen
        self._source = source
        self._clock = clock
        self._strategy = strategy or WatermarkStrategy(source.out_of_orderness_ms)
        self._splits = _splits_of(source, restored, subtask, parallelism, clock, beginning)
        self._positions = self._splits.initial()
        self._pace = pace_of(source, restored, parallelism, clock, event_hours_per_s)
        self._open: dict[int, OpenSplit] = {}  # in the order of their last handing out
        self._merger = WatermarkMerger([_TO_COME], restored_watermark_ms)
        self._has_begun = False
        # Send it again: a watermark that was in flight at the cut may not have been stored.
        self._marks: list[EventTimeMark] = (
            [] if restored_watermark_ms is None else [Watermark(restored_watermark_ms)]
        )
        self._counts = NO_COUNTS
        self._split: SplitInWork | None = None
        self._requested: SplitInWork | None = None

    @property
    def split(self) -> SplitInWork | None:
        return self._split

    @property
    def requested(self) -> SplitInWork | None:
        return self._requested

    @property
    def is_exhausted(self) -> bool:
        if self._open or self._splits.may_grow:
            return False
        return self._has_begun and not self._has_split(self._positions.current()[0])

    @property
    def progress_reporter(self) -> ProgressReporter | None:
        """For callers that know which checkpoints complete; None if the source reports nothing."""
        reporter = self._splits.reporter
        return None if reporter is None else ProgressReporter(reporter)

    @property
    def pending(self) -> KnowsPending | None:
        """None if the source does not know how much there is to read."""
        return self._splits.pending

    def positions(self) -> Json:
        return self._splits.to_json(self._positions)

    def confirm(self) -> None:
        self._splits.confirm(self._positions)

    def close(self) -> None:
        self._splits.close()

    def next(self) -> pa.RecordBatch | None:
        self._positions = self._splits.grown(self._positions)
        self._open_up()
        while self._open:
            ended = None
            for split in self._by_event_time():
                self._requested = _first_of(split.name, split.next_offset)
                taken = split.take()
                if taken is None:
                    ended = split
                    break
                due = self._due_part(split, taken)
                if due.records.num_rows:
                    return self._hand_out(split, due)
            if ended is None:
                return None
            self._close(ended)
        return None

    def watermark_ms(self) -> int | None:
        current_ms = self._merger.current_ms
        return None if current_ms == MIN_WATERMARK_MS else current_ms

    def take_marks(self) -> list[EventTimeMark]:
        marks, self._marks = self._marks, []
        return marks

    def take_counts(self) -> Mapping[str, int]:
        counts, self._counts = self._counts, NO_COUNTS
        return counts

    def _by_event_time(self) -> list[OpenSplit]:
        """Returns the open splits, with the one furthest behind first."""
        splits = list(self._open.values())
        return splits if len(splits) == 1 else sorted(splits, key=OpenSplit.watermark_ms)

    def _open_up(self) -> None:
        """Opens splits until as many are open as are read side by side."""
        concurrency = self._splits.concurrency
        if len(self._open) < concurrency:
            opened = self._positions.opened(concurrency, self._has_split)
            for index, offset in opened.backlog[:concurrency]:
                if index not in self._open and self._has_split(index):
                    self._positions = opened
                    self._open_split(index, offset)
        if not self._has_begun:
            self._has_begun = True
            self._marks += (
                self._merger.on_status(_TO_COME, is_idle=True)
                if self._splits.may_grow
                else self._merger.on_end(_TO_COME)
            )

    def _open_split(self, index: int, offset: int) -> None:
        name = self._splits.name_of(index) or str(index)
        self._requested = _first_of(name, offset)
        self._open[index] = OpenSplit(
            index=index,
            name=name,
            next_offset=offset,
            batches=self._batches(index, name, offset),
            generator=self._strategy.generator(),
            strategy=self._strategy,
            time_column=self._source.timestamp_column,
        )
        self._merger.on_open(_input(index))

    def _batches(self, index: int, name: str, offset: int) -> Iterator[Batch]:
        if self._screen is None:
            return self._splits.read(index, offset, self._open)
        return self._screen.read(
            name,
            offset,
            lambda start: self._splits.read(index, start, self._open),
            lambda: self._splits.on_handed_out(index, 1),
        )

    def _close(self, split: OpenSplit) -> None:
        """Opens the next split before it ends this one: event time must end only with the last."""
        del self._open[split.index]
        self._positions = self._positions.finished(self._has_split, split.index)
        self._open_up()
        self._marks += self._merger.on_end(_input(split.index))

    def _due_part(self, split: OpenSplit, taken: Taken) -> Taken:
        """Returns the due records; a silent split has none, and may become idle."""
        now_ms = self._clock.monotonic_ms()
        if taken.records.num_rows == 0:
            distance = split.on_passed(taken)
            if distance:
                self._positions = self._positions.advanced(distance, split.index)
            if split.is_idle(now_ms):
                self._marks += self._merger.on_status(_input(split.index), is_idle=True)
            return taken
        due = split.due_part(taken, None if self._pace is None else self._pace.reached_ms(now_ms))
        if due.records.num_rows == 0:
            self._tell_event_time(split)
        return due

    def _hand_out(self, split: OpenSplit, taken: Taken) -> pa.RecordBatch:
        not_believed, offsets = split.far_ahead_count(), taken.offsets
        first = split.next_offset if offsets is None else int(offsets[0])
        distance = split.on_handed_out(taken)
        self._open[split.index] = self._open.pop(split.index)
        self._count(taken.records.num_rows, split.far_ahead_count() - not_believed)
        self._positions = self._positions.advanced(distance, split.index)
        self._splits.on_handed_out(split.index, taken.records.num_rows, taken.version)
        self._split = SplitInWork(split.name, first, split.next_offset, offsets)
        self._tell_event_time(split)
        return taken.records

    def _count(self, rows: int, far_ahead: int) -> None:
        counts = {RECORDS_READ: rows}
        if far_ahead:
            counts[TIMESTAMPS_FAR_AHEAD] = far_ahead
        self._counts = sum_of(self._counts, counts) if self._counts else counts

    def _tell_event_time(self, split: OpenSplit) -> None:
        name = _input(split.index)
        self._marks += self._merger.on_status(name, is_idle=False)
        if split.time_column is not None:
            self._marks += self._merger.on_watermark(name, split.watermark_ms())

    def _has_split(self, index: int) -> bool:
        return self._splits.name_of(index) is not None


def _first_of(name: str, offset: int) -> SplitInWork:
    """Returns the record that the reader asks a split for."""
    return SplitInWork(name, offset, offset + 1)


def _input(index: int) -> str:
    return f"split {index}"


def _splits_of(
    source: AnySource,
    restored: tuple[Json, ...],
    subtask: int,
    parallelism: int,
    clock: Clock,
    beginning: Sequence[SplitProgress] | None,
) -> SplitSequence:
    if isinstance(source, GrowingSource):
        return FoundSplits(
            source=source,
            restored=restored,
            subtask=subtask,
            parallelism=parallelism,
            clock=clock,
            beginning=beginning,
        )
    return FixedSplits(source, restored, subtask, parallelism)
