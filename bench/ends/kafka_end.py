"""Kafka to Kafka: an exactly-once run against a loop that reads and writes.

The loop has one process for each of the two partitions. It takes records in batches and gives each
record to the producer. It has the client's own settings except for the linger and a queue that
seldom fills. It commits nothing, and writes without transactions.
"""

import gc
import itertools
import os
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from bench.benchmark import progress
from bench.ends.end import EndMissing, run_between_ends, seconds_for
from bench.whole_run import Measured
from tests.brokers.kafka_broker import kafka_broker
from tests.java_programs import ProgramMissing

PARTITIONS = 2
RECORD_BYTES = 100
BATCH = 10_000
QUEUE_RECORDS = 500_000
ANSWER_S, COUNT_S, TURN_S = 30.0, 300.0, 0.2
OF_THE_BROKER = -1  # replicas
GIVEN = "FTDASH_BENCH_KAFKA"


@dataclass(frozen=True, slots=True)
class Topics:
    """The topics and records that one process of the loop reads and writes."""

    address: str
    source: str
    target: str
    partition: int
    records: int


@dataclass(frozen=True, slots=True)
class KafkaEnd:
    address: str
    records: int
    prefix: str
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    @property
    def source(self) -> str:
        return f"{self.prefix}-source"

    def bare(self) -> float:
        target = f"{self.prefix}-bare-{next(self._numbers)}"
        with topic(self.address, target):
            shares = [
                Topics(self.address, self.source, target, partition, self.records // PARTITIONS)
                for partition in range(PARTITIONS)
            ]
            took_s = seconds_for(copy_partition, shares)
            self._check_arrived(target)
        return self.records / took_s

    def exactly_once(self) -> Measured:
        target = f"{self.prefix}-exact-{next(self._numbers)}"
        with topic(self.address, target):
            measured = run_between_ends(
                self.records, self.address, to="kafka", source=self.source, target=target
            )
            self._check_arrived(target)
        return measured

    def _check_arrived(self, target: str) -> None:
        arrived = records_in(self.address, target)
        if arrived != self.records:
            raise RuntimeError(f"{arrived} of {self.records} records arrived in {target}")


@contextmanager
def kafka_end(directory: Path, records: int) -> Iterator[KafkaEnd]:
    """Yields an end at the broker that the environment names, or at one that it starts.

    Raises EndMissing if no broker can be started.
    """
    given = os.environ.get(GIVEN)
    if given is not None:
        with _filled(given, records) as end:
            yield end
        return
    try:
        broker = kafka_broker(directory)
        with broker as started, _filled(started.bootstrap_servers, records) as end:
            yield end
    except ProgramMissing as why:
        raise EndMissing(f"{why}; or set {GIVEN} to the host:port of a broker") from why


@contextmanager
def _filled(address: str, records: int) -> Iterator[KafkaEnd]:
    prefix = f"ftdash-bench-{os.getpid()}"
    end = KafkaEnd(address, records - records % PARTITIONS, prefix)
    with topic(address, end.source):
        progress(f"kafka: writing {end.records:,} records")
        fill(end)
        yield end


def copy_partition(share: Topics) -> None:
    """Runs the loop as fast as it can: record by record it is faster than `produce_batch`."""
    gc.freeze()  # a separate program would not have the modules of this one
    settings = {"bootstrap.servers": share.address}
    consumer = Consumer({**settings, "group.id": "bare", "enable.auto.commit": False})
    queue = {"linger.ms": 20, "queue.buffering.max.messages": QUEUE_RECORDS}
    producer = Producer({**settings, **queue})
    consumer.assign([TopicPartition(share.source, share.partition, 0)])
    left = share.records
    while left:
        messages = consumer.consume(BATCH, TURN_S)
        left -= len(messages)
        while len(producer) > QUEUE_RECORDS - BATCH:
            producer.poll(TURN_S)
        for message in messages:
            producer.produce(share.target, message.value())
    unsent = producer.flush(ANSWER_S)
    if unsent:
        raise RuntimeError(f"{unsent} records were not taken")


@contextmanager
def topic(address: str, name: str) -> Iterator[None]:
    admin = AdminClient({"bootstrap.servers": address})
    (created,) = admin.create_topics([NewTopic(name, PARTITIONS, OF_THE_BROKER)]).values()
    created.result(ANSWER_S)
    try:
        yield
    finally:
        (deleted,) = admin.delete_topics([name]).values()
        deleted.result(ANSWER_S)


def fill(end: KafkaEnd) -> None:
    generator = random.Random(1)
    texts = [f"{generator.getrandbits(4 * RECORD_BYTES):0{RECORD_BYTES}x}" for _ in range(BATCH)]
    messages = [{"value": text} for text in texts]
    producer = Producer({"bootstrap.servers": end.address, "linger.ms": 20})
    for partition in range(PARTITIONS):
        left = end.records // PARTITIONS
        while left:
            part = messages[: min(left, BATCH)]
            left -= producer.produce_batch(end.source, part, partition)
            producer.flush(ANSWER_S)


def records_in(address: str, name: str) -> int:
    """Counts the records that a reader of committed records sees."""
    settings = {"bootstrap.servers": address, "group.id": "count", "enable.partition.eof": True}
    committed = {"isolation.level": "read_committed", "enable.auto.commit": False}
    consumer = Consumer({**settings, **committed})
    consumer.assign([TopicPartition(name, partition, 0) for partition in range(PARTITIONS)])
    count, ended, deadline_s = 0, 0, time.monotonic() + COUNT_S
    while ended < PARTITIONS:
        messages = consumer.consume(BATCH, TURN_S)
        errors = [message.error() for message in messages if message.error() is not None]
        is_broken = any(error.code() != KafkaError._PARTITION_EOF for error in errors)
        if is_broken or time.monotonic() > deadline_s:
            raise RuntimeError(f"the records of {name} cannot be counted: {errors}")
        count += len(messages) - len(errors)
        ended += len(errors)
    consumer.close()
    return count
