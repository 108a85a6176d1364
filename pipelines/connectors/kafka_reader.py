"""Reads partitions of Kafka for one subtask: one consumer for all of them, a batch at a time.

A broker that is away is the client's business: it connects again, and there is nothing meanwhile.
What retention takes away before it is read ends the attempt with the range, instead of the client
leaping over it.
"""

from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from pipelines.connectors.json_decoding import MalformedLine, decode_lines
from pipelines.connectors.kafka_connection import REFUSALS, KafkaAddress, KafkaAdmin
from pipelines.connectors.source import LoggedRecords, Offsets
from pipelines.connectors.split_progress import SplitProgress
from pipelines.domain.errors import Rejected, Retryable, check

BATCH_ROWS = 20_000
AWAY = frozenset({KafkaError._ALL_BROKERS_DOWN, KafkaError._TRANSPORT, KafkaError._RESOLVE})
RAW = pa.schema(
    [("key", pa.binary()), ("value", pa.binary()), ("at", pa.timestamp("ms", tz="UTC"))]
)


@dataclass(frozen=True, slots=True)
class JsonValues:
    """Each value is a JSON object. A record without a value is a deletion, and is left out."""

    schema: pa.Schema

    def decoded(self, messages: Sequence[Message]) -> pa.RecordBatch:
        """Raises MalformedLine with the place among `messages`."""
        return decode_lines([message.value() or b"" for message in messages], self.schema)

    def has_record(self, message: Message) -> bool:
        return message.value() is not None


@dataclass(frozen=True, slots=True)
class RawValues:
    """Key and value as they are, and the time that Kafka keeps with a record."""

    schema: pa.Schema = RAW

    def decoded(self, messages: Sequence[Message]) -> pa.RecordBatch:
        columns = [
            pa.array([message.key() for message in messages], pa.binary()),
            pa.array([message.value() for message in messages], pa.binary()),
            pa.array([message.timestamp()[1] for message in messages], pa.int64()).cast(
                self.schema.field("at").type
            ),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def has_record(self, message: Message) -> bool:
        return True


ValueFormat = JsonValues | RawValues


class TopicsReader:
    def __init__(
        self,
        address: KafkaAddress,
        format: ValueFormat,
        timestamp_column: str | None,
        *,
        read_committed: bool,
    ) -> None:
        self._address = address
        self._format = format
        self._timestamp_column = timestamp_column
        self._refusal: KafkaError | None = None
        with address.settings_are_understood():
            self._consumer = Consumer(
                {
                    **address.settings(self._on_error),
                    "group.id": "ftdash",  # asked for by the client; nothing is committed to it
                    "enable.auto.commit": False,
                    "enable.auto.offset.store": False,
                    "enable.partition.eof": True,
                    "auto.offset.reset": "error",
                    "isolation.level": "read_committed" if read_committed else "read_uncommitted",
                }
            )
        self._waiting: defaultdict[str, deque[Message]] = defaultdict(deque)
        # Nothing more was there before this offset but markers of transactions, which nobody gets.
        self._end_seen: dict[str, int] = {}
        self._at: dict[str, SplitProgress] = {}

    def read(self, split: SplitProgress) -> Iterator[LoggedRecords]:
        at = split
        partition = partition_of(split.name)
        partition.offset = split.offset
        self._consumer.incremental_assign([partition])
        while at.end_offset is None or at.offset < at.end_offset:
            messages = self._take(at)
            batch = self._decoded(at.name, messages)
            if messages:
                at = msgspec.structs.replace(at, offset=int(batch.offsets[-1]) + 1)
            end = self._end_seen.get(at.name, 0)
            if end > at.offset:
                at = msgspec.structs.replace(at, offset=end)
                batch = LoggedRecords(batch.records, batch.offsets, end)
            yield batch
        self._consumer.incremental_unassign([partition_of(split.name)])

    def close(self) -> None:
        self._consumer.close()

    def _take(self, at: SplitProgress) -> list[Message]:
        """Records of that partition; those of others wait for their turn."""
        self._at[at.name] = at
        waiting = self._waiting[at.name]
        if not waiting:
            self._fetch()
        end, wanted = at.end_offset, []
        while waiting:
            message = waiting.popleft()
            if end is not None and offset_of(message) >= end:
                self._end_seen[at.name] = offset_of(message)
            elif self._format.has_record(message):
                wanted.append(message)
        return wanted

    def _fetch(self) -> None:
        for message in self._consumer.consume(BATCH_ROWS, timeout=0):
            error = message.error()
            name = f"{message.topic()}-{message.partition()}"
            if error is None:
                self._waiting[name].append(message)
            elif error.code() == KafkaError._PARTITION_EOF:
                self._end_seen[name] = offset_of(message)
            elif error.code() not in AWAY:
                raise self._failure(error, self._at[name])
        if self._refusal is not None:
            raise self._address.translated(self._refusal)

    def _failure(self, error: KafkaError, at: SplitProgress) -> Rejected | Retryable:
        if error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
            (oldest,) = KafkaAdmin(self._address).oldest([partition_of(at.name)])
            return Rejected(range_gone(at, oldest))
        return self._address.translated(error)

    def _decoded(self, name: str, messages: list[Message]) -> LoggedRecords:
        offsets = np.array([offset_of(message) for message in messages], np.int64)
        try:
            batch = self._format.decoded(messages)
        except MalformedLine as error:
            place = _place(name, offsets, error.line)
            raise Rejected(f"The record at {place} is malformed: {error}.") from error
        column = self._timestamp_column
        if column is not None and batch.column(column).null_count:
            row = batch.column(column).is_null().index(True).as_py()
            raise Rejected(f"The record at {_place(name, offsets, row)} has no {column}.")
        return LoggedRecords(batch, offsets)

    def _on_error(self, error: KafkaError) -> None:
        if error.code() in REFUSALS:
            self._refusal = error


def offset_of(message: Message) -> int:
    offset = message.offset()
    check(offset is not None, "what was consumed has an offset")
    return offset or 0


def name_of(partition: TopicPartition) -> str:
    return f"{partition.topic}-{partition.partition}"


def partition_of(name: str) -> TopicPartition:
    topic, _, number = name.rpartition("-")
    return TopicPartition(topic, int(number))


def range_gone(split: SplitProgress, oldest: int) -> str:
    partition = partition_of(split.name)
    return (
        f"Partition {partition.partition} of topic {partition.topic}: offsets {split.offset:,} to"
        f" {oldest - 1:,} are gone (retention) and were not read."
    )


def _place(name: str, offsets: Offsets, row: int) -> str:
    partition = partition_of(name)
    return f"offset {offsets[row]} of partition {partition.partition} of topic {partition.topic}"
