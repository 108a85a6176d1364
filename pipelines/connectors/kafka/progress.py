"""Commits to a group of Kafka how far completed checkpoints have come, for tools that show lag.

Runs never read these offsets: they restore from checkpoints only. A failed commit is counted and
logged, and delays nothing. Source: Flink, `KafkaSource` with `commit.offsets.on.checkpoint`.
"""

import logging
from collections.abc import Sequence

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from pipelines.connectors.kafka.connection import KafkaAddress
from pipelines.connectors.kafka.reader import TopicsReader, ValueFormat, partition_of
from pipelines.connectors.split_progress import SplitProgress

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
