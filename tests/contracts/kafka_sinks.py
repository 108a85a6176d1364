"""The Kafka sinks of the tests, and a reader of committed records that knows nothing of them."""

import json
from datetime import timedelta

from confluent_kafka import Consumer, KafkaError, TopicPartition

from pipelines.connectors.kafka_connection import KafkaAddress
from pipelines.connectors.kafka_transactions import ExactlyOnceKafka
from tests.brokers.kafka_broker import ANSWER_S
from tests.contracts.sink_targets import Target

PARTITIONS = 2


def kafka_target(address: str, topic: str, *, timeout: timedelta = timedelta(minutes=1)) -> Target:
    """`topic` is there."""
    sink = ExactlyOnceKafka(
        KafkaAddress(address),
        topic,
        pipeline="delays",
        key="id",
        transaction_timeout=timeout,
    )
    return Target("kafka", sink, lambda: sorted(ids_of(address, topic)))


def ids_of(address: str, topic: str) -> list[int]:
    """Of committed records up to the first open transaction, in the order of each partition."""
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "reader",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "log_level": 0,
        }
    )
    consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
    ids, ended = [], set()
    while len(ended) < PARTITIONS:
        message = consumer.poll(ANSWER_S)
        assert message is not None, "the broker answers"
        error = message.error()
        if error is None:
            ids.append(json.loads(message.value())["id"])
        else:
            assert error.code() == KafkaError._PARTITION_EOF, error
            ended.add(message.partition())
    consumer.close()
    return ids
