"""The logs of page views: on every system, a split reports how many views it has received."""

import uuid

import pytest

from ftdash.embedded import page_views as demonstration
from pipelines.connectors.kafka.connection import KafkaAddress
from pipelines.connectors.kafka.topics import KafkaTopics
from pipelines.connectors.kafka.values import JsonValues
from pipelines.connectors.redis.streams import RedisStreams
from pipelines.connectors.source import GrowingSource
from pipelines.domain.errors import Rejected
from pipelines.flows.page_view_feed import (
    VIEWS,
    KafkaViewLog,
    ViewLog,
    open_log,
    page_views,
    provide_topic,
    stream_of,
)
from pipelines.flows.page_view_variables import KAFKA, REDIS
from tests.brokers.kafka_broker import KafkaBroker

pytestmark = pytest.mark.slow

SEED = 5
PARTITIONS = 12


@pytest.fixture(params=["redis", "kafka"])
def log(request: pytest.FixtureRequest, monkeypatch) -> tuple[ViewLog, GrowingSource]:
    """A log of two splits without views, and a pipeline's source for it."""
    name = f"views-{uuid.uuid4().hex[:8]}"
    source: GrowingSource
    if request.param == "redis":
        url = request.getfixturevalue("redis_server").url
        monkeypatch.setenv(REDIS, url)
        streams = tuple(stream_of(name, split) for split in range(2))
        source = RedisStreams(url, streams, schema=VIEWS, timestamp_column="at", is_bounded=True)
    else:
        address = KafkaAddress(request.getfixturevalue("kafka_server").bootstrap_servers)
        monkeypatch.setenv(KAFKA, address.bootstrap_servers)
        for _ in range(2):
            provide_topic(address, name, 2)  # the second time, the topic exists already
        values = JsonValues(VIEWS)
        source = KafkaTopics(
            address, (name,), format=values, timestamp_column="at", is_bounded=True
        )
    return open_log(request.param, name), source


def test_each_partition_of_a_topic_answers_as_soon_as_it_is_provided(
    kafka_server: KafkaBroker,
) -> None:
    """The broker creates the partitions first, and leads them a moment later."""
    address = KafkaAddress(kafka_server.bootstrap_servers)
    topic = f"views-{uuid.uuid4().hex[:8]}"

    provide_topic(address, topic, PARTITIONS)

    log = KafkaViewLog(address, topic)
    assert [log.count(split) for split in range(PARTITIONS)] == [0] * PARTITIONS


def test_appended_views_are_counted_and_read_unchanged(
    log: tuple[ViewLog, GrowingSource],
) -> None:
    views, source = log
    assert [views.count(split) for split in range(2)] == [0, 0]
    views.append(0, page_views(SEED, 0, 0, 300))
    views.append(0, page_views(SEED, 0, 300, 400))
    views.append(1, page_views(SEED, 1, 0, 50))
    counts = [views.count(split) for split in range(2)]
    views.close()

    assert counts == [400, 50]
    wanted = [page_views(SEED, split, 0, count) for split, count in enumerate(counts)]
    assert read(source) == [row for batch in wanted for row in batch.to_pylist()]


def test_the_demonstration_makes_its_topics_and_knows_when_they_have_views(
    kafka_server, monkeypatch
) -> None:
    monkeypatch.setenv(KAFKA, kafka_server.bootstrap_servers)
    demonstration.provide_topics(demonstration.INPUT, demonstration.NAME)
    views = open_log("kafka", demonstration.INPUT)

    seen = [demonstration.has_views()]
    for split in range(demonstration.SPLITS):
        views.append(split, page_views(SEED, split, 0, 1))
        seen.append(demonstration.has_views())

    assert seen == [False, False, True]


def test_brokers_that_do_not_answer_are_named_in_a_sentence(monkeypatch) -> None:
    monkeypatch.setattr("pipelines.flows.page_view_feed.ANSWER_TIMEOUT_S", 0.3)
    monkeypatch.setenv(KAFKA, "127.0.0.1:1")

    with pytest.raises(Rejected, match=r"Kafka at 127\.0\.0\.1:1 does not answer"):
        demonstration.provide_topics(demonstration.INPUT, demonstration.NAME)


def read(source: GrowingSource) -> list[dict[str, object]]:
    """Reads all rows, split by split."""
    reader = source.open()
    rows: list[dict[str, object]] = []
    for split in sorted(source.find((), is_start=True), key=lambda split: split.name):
        for batch in reader.read(split):
            rows += batch.records.to_pylist()  # type: ignore[union-attr]
    reader.close()
    return rows
