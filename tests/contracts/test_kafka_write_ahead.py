"""Kafka's write-ahead log beyond the contract: segments sent halfway, and two senders."""

import dataclasses
from itertools import count

import pyarrow as pa
import pytest

from pipelines.connectors.kafka.connection import KafkaAddress
from pipelines.connectors.kafka.producer import TransactionalProducer
from pipelines.connectors.kafka.sink import KafkaOwnership
from pipelines.connectors.kafka.write_ahead import LostMarker, WriteAheadKafka
from pipelines.domain.errors import OutputLost, Rejected, Retryable
from pipelines.domain.ids import CheckpointId, RunId, Uid
from tests.brokers.kafka_broker import KafkaBroker
from tests.contracts.sink_host import records
from tests.contracts.sink_readers import PARTITIONS
from tests.contracts.sink_targets import Target, kafka_target, opened
from tests.takeovers import rewound

pytestmark = pytest.mark.slow
RUN, OTHER = RunId("run-1"), RunId("run-2")
FIRST, SECOND = CheckpointId(1), CheckpointId(2)
NUMBERS = count()
END = -1
"""Means the end of a partition in DeleteRecords."""


@pytest.fixture
def topic(kafka_server: KafkaBroker) -> str:
    name = f"log-{next(NUMBERS)}"
    kafka_server.create_topic(name, PARTITIONS)
    return name


@pytest.fixture
def target(kafka_server: KafkaBroker, topic: str) -> Target:
    return kafka_target(WriteAheadKafka, kafka_server, topic)


def test_a_half_sent_segment_is_ended_and_sent_again(
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


def test_a_half_sent_segment_of_a_replaced_run_blocks_no_reader_and_is_resent(
    kafka_server: KafkaBroker, topic: str, target: Target
) -> None:
    writer = opened(target, RUN, 1)
    writer.write(records([1, 2]))
    committables = writer.prepare(FIRST)
    log_id = KafkaOwnership("delays", topic).log_id(Uid("out"), RUN, 0)
    halfway = TransactionalProducer(target.sink.output, log_id)  # type: ignore[attr-defined]
    halfway.begin()
    halfway.write(records(list(range(10))))  # to each partition
    halfway.flush()

    rewound(target.sink, [], OTHER)
    other = opened(target, OTHER, 1)
    other.write(records([3, 4]))
    other.commit(FIRST, other.prepare(FIRST))
    assert target.visible() == [3, 4]

    third = RunId("run-3")
    rewound(target.sink, [(RUN, FIRST)], third)
    opened(target, third, 1).commit(FIRST, committables)
    assert target.visible() == [1, 2, 3, 4]


def test_only_one_of_two_writers_publishes_the_same_segment(target: Target) -> None:
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


def test_records_that_retention_has_deleted_are_not_published_again(
    kafka_server: KafkaBroker, topic: str, target: Target
) -> None:
    writer = opened(target, RUN, 1)
    writer.write(records([1, 2]))
    first = writer.prepare(FIRST)
    writer.commit(FIRST, first)
    writer.write(records([3]))
    second = writer.prepare(SECOND)
    for partition in range(PARTITIONS):
        kafka_server.delete_before(topic, END, partition=partition)

    restored = opened(target, RUN, 2)
    restored.commit(FIRST, first)
    restored.commit(SECOND, second)

    assert target.visible() == [3]


def test_a_segment_that_the_topic_refuses_waits_in_the_log(
    kafka_server: KafkaBroker, topic: str
) -> None:
    target = kafka_target(WriteAheadKafka, kafka_server, topic)
    address = KafkaAddress(kafka_server.bootstrap_servers)
    target.sink = WriteAheadKafka(address, topic, pipeline="delays", value="value")
    writer = opened(target, RUN, 1)
    values = [b'{"id": 1}', b'{"id": 2, "text": "%s"}' % (b"x" * (2 << 20)), b'{"id": 3}']
    writer.write(pa.record_batch({"value": values}))
    committables = writer.prepare(FIRST)
    for attempt in (1, 2):
        with pytest.raises(Rejected, match="takes no record that large"):
            opened(target, RUN, attempt).commit(FIRST, committables)
    assert target.visible() == []

    kafka_server.let_topic_take(topic, record_bytes=3 << 20)
    opened(target, RUN, 3).commit(FIRST, committables)

    assert target.visible() == [1, 2, 3]


@pytest.mark.parametrize("forget", ["the group", "the topic"])
def test_a_marker_that_the_broker_lost_is_reported_with_its_range(
    kafka_server: KafkaBroker, topic: str, target: Target, forget: str
) -> None:
    """Loses the marker of a run's very first segment, or of a later one."""
    writer = opened(target, RUN, 1)
    writer.write(records([1, 2]))
    first = writer.prepare(FIRST)
    writer.commit(FIRST, first)
    writer.write(records([3]))
    second = writer.prepare(SECOND)
    if forget == "the topic":
        kafka_server.delete_topic(topic)
        kafka_server.create_topic(topic, PARTITIONS)
    else:
        kafka_server.delete_group(KafkaOwnership("delays", topic).log_id(Uid("out"), RUN, 0))

    match = f"Whether 2 records of out, subtask 0, that run {RUN} wrote behind checkpoint 0 up to"
    with pytest.raises(OutputLost, match=f"{match} checkpoint 1 .* forgotten .*lost_marker="):
        opened(target, RUN, 2).commit(FIRST, first)
    with pytest.raises(OutputLost, match=r"Whether 1 records .* behind checkpoint 1 up to"):
        opened(target, RUN, 3).commit(SECOND, second)

    assert target.visible() == ([] if forget == "the topic" else [1, 2])


@pytest.mark.parametrize(
    ("chosen", "visible"), [(LostMarker.PUBLISH, [1, 1, 2]), (LostMarker.LEAVE_OUT, [1, 2])]
)
def test_the_lost_marker_setting_decides_and_the_run_continues(
    kafka_server: KafkaBroker, topic: str, chosen: LostMarker, visible: list[int]
) -> None:
    target = kafka_target(WriteAheadKafka, kafka_server, topic)
    writer = opened(target, RUN, 1)
    writer.write(records([1]))
    first = writer.prepare(FIRST)
    writer.commit(FIRST, first)
    kafka_server.delete_group(KafkaOwnership("delays", topic).log_id(Uid("out"), RUN, 0))
    target.sink = dataclasses.replace(target.sink, lost_marker=chosen)  # type: ignore[type-var]

    restored = opened(target, RUN, 2)
    restored.commit(FIRST, first)
    restored.write(records([2]))
    restored.commit(SECOND, restored.prepare(SECOND))

    assert target.visible() == visible
