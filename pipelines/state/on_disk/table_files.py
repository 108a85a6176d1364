"""The database of one RocksDB table: Arrow batches of keys in, Arrow batches of values out.

Does not know what is in memory; keys that have not been flushed are unknown here.

The changed rows of a table as keys and values of its database, in the order of the keys.
"""

from collections.abc import Iterator
from itertools import islice

import numpy as np
import pyarrow as pa

from pipelines.state.backend import KEY_GROUP_COLUMN, Rows, TableDescriptor
from pipelines.state.hashing import KeyGroups
from pipelines.state.in_memory.frozen_table import Mask
from pipelines.state.on_disk.database_increment import Flush, Flushes, SortedRows
from pipelines.state.on_disk.row_codec import Packed, RowCodec, bytes_list, sort_order, take
from pipelines.state.on_disk.sorted_files import SortedFiles
from pipelines.state.on_disk.stored_database import decoded_rows

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


SCAN_ROWS = 1 << 16


class TableFiles:
    def __init__(self, descriptor: TableDescriptor, files: SortedFiles) -> None:
        self._files = files
        self._key_codec = RowCodec(descriptor.key, with_group=True)
        self._value_codec = RowCodec(descriptor.value, with_group=False)
        self.flushes = Flushes(files)

    @property
    def live_bytes(self) -> int:
        return self._files.live_bytes

    def close(self) -> None:
        self._files.close()

    def find(self, keys: pa.RecordBatch, groups: KeyGroups) -> tuple[Rows, pa.RecordBatch]:
        """The positions of the keys that exist here, and the values of each."""
        packed = self._key_codec.encode(keys.columns, keys.num_rows, groups)
        found = self._files.get(bytes_list(packed))
        at = np.array([i for i, value in enumerate(found) if value is not None], np.int64)
        if not len(at):
            return at, pa.RecordBatch.from_pylist([], schema=self._value_codec.schema)
        values, _ = self._value_codec.decode([value for value in found if value is not None])
        return at, values

    def scan_keys(self, after: bytes, limit: int) -> tuple[pa.RecordBatch | None, bytes | None]:
        """The keys of at most `limit` rows from `after` on, and where to go on, None at the end."""
        chunk = list(islice(self._files.scan(after), limit))
        if not chunk:
            return None, None
        keys, _ = self._key_codec.decode([key for key, _ in chunk])
        following = chunk[-1][0] + b"\0"  # the least key above the last one
        return keys, following if len(chunk) == limit else None

    def all_keys(self) -> Iterator[pa.RecordBatch]:
        rows = self._files.scan()
        while chunk := list(islice(rows, SCAN_ROWS)):
            keys, _ = self._key_codec.decode([key for key, _ in chunk])
            yield keys

    def in_order(self, changed: pa.RecordBatch, is_deleted: Mask) -> SortedTableRows:
        """The changed rows as the database stores them."""
        return SortedTableRows.of(changed, is_deleted, self._key_codec, self._value_codec)

    def reader(self) -> "CutScan":
        return CutScan(self._key_codec, self._value_codec)


class CutScan:
    """Implements `CutReader`: reads the whole table as it was at one cut."""

    def __init__(self, key_codec: RowCodec, value_codec: RowCodec) -> None:
        self._key_codec = key_codec
        self._value_codec = value_codec
        self._rows: Iterator[tuple[bytes, bytes]] = iter(())

    def on_flushed(self, files: SortedFiles) -> None:
        self._rows = files.scan()

    def batches(self, flushes: Flushes, flush: Flush) -> Iterator[pa.RecordBatch]:
        flushes.run_until(flush)
        yield from decoded_rows(self._rows, self._key_codec, self._value_codec)
