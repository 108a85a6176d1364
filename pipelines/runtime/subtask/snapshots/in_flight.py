"""State in flight at a cut: the overtaken records of a channel, and event time by key group.

Records that a barrier has overtaken are stored and restored. If the watermarks of subtasks differ,
the cut stores the event time of each key group. Otherwise a subtask that is restored from several
subtasks would have to take the least of their watermarks. It would then emit results again that the
others had emitted (see `operators.event_time`). A cut before all key groups have caught up must
store these times again.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np
import pyarrow as pa

from pipelines.channels.channel import Output
from pipelines.channels.credit import cost_of
from pipelines.domain.elements import Barrier, Records, Watermark
from pipelines.domain.errors import Rejected, check
from pipelines.domain.event_time import MIN_WATERMARK_MS
from pipelines.domain.graph import EdgeKind, Vertex, VertexInput
from pipelines.domain.ids import ChannelEnds, ChannelId, channel_ends
from pipelines.domain.key_groups import KeyGroupRange, range_of
from pipelines.domain.snapshots import FileHandle, InFlightHandle, Manifest
from pipelines.operators.columns import Longs
from pipelines.state.hashing import key_groups, key_hashes

Beginning = Watermark | tuple[int, pa.RecordBatch]
"""A mark for downstream, or a port and its rows."""

ReadFile = Callable[[FileHandle], Iterator[pa.RecordBatch]]


@dataclass(frozen=True, slots=True)
class InFlightRecords:
    """Overtaken records of one channel.

    `is_output`: they waited at the writer, behind everything that was under way or queued.
    """

    channel: ChannelId
    is_output: bool
    batches: list[pa.RecordBatch]

    @property
    def rows(self) -> int:
        return sum(batch.num_rows for batch in self.batches)

    @property
    def size_bytes(self) -> int:
        return sum(cost_of(Records(batch)) for batch in self.batches)


def overtaken_on(output: Output, barrier: Barrier) -> list[InFlightRecords]:
    """Sends `barrier` ahead of the records that wait at `output`, even if it was aligned before."""
    batches = output.overtake(replace(barrier, overtakes=True))
    return [InFlightRecords(output.channel, True, batches)] if batches else []


@dataclass(frozen=True, slots=True)
class InFlightShare:
    """The share of one new subtask of `vertex` in the records in flight of a point.

    A key's records go to the key's new owner. Records without a key go by the old target's index.
    The records of one old channel keep their order. Source: Flink, FLIP-76 and its rescaling
    (FLINK-19801); here a reader of every old channel takes the place of virtual channels.
    """

    manifest: Manifest
    vertex: Vertex
    subtask: int
    parallelism: int  # of the vertex, now

    def read(self, read_file: ReadFile) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yields ports and rows. Raises CorruptSnapshot like the store.

        Raises Rejected for broadcast records at a different parallelism: some old subtasks had
        consumed a record and others had not, so no share of it is right for a new subtask.
        """
        for ends, handles in sorted(self._channels().items()):
            edge = next(edge for edge in self.vertex.inputs if edge.port == ends.port)
            if edge.kind is EdgeKind.BROADCAST and self.parallelism != self._old_parallelism:
                raise Rejected(
                    f"Records were being broadcast to {self.vertex.uid!r} when this point was cut;"
                    f" restore it at parallelism {self._old_parallelism}, or take a savepoint,"
                    " which holds no records in flight."
                )
            for handle in handles:
                for batch in read_file(handle.file):
                    mine = self._own_rows(edge, batch)
                    if mine.num_rows:
                        yield ends.port, mine

    def _channels(self) -> dict[ChannelEnds, list[InFlightHandle]]:
        """Orders the handles of each channel: records under way or queued come before those that
        waited at the writer."""
        found: dict[ChannelEnds, list[InFlightHandle]] = defaultdict(list)
        handles = [handle for subtask in self.manifest.subtasks for handle in subtask.in_flight]
        for handle in sorted(handles, key=lambda h: h.is_output):
            ends = channel_ends(handle.channel)
            if ends.downstream == self.vertex.uid and self._concerns(ends):
                found[ends].append(handle)
        return found

    def _concerns(self, ends: ChannelEnds) -> bool:
        edge = next(edge for edge in self.vertex.inputs if edge.port == ends.port)
        if edge.kind is not EdgeKind.HASH:
            return ends.target % self.parallelism == self.subtask
        old = range_of(ends.target, self._old_parallelism, self.manifest.max_parallelism)
        return old.overlaps(self._own_range())

    @property
    def _old_parallelism(self) -> int:
        return self.manifest.parallelism_of(self.vertex.uid)

    def _own_range(self) -> KeyGroupRange:
        return range_of(self.subtask, self.parallelism, self.manifest.max_parallelism)

    def _own_rows(self, edge: VertexInput, batch: pa.RecordBatch) -> pa.RecordBatch:
        if edge.kind is not EdgeKind.HASH:
            return batch
        own, maximum = self._own_range(), self.manifest.max_parallelism
        groups = key_groups(key_hashes(batch, edge.hash_by), maximum).astype(np.int64)
        return batch.filter(pa.array((groups >= own.first) & (groups <= own.last)))


def beginning(
    in_flight: Iterable[tuple[int, pa.RecordBatch]], watermark_ms: int | None
) -> Iterator[Beginning] | None:
    """Returns the elements that come before the first new one, or None if there are none.

    A watermark that was in flight at the cut was not stored, so the restored watermark of this
    subtask is sent downstream again.
    """
    marks = [] if watermark_ms is None else [Watermark(watermark_ms)]
    everything: Iterator[Beginning] = chain(marks, in_flight)
    first = next(everything, None)
    return None if first is None else chain([first], everything)


KeyTime = tuple[int, int, int]
"""The first and the last key group, both included, and their event time in milliseconds."""


def by_key_group(times: tuple[KeyTime, ...], max_parallelism: int) -> Longs | None:
    """Returns the event time of each key group, or None if all of them have the same."""
    if len({time_ms for _, _, time_ms in times}) < 2:
        return None
    highest = max(last for _, last, _ in times)
    check(highest < max_parallelism, "event times are of key groups", highest=highest)
    by_group = np.full(max_parallelism, MIN_WATERMARK_MS, np.int64)
    for first, last, time_ms in times:
        by_group[first : last + 1] = time_ms
    return by_group


def key_times(
    by_group: Longs | None, own: KeyGroupRange, watermark_ms: int | None
) -> list[KeyTime]:
    """Returns runs of own key groups with equal times; none once the watermark has passed all."""
    if by_group is None:
        return []
    restored = by_group[own.first : own.last + 1]
    now = np.maximum(restored, MIN_WATERMARK_MS if watermark_ms is None else watermark_ms)
    if (now == now[0]).all() and now[0] == watermark_ms:
        return []
    begins = np.flatnonzero(np.append(True, now[1:] != now[:-1])).tolist()
    ends = [*begins[1:], len(now)]
    return [
        (own.first + begin, own.first + end - 1, int(now[begin]))
        for begin, end in zip(begins, ends, strict=True)
    ]
