"""Source: topics of Apache Kafka, a split per partition, read by assignment without a group.

Decides where partitions begin and end, and finds new ones. Only the checkpoint holds the progress;
the version of a split is the id of its topic. Reads nothing itself; see `kafka.reader`.

For tools that show lag, it commits to a group how far completed checkpoints have come. Runs never
read these offsets. A failed commit is counted and logged, and delays nothing.

The records' times and the topic's retention give the time from which a topic may delete a record. A
broker deletes whole segments, by the newest record in each, so records often live longer; it
deletes no younger record for its age. Deletion for size has no date, so it is not predicted.

Source: Flink's `KafkaSource` with `commit.offsets.on.checkpoint`, KIP-516 for the ids.
"""

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from datetime import timedelta

import msgspec
import pyarrow as pa
import xxhash
from confluent_kafka import (
    TIMESTAMP_NOT_AVAILABLE,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)

from pipelines.connectors.dead_letters import COLUMN, with_column
from pipelines.connectors.kafka.connection import TURN_S, KafkaAddress, KafkaAdmin, answer_turns
from pipelines.connectors.kafka.reader import (
    TopicsReader,
    check_same_topic,
    name_of,
    partition_of,
    range_gone,
)
from pipelines.connectors.kafka.sink import check_group, check_topic
from pipelines.connectors.kafka.values import ValueFormat
from pipelines.connectors.source import PastGap, StartAt
from pipelines.connectors.split_progress import SplitProgress
from pipelines.connectors.watermark_strategy import check_event_time
from pipelines.domain.errors import InputLost, Rejected, Retryable


def kept_until_ms(address: KafkaAddress, places: Sequence[TopicPartition]) -> int | None:
    """The earliest time at which a record at or after these offsets may be deleted.

    None: there is no limit. Raises Retryable.
    """
    admin = KafkaAdmin(address)
    topics = {place.topic for place in places}
    retention = {topic: admin.retention_ms(topic) for topic in topics}
    limited = [place for place in places if retention[place.topic] is not None]
    written = first_written_ms(address, limited) if limited else {}
    found = [at_ms + (retention[topic] or 0) for (topic, _), at_ms in written.items()]
    return min(found, default=None)


def first_written_ms(
    address: KafkaAddress, places: Sequence[TopicPartition]
) -> dict[tuple[str, int], int]:
    """The time of the first record that exists, by topic and partition.

    Leaves out empty partitions. Raises Retryable.
    """
    with address.settings_are_understood():
        consumer = Consumer(
            {
                **address.settings(lambda error: None),
                "group.id": "ftdash",  # the client requires one; nothing is committed to it
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "earliest",
            }
        )
    try:
        consumer.assign(list(places))
        return _first_of_each(address, consumer, {(each.topic, each.partition) for each in places})
    finally:
        consumer.close()


def _first_of_each(
    address: KafkaAddress, consumer: Consumer, waiting: set[tuple[str, int]]
) -> dict[tuple[str, int], int]:
    found: dict[tuple[str, int], int] = {}
    quiet_turns, turns = 0, answer_turns()
    while waiting and quiet_turns < turns:
        message = consumer.poll(TURN_S)
        place = _answered(address, message)
        if message is None or place not in waiting:
            quiet_turns += 1
            continue
        waiting.discard(place)
        consumer.pause([TopicPartition(*place)])
        kind, at_ms = message.timestamp()
        if message.error() is None and kind != TIMESTAMP_NOT_AVAILABLE:
            found[place] = at_ms
    if waiting:
        raise Retryable(f"Kafka at {address.bootstrap_servers} does not show what is in its log")
    return found


def _answered(address: KafkaAddress, message: Message | None) -> tuple[str, int] | None:
    """The partition whose first record or end this is; None: it is not an answer."""
    if message is None:
        return None
    error = message.error()
    if error is not None and error.code() != KafkaError._PARTITION_EOF:
        if not error.retriable():
            raise address.translated(error)
        return None
    return str(message.topic()), int(message.partition() or 0)


log = logging.getLogger(__name__)


class ReportingTopicsReader(TopicsReader):
    """Implements `ReportsProgress`. Kafka's answers arrive while the reader polls for records."""

    def __init__(
        self,
        address: KafkaAddress,
        format: ValueFormat,
        timestamp_column: str | None,
        *,
        read_committed: bool,
        group: str,
        dead_letters: bool = False,
    ) -> None:
        self._group = group
        self._succeeded_count = 0
        self._failed_count = 0
        self._is_failing = False
        super().__init__(
            address,
            format,
            timestamp_column,
            read_committed=read_committed,
            group={"group.id": group, "on_commit": self._on_commit},
            dead_letters=dead_letters,
        )

    def tell(self, splits: Sequence[SplitProgress]) -> None:
        places = [_place_of(split) for split in splits]
        try:
            self._consumer.commit(offsets=places, asynchronous=True)
        except KafkaException as error:
            self._on_commit(error.args[0], [])

    def take_report_counts(self) -> tuple[int, int]:
        counts = (self._succeeded_count, self._failed_count)
        self._succeeded_count = self._failed_count = 0
        return counts

    def _on_commit(self, error: KafkaError | None, places: list[TopicPartition]) -> None:
        refused = error or next((each.error for each in places if each.error is not None), None)
        if refused is None:
            self._succeeded_count += 1
        else:
            self._failed_count += 1
            if not self._is_failing:  # logs a lasting problem once
                name = refused.name()
                log.warning("Kafka did not take the offsets of group %s: %s", self._group, name)
        self._is_failing = refused is not None


def _place_of(split: SplitProgress) -> TopicPartition:
    """Returns the offset to read next, which is the end of a finished split."""
    place = partition_of(split.name)
    end_offset = split.end_offset if split.is_finished else None
    place.offset = split.offset if end_offset is None else end_offset
    return place


LOOK_EVERY = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class KafkaTopics:
    """Topics of Kafka. Each partition is a split, and the source finds new partitions.

    Args:
        address: the brokers.
        topics: the names of the topics.
        format: what a record's value becomes: `JsonValues`, `AvroValues`, `ProtobufValues` or
            `RawValues`.
        timestamp_column: the column of event time, of type `timestamp[ms, UTC]`. None: no event
            time.
        out_of_orderness_ms: how far a record may lie behind newer ones of its split, in
            milliseconds.
        start_at: where a run without a recovery point begins, `StartAt.OLDEST` or `StartAt.NEWEST`.
        start_offsets: where such a run begins in single partitions, by `topic-partition`, such as
            `{"rides-0": 700}`; `start_at` decides for the others. `manage.py watch move` writes
            those of a Structured Streaming query.
        is_bounded: the run ends with the records that existed when it began.
        read_committed: hides records of transactions that are open or were rolled back.
        look_every: how often to look for new partitions, as a `timedelta`.
        group: the consumer group to which completed checkpoints commit their offsets, for tools
            that show lag. None: no group.
        dead_letters: records that cannot be decoded go to the side output `dead_letters`. Otherwise
            such a record fails the run.

    Raises Rejected if a topic or group has an impossible name, if `timestamp_column` holds no time,
    or if a start offset belongs to no partition of these topics.
    """

    address: KafkaAddress
    topics: tuple[str, ...]
    _: KW_ONLY
    format: ValueFormat
    timestamp_column: str | None = None
    out_of_orderness_ms: int = 0
    start_at: StartAt = StartAt.OLDEST
    start_offsets: Mapping[str, int] | None = None
    is_bounded: bool = False
    read_committed: bool = True
    look_every: timedelta = LOOK_EVERY
    group: str | None = None
    dead_letters: bool = False

    def __post_init__(self) -> None:
        check_event_time(self.schema, self.timestamp_column)
        if not self.topics or len(set(self.topics)) < len(self.topics):
            raise Rejected("Name each Kafka topic to read once, and at least one.")
        for topic in self.topics:
            check_topic(topic)
        if self.group is not None:
            check_group(self.group)
        for name, offset in (self.start_offsets or {}).items():
            topic, _, number = name.rpartition("-")
            if topic not in self.topics or not number.isdigit() or offset < 0:
                raise Rejected(
                    f"The start offset {name}: {offset} is none of a partition of"
                    f" {', '.join(self.topics)}; write topic-partition: offset."
                )

    @property
    def schema(self) -> pa.Schema:
        return with_column(self.format.schema) if self.dead_letters else self.format.schema

    @property
    def concurrent_splits(self) -> int:
        return 1 << 20  # all: none of them ends, so none can wait for another

    @property
    def discovery_interval_ms(self) -> int | None:
        return None if self.is_bounded else self.look_every // timedelta(milliseconds=1)

    @property
    def begins_once(self) -> bool:
        """See `BeginsOnce`."""
        return True

    def validate(self) -> None:
        try:
            admin = KafkaAdmin(self.address)
            for topic in self.topics:
                admin.partitions(topic)
        except Retryable as error:
            raise Rejected(f"{error}.") from error

    def find(self, known: Collection[str], *, is_start: bool) -> list[SplitProgress]:
        if self.is_bounded and not is_start:
            return []
        admin = KafkaAdmin(self.address)
        there_are = [
            TopicPartition(topic, number)
            for topic in self.topics
            for number in range(admin.partitions(topic))
        ]
        new = [partition for partition in there_are if name_of(partition) not in known]
        if not new:
            return []
        ids = admin.topic_ids({partition.topic for partition in new})
        newest = admin.newest(new, committed_only=self.read_committed)
        is_late = is_start and self.start_at is StartAt.NEWEST and not self.is_bounded
        oldest = admin.oldest(new)
        begins = newest if is_late else oldest
        if is_start and self.start_offsets:
            begins = [
                self._start_offset(name_of(p), begin, low, high)
                for p, begin, low, high in zip(new, begins, oldest, newest, strict=True)
            ]
        return [
            SplitProgress(
                name_of(p),
                begin,
                end_offset=end if self.is_bounded else None,
                version=ids[p.topic],
            )
            for p, begin, end in zip(new, begins, newest, strict=True)
        ]

    def _start_offset(self, name: str, begin: int, oldest: int, newest: int) -> int:
        """Returns the given offset, or `begin`. Raises Rejected if it is gone or not there yet."""
        given = (self.start_offsets or {}).get(name, begin)
        if oldest <= given <= newest:
            return given
        raise Rejected(
            f"Partition {name} has the offsets {oldest:,} to {newest:,}, so it cannot be read from"
            f" the start offset {given:,}. Choose a newer one, or leave it out to read from"
            f" {begin:,}."
        )

    def owner(self, name: str, parallelism: int) -> int:
        """Deals the partitions of one topic in turn."""
        partition = partition_of(name)
        first = int(xxhash.xxh64_intdigest(partition.topic.encode()))
        return (first + partition.partition) % parallelism

    def oldest(self, split: SplitProgress) -> int:
        partition = partition_of(split.name)
        if partition.topic not in self.topics:
            raise Rejected(f"The topic {partition.topic} is not among those to read any more.")
        admin = KafkaAdmin(self.address)
        if split.version is not None:  # earlier versions of ftdash stored none
            check_same_topic(split, admin.topic_ids({partition.topic})[partition.topic])
        (end,) = admin.newest([partition], committed_only=False)
        if end < split.offset:
            raise InputLost(
                f"Partition {partition.partition} of topic {partition.topic} ends at offset"
                f" {end:,}, before offset {split.offset:,} where this run has been: it is another"
                " topic of that name, or has lost records. They are gone."
            )
        return admin.oldest([partition])[0]

    def kept_until_ms(self, splits: Sequence[SplitProgress]) -> int | None:
        return kept_until_ms(
            self.address,
            [
                TopicPartition(place.topic, place.partition, split.offset)
                for split, place in ((each, partition_of(each.name)) for each in splits)
            ],
        )

    def range_gone(self, split: SplitProgress, oldest: int) -> str:
        return range_gone(split, oldest)

    @property
    def retention_setting(self) -> str:
        return f"retention.ms or retention.bytes of {', '.join(self.topics)}"

    def past_gap(self, split: SplitProgress) -> PastGap | None:
        """See `ReadsPastGaps`. Counts offsets: some of them may have held no record."""
        oldest = self.oldest(split)
        if oldest <= split.offset:
            return None
        at = msgspec.structs.replace(split, offset=oldest)
        return PastGap(at, oldest - split.offset)

    def row_of_text(self, text: str) -> pa.RecordBatch:
        row = self.format.row_of_text(text)
        return row.append_column(COLUMN, pa.nulls(1, pa.binary())) if self.dead_letters else row

    def open(self) -> TopicsReader:
        parts = (self.address, self.format, self.timestamp_column)
        committed, letters = self.read_committed, self.dead_letters
        if self.group is None:
            return TopicsReader(*parts, read_committed=committed, dead_letters=letters)
        return ReportingTopicsReader(
            *parts, read_committed=committed, dead_letters=letters, group=self.group
        )
