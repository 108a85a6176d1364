"""Storm's output collector of one subtask: anchors the rows that it sends, acks those it processed.

Owns the anchors of the batch in work. It sends a message to an acker once all output of that batch
was handed to its channels, so a tree never looks complete in between. The ackers decide which trees
are complete (`protocol.acking`).

Each row has its own edge in every tree that it is anchored to. Two list columns, behind the columns
of the records, carry the edges through any exchange. Operators never see them. Only mode ACKED uses
them.

Source: Storm, `BasicOutputCollector` and `BoltOutputCollectorImpl` (every record is acked after its
execution, and all output emitted meanwhile is anchored to it); `MessageId` of a tuple, by column.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from pipelines.channels.channel import Output
from pipelines.domain.elements import EndOfInput
from pipelines.domain.errors import check
from pipelines.protocol.acking import Ids, Numbers, ackers_of
from pipelines.runtime.subtask.acking.acker_task import MessageKind, about_trees

TREES, EDGES, ROW = "storm:trees", "storm:edges", "storm:row"
_TREES_FIELD, _EDGES_FIELD = (pa.field(name, pa.list_(pa.uint64())) for name in (TREES, EDGES))
_ROW_FIELD = pa.field(ROW, pa.int64())


@dataclass(frozen=True, slots=True)
class Anchors:
    """One entry per row and tree. `rows` ascends; a row may belong to several trees or to none."""

    rows: Numbers
    trees: Ids
    edges: Ids

    def of_rows(self, rows: Numbers) -> tuple[Numbers, Numbers]:
        """Returns the entries of these rows, in order, and for each entry the index of its row."""
        starts = np.searchsorted(self.rows, rows, side="left")
        counts = np.searchsorted(self.rows, rows, side="right") - starts
        firsts = np.cumsum(counts) - counts  # where the entries of each row begin in the result
        entries = np.repeat(starts - firsts, counts) + np.arange(counts.sum())
        return entries, np.repeat(np.arange(len(rows)), counts)


NO_ANCHORS = Anchors(np.zeros(0, np.int64), np.zeros(0, np.uint64), np.zeros(0, np.uint64))


def with_anchors(batch: pa.RecordBatch, anchors: Anchors) -> pa.RecordBatch:
    ends = np.searchsorted(anchors.rows, np.arange(batch.num_rows + 1))
    offsets = pa.array(ends.astype(np.int32))
    lists = [
        pa.ListArray.from_arrays(offsets, pa.array(ids)) for ids in (anchors.trees, anchors.edges)
    ]
    schema = batch.schema.append(_TREES_FIELD).append(_EDGES_FIELD)
    return pa.RecordBatch.from_arrays([*batch.columns, *lists], schema=schema)


def without_anchors(batch: pa.RecordBatch) -> tuple[pa.RecordBatch, Anchors]:
    """Returns the records as operators see them, and their anchors."""
    place = batch.schema.get_field_index(TREES)
    if place < 0:
        return batch, NO_ANCHORS
    trees, edges = batch.column(place), batch.column(place + 1)
    lengths = trees.value_lengths().to_numpy(zero_copy_only=False)
    rows = np.repeat(np.arange(batch.num_rows), lengths)
    plain = batch.select(list(range(place)))
    return plain, Anchors(rows, _ids(trees), _ids(edges))


def with_rows(batch: pa.RecordBatch, rows: Numbers) -> pa.RecordBatch:
    """Adds, for the exchange, the row of the batch in work from which each row descends."""
    schema = batch.schema.append(_ROW_FIELD)
    return pa.RecordBatch.from_arrays([*batch.columns, pa.array(rows)], schema=schema)


def without_rows(part: pa.RecordBatch) -> tuple[pa.RecordBatch, Numbers | None]:
    place = part.schema.get_field_index(ROW)
    if place < 0:
        return part, None
    return part.select(list(range(place))), part.column(place).to_numpy()


def _ids(lists: pa.ListArray) -> Ids:
    ids: Ids = lists.flatten().to_numpy()
    return ids


ACKER_MESSAGES = "acker_messages"
COUNTERS = {
    MessageKind.INIT: "acker_inits",
    MessageKind.ACK: "acker_acks",
    MessageKind.FAIL: "acker_fails",
}
"""Count one per record and tree; `ACKER_MESSAGES` counts the messages that carried them."""

_LARGEST_ID = (1 << 64) - 1


class Anchoring:
    """Guarantee: one message XORs a record's edge with the edges of all records made from it.

    Only the subtask's thread uses it. `outputs` lead to the ackers, in their order; `random` is
    seeded, and shared with no other subtask.
    """

    def __init__(self, outputs: Sequence[Output], random: np.random.Generator) -> None:
        self.outputs = outputs
        self._random = random
        self._kind = MessageKind.ACK
        self._in_work = NO_ANCHORS
        self._edges = NO_ANCHORS.edges  # for each entry in work, the XOR that the acker will get
        self._counts = Counter[str]()

    def begin(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Starts work on a batch from a channel. Returns it as operators see it."""
        check(not len(self._in_work.trees), "a batch is settled before the next one begins")
        plain, anchors = without_anchors(batch)
        self._begin(MessageKind.ACK, anchors)
        return plain

    def begin_trees(self, trees: Ids) -> None:
        """Starts work on records of a spout; `trees` has one for each row."""
        check(not len(self._in_work.trees), "a batch is settled before the next one begins")
        rows = np.arange(len(trees))
        self._begin(MessageKind.INIT, Anchors(rows, trees, np.zeros(len(trees), np.uint64)))

    def marked(self, batch: pa.RecordBatch, rows: Numbers | None) -> pa.RecordBatch:
        """Call before an exchange. `rows`: the row in work from which each row descends, or None if
        every row descends from all of them."""
        return batch if rows is None else with_rows(batch, rows)

    def sealed(self, part: pa.RecordBatch) -> pa.RecordBatch:
        """Returns the rows for one subtask, anchored by new edges to the rows in work, if any."""
        plain, rows = without_rows(part)
        entries, of_rows = self._all_entries() if rows is None else self._in_work.of_rows(rows)
        if not len(entries):
            return plain
        edges = self._random.integers(1, _LARGEST_ID, len(entries), dtype=np.uint64, endpoint=True)
        np.bitwise_xor.at(self._edges, entries, edges)
        return with_anchors(plain, Anchors(of_rows, self._in_work.trees[entries], edges))

    def settle(self) -> None:
        """Acks the batch in work: all of its output was sent."""
        in_work, edges = self._in_work, self._edges
        self._tell(self._kind, in_work.trees, edges)
        self._begin(MessageKind.ACK, NO_ANCHORS)

    def fail(self) -> None:
        """Fails the batch in work; its output does not count."""
        trees, is_spout = self._in_work.trees, self._kind is MessageKind.INIT
        if is_spout:
            self._tell(MessageKind.INIT, trees, self._edges)
        self._tell(MessageKind.FAIL, trees, np.zeros(len(trees), np.uint64))
        self._begin(MessageKind.ACK, NO_ANCHORS)

    def take_counts(self) -> dict[str, int]:
        """Returns the counts since the last call, by the names of counters."""
        counts, self._counts = self._counts, Counter()
        return counts

    def close(self) -> None:
        """Ends the channels to the ackers: the subtask has ended."""
        for output in self.outputs:
            output.send(EndOfInput())

    def _begin(self, kind: MessageKind, anchors: Anchors) -> None:
        self._kind = kind
        self._in_work = anchors
        self._edges = anchors.edges.copy()

    def _all_entries(self) -> tuple[Numbers, Numbers]:
        """Returns one entry for each tree in work; the first row of the part carries them all."""
        _, entries = np.unique(self._in_work.trees, return_index=True)
        return entries, np.zeros(len(entries), np.int64)

    def _tell(self, kind: MessageKind, trees: Ids, edges: Ids) -> None:
        if not len(trees):
            return
        self._counts[COUNTERS[kind]] += len(trees)
        owners = ackers_of(trees, len(self.outputs))
        for index in np.unique(owners):
            mine = owners == index
            self.outputs[index].send(about_trees(kind, trees[mine], edges[mine]))
            self._counts[ACKER_MESSAGES] += 1
