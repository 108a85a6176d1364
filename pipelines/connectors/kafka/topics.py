"""Source: topics of Apache Kafka, a split per partition, read by assignment without a group.

Decides where partitions begin and end, and finds new ones. Only the checkpoint holds the progress;
the version of a split is the id of its topic. Reads nothing itself; see `kafka.reader`. Source:
Flink's `KafkaSource`, KIP-516 for the ids.

Commits to a group of Kafka how far completed checkpoints have come, for tools that show lag.

Runs never read these offsets: they restore from checkpoints only. A failed commit is counted and
logged, and delays nothing. Source: Flink, `KafkaSource` with `commit.offsets.on.checkpoint`.
"""

import logging
from collections.abc import Collection, Sequence
from dataclasses import KW_ONLY, dataclass
from datetime import timedelta

import pyarrow as pa
import xxhash
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from pipelines.connectors.kafka.connection import KafkaAddress, KafkaAdmin
from pipelines.connectors.kafka.reader import (
    TopicsReader,
    ValueFormat,
    check_same_topic,
    name_of,
    partition_of,
    range_gone,
)
from pipelines.connectors.kafka.retention import kept_until_ms
from pipelines.connectors.kafka.sink import check_group, check_topic
from pipelines.connectors.source import StartAt
from pipelines.connectors.split_progress import SplitProgress
from pipelines.connectors.watermark_strategy import check_event_time
from pipelines.domain.errors import Rejected, Retryable

log = logging.getLogger(__name__)


class TellingTopicsReader(TopicsReader):
    """Implements `TellsProgress`. Kafka's answers arrive while the reader polls for records."""

    def __init__(
        self,
        address: KafkaAddress,
        format: ValueFormat,
        timestamp_column: str | None,
        *,
        read_committed: bool,
        group: str,
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
        )

    def tell(self, splits: Sequence[SplitProgress]) -> None:
        places = [_place_of(split) for split in splits]
        try:
            self._consumer.commit(offsets=places, asynchronous=True)
        except KafkaException as error:
            self._on_commit(error.args[0], [])

    def take_told_counts(self) -> tuple[int, int]:
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
    """The offset to read next; a finished split stands at its end."""
    place = partition_of(split.name)
    end_offset = split.end_offset if split.is_finished else None
    place.offset = split.offset if end_offset is None else end_offset
    return place


LOOK_EVERY = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class KafkaTopics:
    """`read_committed` hides records of transactions that are open or were rolled back.

    `is_bounded`: the run ends with the records that existed when it began. `group`: a consumer
    group to which completed checkpoints commit their offsets, for tools that show lag.
    """

    address: KafkaAddress
    topics: tuple[str, ...]
    _: KW_ONLY
    format: ValueFormat
    timestamp_column: str | None = None
    out_of_orderness_ms: int = 0
    start_at: StartAt = StartAt.OLDEST
    is_bounded: bool = False
    read_committed: bool = True
    look_every: timedelta = LOOK_EVERY
    group: str | None = None

    def __post_init__(self) -> None:
        check_event_time(self.schema, self.timestamp_column)
        if not self.topics or len(set(self.topics)) < len(self.topics):
            raise Rejected("Name each Kafka topic to read once, and at least one.")
        for topic in self.topics:
            check_topic(topic)
        if self.group is not None:
            check_group(self.group)

    @property
    def schema(self) -> pa.Schema:
        return self.format.schema

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
        begins = newest if is_late else admin.oldest(new)
        return [
            SplitProgress(
                name_of(p),
                begin,
                end_offset=end if self.is_bounded else None,
                version=ids[p.topic],
            )
            for p, begin, end in zip(new, begins, newest, strict=True)
        ]

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
            raise Rejected(
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

    def row_of_text(self, text: str) -> pa.RecordBatch:
        return self.format.row_of_text(text)

    def open(self) -> TopicsReader:
        parts = (self.address, self.format, self.timestamp_column)
        if self.group is None:
            return TopicsReader(*parts, read_committed=self.read_committed)
        return TellingTopicsReader(*parts, read_committed=self.read_committed, group=self.group)
