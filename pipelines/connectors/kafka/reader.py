"""Reads partitions of Kafka for one subtask: one consumer for all of them, a batch at a time.

If a broker is away, the client reconnects by itself, and the reader yields nothing meanwhile. If
retention deletes records before they are read, the attempt ends and names the range, where the
client would skip it. A partition that delivers faster than it is read is paused meanwhile.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from pipelines.connectors.json_rows import MalformedLine, before_malformed, decode_lines
from pipelines.connectors.kafka.connection import REFUSALS, KafkaAddress, KafkaAdmin
from pipelines.connectors.kafka.fetched import (
    BATCH_ROWS,
    Fetched,
    WaitingRecords,
    by_partition,
    place_of,
)
from pipelines.connectors.source import LoggedRecords, MalformedRecord, Offsets, UnreadableText
from pipelines.connectors.split_progress import SplitProgress, sum_known
from pipelines.connectors.watermark_strategy import NoEventTime, check_has_event_time
from pipelines.domain.errors import Rejected, Retryable

AWAY = frozenset({KafkaError._ALL_BROKERS_DOWN, KafkaError._TRANSPORT, KafkaError._RESOLVE})
OF_GROUPS = frozenset(  # the client looks for its group, which we do not use
    {
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.INVALID_GROUP_ID,
        KafkaError.NOT_COORDINATOR,
        KafkaError._WAIT_COORD,
    }
)
NO_GROUP = {"group.id": "ftdash"}
"""The client requires one; nothing is committed to it."""

CONFIRM_TIMEOUT_S = 0.5

NO_TIME = -1
RAW = pa.schema(
    [("key", pa.binary()), ("value", pa.binary()), ("at", pa.timestamp("ms", tz="UTC"))]
)


@dataclass(frozen=True, slots=True)
class JsonValues:
    """Each value is a JSON object. A record without a value is a deletion, and is left out."""

    schema: pa.Schema

    def decoded(self, fetched: Fetched) -> pa.RecordBatch:
        """Raises MalformedLine with the row."""
        return decode_lines([value or b"" for value in fetched.values], self.schema)

    def records_among(self, fetched: Fetched) -> Fetched:
        return fetched.with_values()

    def row_of_text(self, text: str) -> pa.RecordBatch:
        """Raises UnreadableText."""
        try:
            return decode_lines([text.encode()], self.schema)
        except MalformedLine as error:
            raise UnreadableText(str(error)) from error


@dataclass(frozen=True, slots=True)
class RawValues:
    """Key and value unchanged, and the time that Kafka keeps with a record, null without one."""

    schema: pa.Schema = RAW

    def decoded(self, fetched: Fetched) -> pa.RecordBatch:
        at, has_none = self.schema.field("at").type, fetched.times_ms == NO_TIME
        columns = [
            pa.array(fetched.keys, pa.binary()),
            pa.array(fetched.values, pa.binary()),
            pa.array(fetched.times_ms, at, mask=has_none),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def records_among(self, fetched: Fetched) -> Fetched:
        return fetched

    def row_of_text(self, text: str) -> pa.RecordBatch:
        """A value alone: a quarantine has no more of a record that could not be read."""
        values = {"key": None, "value": text.encode(), "at": None}
        return pa.RecordBatch.from_pylist([values], schema=self.schema)


ValueFormat = JsonValues | RawValues


class TopicsReader:
    def __init__(
        self,
        address: KafkaAddress,
        format: ValueFormat,
        timestamp_column: str | None,
        *,
        read_committed: bool,
        group: Mapping[str, Any] = NO_GROUP,
    ) -> None:
        """`group`: the client's settings of its group, although it reads without one."""
        self._address = address
        self._format = format
        self._timestamp_column = timestamp_column
        self._refusal: KafkaError | None = None
        self._admin: KafkaAdmin | None = None  # kept, because every cut asks it
        with address.settings_are_understood():
            self._consumer = Consumer(
                {
                    **address.settings(self._on_error),
                    **group,
                    "enable.auto.commit": False,
                    "enable.auto.offset.store": False,
                    "enable.partition.eof": True,
                    "auto.offset.reset": "error",
                    "isolation.level": "read_committed" if read_committed else "read_uncommitted",
                }
            )
        self._waiting: dict[str, WaitingRecords] = {}
        self._at: dict[str, SplitProgress] = {}
        self._pending: dict[str, int | None] = {}

    def read(self, split: SplitProgress) -> Iterator[LoggedRecords]:
        at = split
        waiting = self._waiting[at.name] = WaitingRecords(at.end_offset)
        self._pending[at.name] = None
        partition = partition_of(split.name)
        partition.offset = split.offset
        self._consumer.incremental_assign([partition])
        while at.end_offset is None or at.offset < at.end_offset:
            fetched = self._take(at, waiting)
            try:
                batch = self._decoded(at.name, fetched)
            except MalformedRecord as error:
                yield from self._before_malformed(error, split, fetched)
            if len(fetched):
                at = msgspec.structs.replace(at, offset=int(batch.offsets[-1]) + 1)
            if waiting.end > at.offset:
                at = msgspec.structs.replace(at, offset=waiting.end)
                batch = LoggedRecords(batch.records, batch.offsets, waiting.end)
            self._pending[at.name] = self._records_behind(at)
            yield batch
        self._release(split)

    def _before_malformed(
        self, met: MalformedRecord, split: SplitProgress, fetched: Fetched
    ) -> Iterator[LoggedRecords]:
        """Always raises MalformedRecord."""
        try:
            yield from before_malformed(
                met, lambda rows: self._decoded(split.name, fetched.divided(rows)[0])
            )
        except MalformedRecord:
            self._release(split)
            raise

    def _release(self, split: SplitProgress) -> None:
        """Unassigns the partition, which may be read again from another offset on."""
        waiting, partition = self._waiting.pop(split.name), partition_of(split.name)
        if waiting.is_paused:
            self._consumer.resume([partition])
        self._consumer.incremental_unassign([partition])

    def confirmed(self, splits: Sequence[SplitProgress]) -> dict[str, str]:
        """See `ConfirmsSplits`. The versions are topic ids. The client reads on by name, and does
        not say if a topic was created again. So the records that it fetched before the answer
        belong to the topic with that id."""
        topics = {split.name: partition_of(split.name).topic for split in splits}
        if self._admin is None:
            self._admin = KafkaAdmin(self._address)
        try:
            ids = self._admin.topic_ids(set(topics.values()), CONFIRM_TIMEOUT_S)
        except Retryable:
            return {}  # a broker that does not answer delivers nothing; the next cut asks again
        for split in splits:
            check_same_topic(split, ids[topics[split.name]])
        found = {name: ids[topic] for name, topic in topics.items()}
        return {name: topic_id for name, topic_id in found.items() if topic_id is not None}

    def close(self) -> None:
        self._consumer.close()

    def pending_records(self) -> int | None:
        """Offsets between the position and the end, gaps included, as Kafka's tools count lag."""
        return sum_known(self._pending.copy().values())

    def _records_behind(self, at: SplitProgress) -> int | None:
        """From the end that came with the newest fetch, without a question to the broker."""
        _, end = self._consumer.get_watermark_offsets(partition_of(at.name), cached=True)
        if end < 0:
            return None
        return max(0, min(end, at.end_offset or end) - at.offset)

    def _take(self, at: SplitProgress, waiting: WaitingRecords) -> Fetched:
        """The next records of that partition; those of other partitions wait for their turn."""
        self._at[at.name] = at
        if len(waiting) == 0:
            self._fetch()
            self._pause_full_ones()
        taken = waiting.take()
        if waiting.is_paused and not waiting.has_batch:
            self._consumer.resume([partition_of(at.name)])
            waiting.is_paused = False
        return self._format.records_among(taken)

    def _pause_full_ones(self) -> None:
        for name, waiting in self._waiting.items():
            if waiting.is_full and not waiting.is_paused:
                self._consumer.pause([partition_of(name)])
                waiting.is_paused = True

    def _fetch(self) -> None:
        fetched = self._consumer.consume(BATCH_ROWS, timeout=0)
        errors = [message for message in fetched if message.error() is not None]
        if errors:
            fetched = [message for message in fetched if message.error() is None]
        for name, records in by_partition(fetched):
            if name in self._waiting:
                self._waiting[name].add(records)
        for message in errors:
            self._on_event(message)
        refusal, self._refusal = self._refusal, None
        if refusal is not None:
            raise self._address.translated(refusal)

    def _on_event(self, message: Message) -> None:
        """Handles messages among the records that are not records."""
        error, name = message.error(), place_of(message)
        if error is None:
            return
        if error.code() == KafkaError._PARTITION_EOF:
            if name in self._waiting:
                self._waiting[name].on_end(message.offset() or 0)
        elif error.code() not in AWAY | OF_GROUPS:
            raise self._failure(error, self._at.get(name))

    def _failure(self, error: KafkaError, at: SplitProgress | None) -> Rejected | Retryable:
        """`at` None: the error is the client's, not a partition's. Raises Rejected if the topic is
        another one."""
        is_gone = error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE)
        if at is not None and is_gone:
            admin, partition = KafkaAdmin(self._address), partition_of(at.name)
            check_same_topic(at, admin.topic_ids({partition.topic})[partition.topic])
            (oldest,) = admin.oldest([partition])
            if oldest > at.offset:
                return Rejected(range_gone(at, oldest))
            # The partition ends before the offset, for a moment or for good: the recovery finds out
            # which.
        return self._address.translated(error)

    def _decoded(self, name: str, fetched: Fetched) -> LoggedRecords:
        offsets = fetched.offsets
        try:
            batch = self._format.decoded(fetched)
            check_has_event_time(
                batch,
                self._timestamp_column,
                lambda row: f"The record at {_place(name, offsets, row)}",
            )
        except MalformedLine as error:
            place = _place(name, offsets, error.line)
            sentence = f"The record at {place} is malformed: {error}."
            raise _malformed(sentence, fetched, error.line) from error
        except NoEventTime as error:
            raise _malformed(str(error), fetched, error.row) from error
        return LoggedRecords(batch, offsets)

    def _on_error(self, error: KafkaError) -> None:
        if error.code() in REFUSALS:
            self._refusal = error


def _malformed(sentence: str, fetched: Fetched, row: int) -> MalformedRecord:
    text, offset = fetched.values[row] or b"", int(fetched.offsets[row])
    return MalformedRecord(sentence, row=row, offset=offset, text=text)


def name_of(partition: TopicPartition) -> str:
    return f"{partition.topic}-{partition.partition}"


def partition_of(name: str) -> TopicPartition:
    topic, _, number = name.rpartition("-")
    return TopicPartition(topic, int(number))


def check_same_topic(split: SplitProgress, topic_id: str | None) -> None:
    """`topic_id` is that of the topic that has the name now. A topic keeps its id for ever, and no
    other topic gets it (KIP-516). Raises Rejected."""
    if None in (split.version, topic_id) or split.version == topic_id:
        return
    raise Rejected(
        f"The topic {partition_of(split.name).topic} was deleted and created again: it had the id"
        f" {split.version} when it was read, and has the id {topic_id} now. What was not read of"
        " the old topic is gone. To read the new topic, start the pipeline without a recovery"
        " point. To keep the state as well, give the source another uid, and restore with"
        " non-restored state allowed."
    )


def range_gone(split: SplitProgress, oldest: int) -> str:
    partition = partition_of(split.name)
    return (
        f"Partition {partition.partition} of topic {partition.topic}: offsets {split.offset:,} to"
        f" {oldest - 1:,} are gone (retention) and were not read."
    )


def _place(name: str, offsets: Offsets, row: int) -> str:
    partition = partition_of(name)
    return f"offset {offsets[row]} of partition {partition.partition} of topic {partition.topic}"
