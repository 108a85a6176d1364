"""The trees that the rows of a batch belong to, and how they travel with it: as columns.

Each row has one edge of its own in every tree that it is anchored to. Two columns of lists carry
the edges behind the columns of the records, through any exchange. Operators never see them. Only
mode ACKED uses them.

Source: Storm, `MessageId` of a tuple, by column.
"""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from pipelines.protocol.trees import Ids, Numbers

TREES, EDGES, ROW = "storm:trees", "storm:edges", "storm:row"
_TREES_FIELD, _EDGES_FIELD = (pa.field(name, pa.list_(pa.uint64())) for name in (TREES, EDGES))
_ROW_FIELD = pa.field(ROW, pa.int64())


@dataclass(frozen=True, slots=True)
class Anchors:
    """One entry per row and tree: `rows` ascends; a row may belong to several trees, or none."""

    rows: Numbers
    trees: Ids
    edges: Ids

    def of_rows(self, rows: Numbers) -> tuple[Numbers, Numbers]:
        """The entries of these rows, in their order; and for each entry, the index of its row."""
        starts = np.searchsorted(self.rows, rows, side="left")
        counts = np.searchsorted(self.rows, rows, side="right") - starts
        firsts = np.cumsum(counts) - counts  # where the entries of each row begin, in the result
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
    """The records as operators see them, and their anchors."""
    place = batch.schema.get_field_index(TREES)
    if place < 0:
        return batch, NO_ANCHORS
    trees, edges = batch.column(place), batch.column(place + 1)
    lengths = trees.value_lengths().to_numpy(zero_copy_only=False)
    rows = np.repeat(np.arange(batch.num_rows), lengths)
    plain = batch.select(list(range(place)))
    return plain, Anchors(rows, _ids(trees), _ids(edges))


def with_rows(batch: pa.RecordBatch, rows: Numbers) -> pa.RecordBatch:
    """For the exchange: notes which row of the batch in work each row descends from."""
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
