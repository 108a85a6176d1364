"""One outgoing exchange of a node: which subtask gets which record, and which keys are frequent.

Owns no channel's state. Only a hash keeps an order that matters: the records of one key take one
channel. Source: Flink's `KeyGroupStreamPartitioner`, `RebalancePartitioner` and
`BroadcastPartitioner`; here a batch is cut into runs of rows, not distributed row by row.

A frequent key keeps one subtask busy while its neighbours wait. The sampler names it. It only takes
a slice of hashes that the exchange has computed anyway, at most `ROWS_PER_PERIOD` rows in each half
second. It copies the values of keys only if the settings show records.
"""

from collections import deque
from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa

from pipelines.channels.channel import Output
from pipelines.domain.elements import Barrier, Element, Records
from pipelines.domain.errors import check
from pipelines.domain.events import HotKeys
from pipelines.domain.graph import EdgeKind
from pipelines.domain.ids import CheckpointId, Uid
from pipelines.domain.origins import Origins
from pipelines.domain.texts import masked
from pipelines.runtime.subtask.snapshots.in_flight import InFlightRecords, overtaken_on
from pipelines.state.hashing import Hashes, key_groups, key_hashes

PERIOD_MS = 500.0
ROWS_PER_PERIOD = 512
PERIODS = 10
ROWS_MIN = 100
"""With fewer rows, shares mean nothing."""

HOT_FROM = 0.1
"""A group below this share of all records keeps no subtask busy by itself."""

NAMED_MAX = 3
KEY_CHARS_MAX = 60

_Chunk = tuple[Hashes, pa.RecordBatch | None]


class KeySampler:
    """Samples the keys of an exchange. One thread adds; another may read at any time."""

    def __init__(
        self,
        vertex: Uid,
        columns: tuple[str, ...],
        max_parallelism: int,
        now_ms: Callable[[], float],
        *,
        shows_keys: bool,
    ) -> None:
        """`vertex`: where the records go. `now_ms`: monotonic."""
        self._vertex = vertex
        self._columns = columns
        self._max_parallelism = max_parallelism
        self._now_ms = now_ms
        self._shows_keys = shows_keys
        self._period_until_ms = 0.0
        self._wanted_rows = 0  # in this period
        self._newest: list[_Chunk] = []
        self._periods: deque[list[_Chunk]] = deque(maxlen=PERIODS)

    def on_batch(self, batch: pa.RecordBatch, hashes: Hashes) -> None:
        """`hashes`: of the keys, one per row. Most calls only compare two numbers."""
        now_ms = self._now_ms()
        if now_ms >= self._period_until_ms:
            self._period_until_ms = now_ms + PERIOD_MS
            self._wanted_rows = ROWS_PER_PERIOD
            self._newest = []
            self._periods.append(self._newest)
        if self._wanted_rows <= 0 or not len(hashes):
            return
        step = -(-len(hashes) // self._wanted_rows)
        taken = hashes[::step].copy()  # a view would keep all hashes of the batch
        self._wanted_rows -= len(taken)
        self._newest.append((taken, self._keys(batch, step)))

    def hottest(self) -> HotKeys | None:
        """Returns the hot keys of about the last five seconds.

        Returns None if too few records passed or no group is hot.
        """
        chunks = [chunk for period in list(self._periods) for chunk in list(period)]
        if sum(len(hashes) for hashes, _ in chunks) < ROWS_MIN:
            return None
        hashes = np.concatenate([each for each, _ in chunks])
        rows = len(hashes)
        per_group = np.bincount(key_groups(hashes, self._max_parallelism))
        hot = np.argsort(per_group, kind="stable")[::-1][:NAMED_MAX]
        if per_group[hot[0]] < HOT_FROM * rows:
            return None
        return HotKeys(
            vertex=self._vertex,
            columns=list(self._columns),
            sampled=rows,
            groups=[(int(g), round(int(per_group[g]) / rows, 3)) for g in hot if per_group[g]],
            keys=self._named(hashes, chunks) if self._shows_keys else [],
        )

    def _keys(self, batch: pa.RecordBatch, step: int) -> pa.RecordBatch | None:
        if not self._shows_keys:
            return None
        keys = batch.select(list(self._columns))
        return keys.take(pa.array(np.arange(0, batch.num_rows, step)))

    def _named(self, hashes: Hashes, chunks: list[_Chunk]) -> list[tuple[str, float]]:
        distinct, first, counts = np.unique(hashes, return_index=True, return_counts=True)
        del distinct
        hot = np.argsort(counts, kind="stable")[::-1][:NAMED_MAX]
        keys = pa.Table.from_batches([each for _, each in chunks if each is not None])
        return [(_text(keys, int(first[i])), round(int(counts[i]) / len(hashes), 3)) for i in hot]


def _text(keys: pa.Table, row: int) -> str:
    values = ", ".join(str(column[row].as_py()) for column in keys.columns)
    return masked(values)[:KEY_CHARS_MAX]


Part = tuple[int, pa.RecordBatch]
"""A target subtask and its rows."""

Seal = Callable[[pa.RecordBatch], pa.RecordBatch]
"""Turns the rows for one subtask into the batch to send."""


class Exchange:
    """`outputs` are indexed by target subtask (a FORWARD edge has one). Marks go to all of them."""

    def __init__(
        self,
        hash_by: tuple[str, ...],
        outputs: list[Output],
        max_parallelism: int,
        kind: EdgeKind = EdgeKind.HASH,
        *,
        is_anchored: bool = True,
        sampler: KeySampler | None = None,
    ) -> None:
        """`sampler` looks at some of the rows of a hash."""
        self.is_anchored = is_anchored
        self.sampler = sampler
        self._hash_by = hash_by
        self.outputs = outputs
        self._max_parallelism = max_parallelism
        self._kind = kind
        self._next_target = 0  # of a rebalance
        self._parts = self._by_key
        check(bool(outputs), "an exchange leads somewhere", kind=kind)
        match kind:
            case EdgeKind.FORWARD:
                check(len(outputs) == 1, "a forward edge leads to one subtask")
            case EdgeKind.REBALANCE:
                self._parts = self._in_turn
            case EdgeKind.BROADCAST:
                self._parts = self._to_all
            case EdgeKind.HASH:
                check(bool(hash_by), "a key has columns")

    def send(
        self,
        batch: pa.RecordBatch,
        origins: Origins = (),
        seal: Seal | None = None,
    ) -> None:
        whole = ((0, batch),)
        for target, part in whole if len(self.outputs) == 1 else self._parts(batch):
            sealed = part if seal is None else seal(part)
            self.outputs[target].send(Records(sealed, origins))

    def overtake(self, barrier: Barrier) -> list[InFlightRecords]:
        """Sends the barrier ahead of the records that wait here, and returns those records.

        On a broadcast edge the barrier keeps its place. There each reader has taken different
        records, which could not be redistributed at another parallelism (Flink forbids it, too).
        """
        if self._kind is EdgeKind.BROADCAST:
            self.broadcast(barrier)
            return []
        return [kept for output in self.outputs for kept in overtaken_on(output, barrier)]

    def holding(self, checkpoint_id: CheckpointId) -> list[Output]:
        """Returns the outputs where this checkpoint's barrier waits and could overtake."""
        if self._kind is EdgeKind.BROADCAST:
            return []
        return [output for output in self.outputs if output.holds_barrier(checkpoint_id)]

    def broadcast(self, mark: Element) -> None:
        for output in self.outputs:
            output.send(mark)

    def _by_key(self, batch: pa.RecordBatch) -> Iterator[Part]:
        hashes = key_hashes(batch, self._hash_by)
        if self.sampler is not None:
            self.sampler.on_batch(batch, hashes)
        groups = key_groups(hashes, self._max_parallelism)
        owners = (groups.astype(np.uint32) * len(self.outputs)) // self._max_parallelism
        rows = np.bincount(owners, minlength=len(self.outputs)).tolist()
        for target, count in enumerate(rows):
            if count == batch.num_rows:
                yield target, batch
            elif count:
                yield target, batch.filter(pa.array(owners == target))

    def _in_turn(self, batch: pa.RecordBatch) -> Iterator[Part]:
        """Yields equal runs of rows; the next batch begins at the target where this one ended."""
        run_rows = -(-batch.num_rows // len(self.outputs))
        for start in range(0, batch.num_rows, run_rows):
            yield self._next_target, batch.slice(start, run_rows)
            self._next_target = (self._next_target + 1) % len(self.outputs)

    def _to_all(self, batch: pa.RecordBatch) -> Iterator[Part]:
        for target in range(len(self.outputs)):
            yield target, batch
