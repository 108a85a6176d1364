"""The Kafka sinks of the tests, and readers of committed records that know nothing of them."""

import json
import time
from datetime import timedelta
from threading import Event, Thread

from confluent_kafka import Consumer, KafkaError, TopicPartition

from pipelines.connectors.kafka.connection import KafkaAddress
from pipelines.connectors.kafka.sink import KafkaSink
from pipelines.connectors.kafka.transactions import ExactlyOnceKafka
from pipelines.connectors.kafka.write_ahead import WriteAheadKafka
from tests.brokers.kafka_broker import ANSWER_S
from tests.contracts.sink_targets import Target

PARTITIONS = 2


KINDS: dict[str, type[KafkaSink]] = {"transactions": ExactlyOnceKafka, "log": WriteAheadKafka}


def kafka_target(
    address: str,
    topic: str,
    *,
    kind: str = "transactions",
    timeout: timedelta = timedelta(minutes=1),
) -> Target:
    """`topic` is there."""
    sink = KINDS[kind](
        KafkaAddress(address), topic, pipeline="delays", key="id", transaction_timeout=timeout
    )
    return Target(kind, sink, lambda: sorted(ids_of(address, topic)))


class RunningReader:
    """Reads committed records from the start on, while others write them."""

    def __init__(self, address: str, topic: str) -> None:
        self.ids: dict[int, list[int]] = {number: [] for number in range(PARTITIONS)}
        self._consumer = reading(address, topic)
        self._ends = Event()
        self._thread = Thread(target=self._read)
        self._thread.start()

    def __enter__(self) -> "RunningReader":
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()
        self._consumer.close()

    def wait_for(self, count: int) -> None:
        end = time.monotonic() + ANSWER_S
        while sum(map(len, self.ids.values())) < count and time.monotonic() < end:
            time.sleep(0.02)

    def _read(self) -> None:
        while not self._ends.is_set():
            message = self._consumer.poll(0.05)
            if message is not None and message.error() is None:
                self.ids[message.partition()].append(json.loads(message.value())["id"])


def reading(address: str, topic: str) -> Consumer:
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
    return consumer


def ids_of(address: str, topic: str) -> list[int]:
    """Of committed records up to the first open transaction, in the order of each partition."""
    consumer = reading(address, topic)
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
