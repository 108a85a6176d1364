"""When a topic may delete records: computed from the records' times and the topic's retention.

A broker deletes whole segments, by the newest record in each, so records often live longer; it
deletes no younger record for its age. Deletion for size has no date, so it is not predicted.
"""

from collections.abc import Sequence

from confluent_kafka import (
    TIMESTAMP_NOT_AVAILABLE,
    Consumer,
    KafkaError,
    Message,
    TopicPartition,
)

from pipelines.connectors.kafka.connection import TURN_S, KafkaAddress, KafkaAdmin, answer_turns
from pipelines.domain.errors import Retryable


def kept_until_ms(address: KafkaAddress, places: Sequence[TopicPartition]) -> int | None:
    """The soonest time at which a record at or after these offsets may go; None: there is no limit.

    Raises Retryable.
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
    """The time of the first record there is, by topic and partition; empty partitions are left out.

    Raises Retryable.
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
    """The partition of which this is the first record, or the end; None: not an answer."""
    if message is None:
        return None
    error = message.error()
    if error is not None and error.code() != KafkaError._PARTITION_EOF:
        if not error.retriable():
            raise address.translated(error)
        return None
    return str(message.topic()), int(message.partition() or 0)
