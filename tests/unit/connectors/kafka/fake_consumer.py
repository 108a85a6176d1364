"""A Kafka consumer without a broker."""

from collections.abc import Callable
from typing import Any

from confluent_kafka import OFFSET_INVALID, KafkaError, Message, TopicPartition


class FakeConsumer:
    """Delivers the messages in `log` in order, except those of paused partitions."""

    def __init__(self) -> None:
        self.log: list[Message] = []
        self.paused: set[str] = set()
        self.extent = (OFFSET_INVALID, OFFSET_INVALID)
        self.told: list[KafkaError] = []
        self.tell: Callable[[KafkaError], None] = lambda _: None

    def made(self, settings: dict[str, Any]) -> "FakeConsumer":
        self.tell = settings["error_cb"]
        return self

    def consume(self, num_messages: int, timeout: float) -> list[Message]:
        while self.told:
            self.tell(self.told.pop())
        ready = [m for m in self.log if f"{m.topic()}-{m.partition()}" not in self.paused]
        delivered = ready[:num_messages]
        self.log = [m for m in self.log if not any(m is one for one in delivered)]
        return delivered

    def incremental_assign(self, partitions: list[TopicPartition]) -> None:
        pass

    def incremental_unassign(self, partitions: list[TopicPartition]) -> None:
        pass

    def get_watermark_offsets(self, partition: TopicPartition, cached: bool) -> tuple[int, int]:
        return self.extent

    def pause(self, partitions: list[TopicPartition]) -> None:
        self.paused |= {f"{each.topic}-{each.partition}" for each in partitions}

    def resume(self, partitions: list[TopicPartition]) -> None:
        self.paused -= {f"{each.topic}-{each.partition}" for each in partitions}
