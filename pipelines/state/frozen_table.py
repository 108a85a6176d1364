"""A table as it was at the cut, handed out segment by segment as Arrow batches."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipelines.state.arrow_types import to_arrow
from pipelines.state.backend import KEY_GROUP_COLUMN, TableDescriptor
from pipelines.state.columns import FrozenColumn, segment_count, segment_of
from pipelines.state.key_columns import FrozenArrays

Mask = npt.NDArray[np.bool_]


def snapshot_schema(descriptor: TableDescriptor) -> pa.Schema:
    return pa.schema([*descriptor.key, *descriptor.value, (KEY_GROUP_COLUMN, pa.uint16())])


@dataclass(frozen=True, slots=True)
class FrozenTable:
    schema: pa.Schema
    length: int
    live: FrozenColumn
    keys: list[FrozenArrays]
    values: list[FrozenArrays]
    groups: FrozenColumn

    def batches(self, only: Mask | None = None) -> Iterator[pa.RecordBatch]:
        """The live rows, or those of them that `only` flags by row number.

        Dropping the iterator ends the saving of pre-images for it.
        """
        for segment in range(segment_count(self.length)):
            wanted = None if only is None else segment_of(only, segment, self.length)
            if wanted is not None and not wanted.any():
                continue
            live = self.live.take(segment)
            if wanted is not None:
                live = live & wanted
            picked = slice(None) if live.all() else np.flatnonzero(live)
            arrays = [column.take(segment, picked) for column in (*self.keys, *self.values)]
            arrays.append(to_arrow(self.groups.take(segment)[picked], pa.uint16()))
            if len(arrays[0]):
                yield pa.RecordBatch.from_arrays(arrays, schema=self.schema)
