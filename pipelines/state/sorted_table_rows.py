"""The changed rows of a table as keys and values of its database, in the order of the keys."""

import pyarrow as pa

from pipelines.state.backend import KEY_GROUP_COLUMN
from pipelines.state.dirty_rows import Mask
from pipelines.state.flushes import SortedRows
from pipelines.state.row_codec import Packed, RowCodec, bytes_list, sort_order, take

PART_ROWS = 1 << 13  # how many exist as Python objects at a time


class SortedTableRows:
    """The changed rows of a cut, encoded and in order; can be read repeatedly."""

    def __init__(self, keys: Packed, values: Packed, gone: Mask) -> None:
        self._keys = keys
        self._values = values
        self._gone = gone

    @classmethod
    def of(
        cls, rows: pa.RecordBatch, gone: Mask, key_codec: RowCodec, value_codec: RowCodec
    ) -> "SortedTableRows":
        groups = rows.column(KEY_GROUP_COLUMN).to_numpy()
        count = rows.num_rows
        keys = key_codec.encode(rows.select(key_codec.schema.names).columns, count, groups)
        order = sort_order(keys)
        keys = take(keys, order)  # one after the other, so that only one exists twice at a time
        values = value_codec.encode(rows.select(value_codec.schema.names).columns, count)
        return cls(keys, take(values, order), gone[order])

    def __call__(self) -> SortedRows:
        for start in range(0, len(self._gone), PART_ROWS):
            part = slice(start, start + PART_ROWS)
            keys, values = bytes_list(self._keys[part]), bytes_list(self._values[part])
            for key, value, gone in zip(keys, values, self._gone[part].tolist(), strict=True):
                yield key, None if gone else value
