"""Proves from the log that a transaction was committed, once the coordinator has forgotten it.

Looks at one offset, as a reader of committed records does. Decides nothing about what follows.
"""

from enum import Enum, auto

from confluent_kafka import Consumer, KafkaError, TopicPartition

from pipelines.connectors.kafka.connection import ANSWER_TURNS, TURN_S, KafkaAddress, KafkaAdmin
from pipelines.domain.errors import Retryable


class Shown(Enum):
    YES = auto()
    NO = auto()
    DELETED = auto()
    """Retention has deleted the offset; even if committed, no reader could see it now."""


def is_shown(address: KafkaAddress, place: TopicPartition) -> Shown:
    """Raises Retryable when an open transaction before the offset holds readers back."""
    admin = KafkaAdmin(address)
    if admin.oldest([place])[0] > place.offset:
        return Shown.DELETED
    if admin.newest([place], committed_only=True)[0] <= place.offset:
        raise Retryable(
            f"An open transaction before offset {place.offset:,} of partition {place.partition} of"
            f" topic {place.topic} hides whether that offset is committed"
        )
    return Shown.YES if _first_shown(address, place) == place.offset else Shown.NO


def _first_shown(address: KafkaAddress, place: TopicPartition) -> int | None:
    """The first offset from `place` on that readers see; None: there is none."""
    with address.settings_are_understood():
        consumer = Consumer(
            {
                **address.settings(lambda error: None),
                "group.id": "ftdash",  # the client requires one; nothing is committed to it
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "error",
                "isolation.level": "read_committed",
            }
        )
    try:
        consumer.assign([place])
        for _ in range(ANSWER_TURNS):
            message = consumer.poll(TURN_S)
            error = None if message is None else message.error()
            if message is not None and error is None:
                return message.offset()
            if error is not None and error.code() == KafkaError._PARTITION_EOF:
                return None
            if error is not None and not error.retriable():
                raise address.translated(error)
    finally:
        consumer.close()
    raise Retryable(f"Kafka at {address.bootstrap_servers} does not show what is in its log")
