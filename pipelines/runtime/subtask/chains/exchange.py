"""One outgoing exchange of a node: decides which subtask of the reader gets which record.

Owns no channel's state. Only a hash keeps an order that matters: the records of one key take one
channel. Source: Flink's `KeyGroupStreamPartitioner`, `RebalancePartitioner` and
`BroadcastPartitioner`; a batch is cut into runs of rows instead of being dealt row by row.
"""

from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa

from pipelines.channels.channel import Output
from pipelines.domain.elements import Barrier, Element, Origins, Records
from pipelines.domain.errors import check
from pipelines.domain.graph import EdgeKind
from pipelines.domain.ids import CheckpointId
from pipelines.runtime.subtask.chains.key_sampling import KeySampler
from pipelines.runtime.subtask.snapshots.in_flight import InFlightRecords, overtaken_on
from pipelines.state.hashing import key_groups, key_hashes

Part = tuple[int, pa.RecordBatch]
"""A target subtask and its rows."""

Seal = Callable[[pa.RecordBatch], pa.RecordBatch]
"""Turns the rows for one subtask into what is sent to it."""


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
        """`sampler` looks at some of what a hash sends."""
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
        """Passes the barrier on ahead of what waits here, and returns what it has overtaken.

        Not on a broadcast edge: there each reader has taken different records, which could not be
        dealt again at another parallelism (Flink forbids it, too). The barrier keeps its place.
        """
        if self._kind is EdgeKind.BROADCAST:
            self.broadcast(barrier)
            return []
        return [kept for output in self.outputs for kept in overtaken_on(output, barrier)]

    def holding(self, checkpoint_id: CheckpointId) -> list[Output]:
        """The outputs where this checkpoint's barrier waits and could overtake."""
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
        """Equal runs of rows; the next batch begins where this one ended."""
        run_rows = -(-batch.num_rows // len(self.outputs))
        for start in range(0, batch.num_rows, run_rows):
            yield self._next_target, batch.slice(start, run_rows)
            self._next_target = (self._next_target + 1) % len(self.outputs)

    def _to_all(self, batch: pa.RecordBatch) -> Iterator[Part]:
        for target in range(len(self.outputs)):
            yield target, batch
