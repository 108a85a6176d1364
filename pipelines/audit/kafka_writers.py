"""What each writer has committed to a topic: rows and their digest, folded from the log.

Pure but for the digest: takes batches in the order of each partition. A transaction counts when its
end says so; what is open counts for nothing. Keeps sums and places, no records.
"""

from dataclasses import dataclass, field

import pyarrow as pa

from pipelines.audit.json_rows import batch_of, is_ambiguous
from pipelines.audit.kafka_batches import End, LogBatch, Record
from pipelines.audit.output import Rows, total
from pipelines.state.row_digest import digest_of

ROWS = 8_192
NO_ROWS = Rows(0, 0)


@dataclass(frozen=True, slots=True)
class Committed:
    """Of one writer, on one partition: one transaction, or one batch without any."""

    partition: int
    first: int
    last: int
    rows: Rows
    at_ms: int  # when the first record was made


@dataclass(slots=True)
class _Open:
    first: int
    at_ms: int
    last: int = -1
    rows: Rows = NO_ROWS
    waiting: list[Record] = field(default_factory=list)


class RecordRows:
    """Records as rows again: `value` and `key` name columns; without `value`, JSON."""

    def __init__(self, schema: pa.Schema, value: str | None, key: str | None) -> None:
        self._schema = schema
        self._value = value
        self._key = key
        self._is_whole = value is None or set(schema.names) <= {value, key}

    def of(self, records: list[Record]) -> Rows:
        """Counted only where the record does not hold all columns. What is no row of the schema
        was never given: its digest is that of nothing."""
        if not self._is_whole:
            return Rows(len(records), None)
        try:
            batch = self._batch(records)
        except (ValueError, TypeError, pa.ArrowException):
            return Rows(len(records), 0)
        is_plain = self._value is not None or not is_ambiguous(batch)
        return Rows(len(records), digest_of(batch) if is_plain else None)

    def _batch(self, records: list[Record]) -> pa.RecordBatch:
        if self._value is None:
            return batch_of([value or b"" for _, _, value in records], self._schema)
        keys, values = [key for _, key, _ in records], [value for _, _, value in records]
        columns = [
            _column(values if field.name == self._value else keys, field) for field in self._schema
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)


class KafkaWriters:
    """`committed`: what readers see, or will when an open transaction before it has ended."""

    def __init__(self, rows: RecordRows) -> None:
        self._rows = rows
        self._open: dict[tuple[int, int], _Open] = {}
        self.committed: dict[int, list[Committed]] = {}

    def on_batch(self, batch: LogBatch) -> None:
        key = batch.producer_id, batch.partition
        if batch.end is not None:
            found = self._open.pop(key, None)
            if found is not None and batch.end is End.COMMITTED:
                self._commit(key, found)
        elif batch.records:
            found = self._open.setdefault(key, _Open(batch.records[0][0], batch.at_ms))
            self._take(found, batch.records)
            if not batch.is_transactional:
                self._commit(key, self._open.pop(key))

    def is_open(self, producer_id: int) -> bool:
        return any(producer == producer_id for producer, _ in self._open)

    def rows_of(self, producer_id: int) -> Rows:
        return total(each.rows for each in self.committed.get(producer_id, []))

    def _take(self, found: _Open, records: list[Record]) -> None:
        found.last = records[-1][0]
        found.waiting += records
        if len(found.waiting) >= ROWS:
            self._digest(found)

    def _digest(self, found: _Open) -> None:
        if found.waiting:
            found.rows = total([found.rows, self._rows.of(found.waiting)])
            found.waiting = []

    def _commit(self, key: tuple[int, int], found: _Open) -> None:
        self._digest(found)
        producer_id, partition = key
        committed = Committed(partition, found.first, found.last, found.rows, found.at_ms)
        self.committed.setdefault(producer_id, []).append(committed)


def _column(values: list[bytes | None], field: pa.Field) -> pa.Array:
    raw = pa.array(values, pa.binary())
    return raw if pa.types.is_binary(field.type) else raw.cast(pa.string()).cast(field.type)
