"""Kafka's write-ahead log beyond the contract: what was sent halfway, and two senders."""

from itertools import count

import pytest

from pipelines.connectors.kafka.connection import KafkaAddress
from pipelines.connectors.kafka.owner import KafkaOwnership
from pipelines.connectors.kafka.producer import TransactionalProducer
from pipelines.connectors.kafka.write_ahead import WriteAheadKafka
from pipelines.domain.errors import Retryable
from pipelines.domain.ids import CheckpointId, RunId, Uid
from tests.brokers.kafka_broker import KafkaBroker
from tests.contracts.sink_host import records
from tests.contracts.sink_readers import PARTITIONS
from tests.contracts.sink_targets import Target, kafka_target, opened

pytestmark = pytest.mark.slow
RUN = RunId("run-1")
FIRST, SECOND = CheckpointId(1), CheckpointId(2)
NUMBERS = count()


@pytest.fixture
def topic(kafka_server: KafkaBroker) -> str:
    name = f"log-{next(NUMBERS)}"
    kafka_server.create_topic(name, PARTITIONS)
    return name


@pytest.fixture
def target(kafka_server: KafkaBroker, topic: str) -> Target:
    return kafka_target(WriteAheadKafka, kafka_server, topic)


def test_what_was_sent_halfway_is_ended_and_sent_again(
    kafka_server: KafkaBroker, topic: str, target: Target
) -> None:
    sink = WriteAheadKafka(KafkaAddress(kafka_server.bootstrap_servers), topic, pipeline="delays")
    writer = opened(target, RUN, 1)
    writer.write(records([1, 2]))
    committables = writer.prepare(FIRST)
    dead = TransactionalProducer(
        sink.output, KafkaOwnership("delays", topic).log_id(Uid("out"), RUN, 0)
    )
    dead.begin()
    dead.write(records([1]))
    dead.flush()

    opened(target, RUN, 2).commit(FIRST, committables)

    assert target.visible() == [1, 2]


def test_of_two_that_publish_the_same_segment_one_is_refused(target: Target) -> None:
    first = opened(target, RUN, 1)
    first.write(records([1]))
    first.commit(FIRST, first.prepare(FIRST))
    first.write(records([2]))
    committables = first.prepare(SECOND)
    second = opened(target, RUN, 1)
    second.commit(SECOND, committables)

    with pytest.raises(Retryable):
        first.commit(SECOND, committables)

    assert target.visible() == [1, 2]


def test_a_segment_that_another_parallelism_inherits_is_published_once(target: Target) -> None:
    old = opened(target, RUN, 1, subtask=2)
    old.write(records([1]))
    committables = old.prepare(FIRST)
    old.commit(FIRST, committables)

    heir = opened(target, RUN, 2, subtask=0)
    heir.commit(FIRST, committables)

    assert target.visible() == [1]
