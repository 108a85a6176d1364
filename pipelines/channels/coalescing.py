"""Coalescing: decides which of the records queued for an operator it handles as one batch.

Every batch costs an operator some tenths of a millisecond, however few rows it has, and exchanges
cut batches into ever smaller ones. So the reader takes what is queued together: the records of one
input, from as many of its channels as have some, up to a number of rows. Nothing is held outside of
the gate's queues. A `Run` decides what may be joined; the gate offers it element by element.

A run includes watermarks, and the operator gets the newest ones once it has handled the records.
That is as if the sender had sent a larger batch. But a record that is late behind a watermark must
not come to lie before it, where it would be in time. So a run joins no record that is as old as a
watermark before it on its channel.

A batch that fills a run by itself passes untouched, with the watermark directly after it. A turn of
its own for that watermark would cost a tenth of what a simple operator takes for the batch.

Source: Flink's mini-batches (`table.exec.mini-batch.*`), for any operator and without a timer.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa

from pipelines.domain.elements import Element, Records, Watermark
from pipelines.domain.event_time import MAX_WATERMARK_MS
from pipelines.domain.ids import ChannelId
from pipelines.domain.origins import MOST_ORIGINS, Origins, Part

MAX_COALESCED_BYTES = 1 << 20
"""The most bytes of batches handled as one: joining copies them, and large ones gain nothing."""

MAX_COALESCED_BATCHES = 1_024
"""The most batches handled as one: they leave the queue in one step, while writers wait."""


_EVENT_TIME = pa.timestamp("ms", "UTC")


def _none_stands_alone(origins: Origins) -> bool:
    return False


@dataclass(frozen=True, slots=True)
class InputOfChannel:
    """The operator's input that a channel belongs to, and its column of event time."""

    port: int
    time_column: str | None = None


@dataclass(frozen=True, slots=True)
class Coalescing:
    """How the gate of one subtask joins batches. `inputs` has all of its channels."""

    inputs: Mapping[ChannelId, InputOfChannel]
    max_rows: int
    wait_ms: float = 0.0  # for more, while fewer than `max_rows` are queued
    stands_alone: Callable[[Origins], bool] = _none_stands_alone  # True: never joined


class Run:
    """Records of one input that are handled as one batch, and the event time after them.

    Begins with `first`, which always belongs to it.
    """

    __slots__ = (
        "_coalescing",
        "_splits",
        "first",
        "port",
        "records",
        "rows",
        "size_bytes",
        "watermarks",
    )

    def __init__(
        self, coalescing: Coalescing, channel: ChannelId, first: Records, cost_bytes: int
    ) -> None:
        self._coalescing = coalescing
        self.port = coalescing.inputs[channel].port
        self.first = first
        self.records = [first]
        self.rows: int = first.batch.num_rows
        self.watermarks: dict[ChannelId, int] = {}
        self.size_bytes = cost_bytes  # as credit counts it
        self._splits: set[tuple[str, int, str]] | None = None  # not computed yet

    def batch(self) -> pa.RecordBatch:
        """Returns one batch of all records, in the order in which they were taken."""
        if len(self.records) == 1:
            return self.first.batch
        return pa.concat_batches([records.batch for records in self.records])

    def parts(self) -> list[Part]:
        """Returns the parts that were joined in the batch, in order."""
        if len(self.records) == 1:  # the usual case with large batches
            return [(self.first.origins, self.rows)]
        return [(records.origins, records.batch.num_rows) for records in self.records]

    def try_take(self, channel: ChannelId, element: Element, cost_bytes: int) -> bool:
        """Takes the next element of a channel if it fits this run. Returns True if it does."""
        if isinstance(element, Watermark):
            self.watermarks[channel] = element.timestamp_ms
            return True
        if not isinstance(element, Records):
            return False
        if self.rows + element.batch.num_rows > self._coalescing.max_rows:
            return False
        if not self._may_join(channel, element, cost_bytes):
            return False
        self.records.append(element)
        self.rows += element.batch.num_rows
        self.size_bytes += cost_bytes
        return True

    def _may_join(self, channel: ChannelId, records: Records, cost_bytes: int) -> bool:
        coalescing = self._coalescing
        return (
            len(self.records) < MAX_COALESCED_BATCHES
            and self.size_bytes + cost_bytes <= MAX_COALESCED_BYTES
            and coalescing.inputs[channel].port == self.port
            and records.batch.schema.equals(self.first.batch.schema, check_metadata=True)
            and self._is_in_time(channel, records.batch)
            and self._may_mix(records.origins)
        )

    def _may_mix(self, origins: Origins) -> bool:
        stands_alone = self._coalescing.stands_alone
        if self._splits is None:
            if stands_alone(self.first.origins):
                return False
            self._splits = set(_splits_of(self.first.origins))
        both = self._splits.union(_splits_of(origins))
        if len(both) > MOST_ORIGINS or stands_alone(origins):
            return False
        self._splits = both
        return True

    def _is_in_time(self, channel: ChannelId, batch: pa.RecordBatch) -> bool:
        """Returns True if every record is newer than the watermark before it on its channel."""
        watermark_ms = self.watermarks.get(channel)
        time_column = self._coalescing.inputs[channel].time_column
        if watermark_ms is None or time_column is None:
            return True
        times = batch.column(time_column)
        if times.type != _EVENT_TIME:
            return False
        if times.null_count:
            times = times.drop_null()
        oldest_ms = times.view(pa.int64()).to_numpy().min(initial=MAX_WATERMARK_MS)
        return bool(oldest_ms > watermark_ms)


def _splits_of(origins: Origins) -> Iterator[tuple[str, int, str]]:
    return ((origin.source, origin.subtask, origin.split) for origin in origins)
