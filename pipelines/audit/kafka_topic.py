"""Reads a topic's log to its end, and sums up each writer's committed rows and their digest.

Reads on while a transaction has still to end.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
from tenacity import Retrying, retry_if_result, stop_after_delay, wait_fixed

from pipelines.audit.file_output import batch_of, is_ambiguous
from pipelines.audit.kafka_batches import End, LogBatch, Record, reading_log
from pipelines.audit.output import Difference, Rows, total
from pipelines.connectors.kafka.connection import KafkaAddress
from pipelines.state.row_digest import digest_of

ROWS = 8_192
NO_ROWS = Rows(0, 0)


@dataclass(frozen=True, slots=True)
class Committed:
    """One writer's transaction on one partition, or one batch that it wrote without any."""

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
    """Turns records into rows: `value` and `key` name columns; without `value`, each is JSON."""

    def __init__(self, schema: pa.Schema, value: str | None, key: str | None) -> None:
        self._schema = schema
        self._value = value
        self._key = key
        self._is_whole = value is None or set(schema.names) <= {value, key}

    def of(self, records: list[Record]) -> Rows:
        """Only counts records that do not hold all columns. Records that are no rows of the schema
        were never given: they have the digest of no rows."""
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
    """`committed`: what readers see, or will see once an open transaction before it has ended."""

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


SETTLING_S = 10.0
"""A broker that has promised a commit writes its end into the log a moment later."""


class TopicReading:
    """`writers` and `begins` are as of the last reading."""

    def __init__(self, address: KafkaAddress, topic: str, rows: RecordRows) -> None:
        """Raises Rejected when the topic cannot be read."""
        self.topic = topic
        self.writers = KafkaWriters(rows)
        self.begins: dict[int, int] = {}  # by partition; older records were deleted
        self._address = address
        self._read: dict[int, int] = {}  # by partition: the end of the last reading
        self.read_on()

    def producers(self, transactional_ids: Sequence[str]) -> dict[str, int]:
        """Producer ids by transactional id, as far as the broker still knows them."""
        with reading_log(self._address, self.topic) as log:
            return log.producers(transactional_ids)

    def read_on(self) -> None:
        with reading_log(self._address, self.topic) as log:
            self.begins, ends = log.begins(), log.ends()
            for partition, end in sorted(ends.items()):
                begin = max(self._read.get(partition, 0), self.begins[partition])
                for batch in log.batches(partition, begin, end):
                    self.writers.on_batch(batch)
                self._read[partition] = max(begin, end)

    def wait_for_ends(self, producers: Collection[int]) -> None:
        """Reads on until their transactions have ended, for at most SETTLING_S."""

        def waits() -> bool:
            is_open = any(map(self.writers.is_open, producers))
            if is_open:
                self.read_on()
            return is_open

        tries = Retrying(
            retry=retry_if_result(bool),
            stop=stop_after_delay(SETTLING_S),
            wait=wait_fixed(0.05),
            retry_error_callback=lambda _: True,
        )
        tries(waits)

    def strangers(self, ours: Collection[int]) -> list[Committed]:
        """What other producers have committed since ours began, partition by partition."""
        begun: dict[int, int] = {}
        for producer_id in ours:
            for each in self.writers.committed.get(producer_id, ()):
                begun[each.partition] = min(each.first, begun.get(each.partition, each.first))
        return [
            each
            for producer_id, of_one in self.writers.committed.items()
            for each in of_one
            if producer_id not in ours and each.first > begun.get(each.partition, each.first)
        ]

    def told(self, strangers: Sequence[Committed]) -> Difference | None:
        if not strangers:
            return None
        count = sum(each.rows.count for each in strangers)
        first = min(strangers, key=lambda each: (each.partition, each.first))
        what = f"Topic {self.topic} has {count:,} records that no checkpoint gave it."
        range_ = f"offsets {first.first:,} to {first.last:,} of partition {first.partition}"
        return Difference(what, part=range_)
