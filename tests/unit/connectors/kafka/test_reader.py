"""The Kafka reader: which records wait for their turn, and which errors are temporary."""

from concurrent.futures import Future
from itertools import islice
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import (
    OFFSET_INVALID,
    KafkaError,
    KafkaException,
    Message,
    TopicCollection,
    TopicPartition,
    Uuid,
)

from pipelines.connectors.kafka import reader as kafka_reader
from pipelines.connectors.kafka import reader as kafka_waiting
from pipelines.connectors.kafka.connection import REFUSALS, KafkaAddress, KafkaAdmin
from pipelines.connectors.kafka.reader import TopicsReader, WaitingRecords, check_same_topic
from pipelines.connectors.kafka.topics import KafkaTopics
from pipelines.connectors.kafka.values import JsonValues, RawValues, fetched_of
from pipelines.connectors.split_progress import SplitProgress
from pipelines.domain.errors import Rejected, Retryable
from tests.unit.connectors.kafka.fake_consumer import FakeConsumer

SCHEMA = pa.schema([("key", pa.int64())])
ADDRESS = KafkaAddress("nowhere:1")


class RefusingAdmin:
    """Answers every question with one error."""

    def __init__(self, code: int) -> None:
        self._error = KafkaException(KafkaError(code))

    def poll(self, timeout: float) -> int:
        return 0

    def list_topics(self, topic: str, timeout: float) -> None:
        raise self._error

    def list_offsets(
        self, wanted: dict[TopicPartition, Any], **_: object
    ) -> dict[TopicPartition, "Future[Any]"]:
        answer: Future[Any] = Future()
        answer.set_exception(self._error)
        return dict.fromkeys(wanted, answer)


class EmptyAdmin:
    """The admin client of a broker without topics."""

    def list_topics(self, topic: str, timeout: float) -> SimpleNamespace:
        missing = SimpleNamespace(error=KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART), partitions={})
        return SimpleNamespace(topics={topic: missing})


class DescribingAdmin:
    def __init__(self, ids: dict[str, Uuid]) -> None:
        self._ids = ids

    def describe_topics(
        self, topics: TopicCollection, request_timeout: float
    ) -> dict[str, "Future[Any]"]:
        answers: dict[str, Future[Any]] = {topic: Future() for topic in topics.topic_names}
        for topic, answer in answers.items():
            answer.set_result(SimpleNamespace(topic_id=self._ids[topic]))
        return answers


@pytest.fixture
def consumer(monkeypatch: pytest.MonkeyPatch) -> FakeConsumer:
    consumer = FakeConsumer()
    monkeypatch.setattr(kafka_reader, "Consumer", consumer.made)
    return consumer


def test_a_partition_with_too_many_waiting_records_is_paused_until_read(
    consumer: FakeConsumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_waiting, "BATCH_ROWS", 2)
    monkeypatch.setattr(kafka_reader, "BATCH_ROWS", 2)
    consumer.log = [record(1, offset) for offset in range(20)] + [record(0, 0)]
    reader = reader_of()
    first, second = reader.read(SplitProgress("t-0")), reader.read(SplitProgress("t-1"))
    read = next(second).offsets.tolist()

    for _ in range(5):
        if next(first).offsets.tolist() == [0]:
            break
    else:
        pytest.fail("the first partition starved")
    assert consumer.paused == {"t-1"}
    assert len(consumer.log) == 14

    for batch in islice(second, 9):
        read += batch.offsets.tolist()
    assert read == list(range(20))
    assert consumer.paused == set()


def test_pending_counts_respect_end_offsets_and_are_unknown_if_one_end_is(
    consumer: FakeConsumer,
) -> None:
    consumer.log = [record(0, 0)]
    reader = reader_of()
    bounded, open_ended = (reader.read(SplitProgress(*s)) for s in (("t-0", 0, 0, 4), ("t-1",)))

    next(bounded)
    assert reader.pending_records() is None  # the end is not known yet
    consumer.extent = (0, 50)
    next(bounded)
    assert reader.pending_records() == 3
    consumer.extent = (OFFSET_INVALID, OFFSET_INVALID)
    next(open_ended)
    assert reader.pending_records() is None
    consumer.extent = (0, 50)
    next(open_ended)
    assert reader.pending_records() == 3 + 50


@pytest.mark.parametrize(("rows", "bytes_"), [(2, 10_000), (100, 18)])
def test_a_batch_is_bounded_and_the_end_follows_only_after_waiting_records(
    consumer: FakeConsumer, monkeypatch: pytest.MonkeyPatch, rows: int, bytes_: int
) -> None:
    monkeypatch.setattr(kafka_waiting, "BATCH_ROWS", rows)
    monkeypatch.setattr(kafka_waiting, "BATCH_BYTES", bytes_)
    consumer.log = [*(record(0, offset) for offset in range(5)), end_of_partition(0, 9)]
    batches = reader_of().read(SplitProgress("t-0"))

    read = [next(batches) for _ in range(3)]

    assert [batch.offsets.tolist() for batch in read] == [[0, 1], [2, 3], [4]]
    assert [batch.end for batch in read] == [None, None, 9]


def test_waiting_records_are_bounded_by_bytes_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_waiting, "BATCH_BYTES", 15)
    waiting = WaitingRecords(None)

    waiting.add(fetched_of([record(0, 0)]))
    assert (waiting.has_batch, waiting.is_full) == (False, False)
    waiting.add(fetched_of([record(0, 1), record(0, 2)]))

    assert (waiting.has_batch, waiting.is_full) == (True, True)
    assert len(waiting.take()) == 2
    assert (waiting.has_batch, waiting.is_full) == (False, False)


@pytest.mark.parametrize("end_offset", [3, 4])
def test_a_bounded_partition_ends_before_its_end_offset(
    consumer: FakeConsumer, end_offset: int
) -> None:
    consumer.log = [record(0, offset) for offset in (0, 1, 4, 5)]

    batches = list(reader_of().read(SplitProgress("t-0", end_offset=end_offset)))

    assert [batch.offsets.tolist() for batch in batches] == [[0, 1]]


@pytest.mark.parametrize("code", sorted(REFUSALS))
def test_a_brokers_refusal_is_retryable_but_final_before_the_start(
    monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    monkeypatch.setattr("confluent_kafka.admin.AdminClient", lambda _: RefusingAdmin(code))
    source = KafkaTopics(ADDRESS, ("t",), format=JsonValues(SCHEMA))

    for is_start in (True, False):
        with pytest.raises(Retryable):
            source.find(set(), is_start=is_start)
    with pytest.raises(Retryable):
        source.oldest(SplitProgress("t-0", 3))
    with pytest.raises(Rejected, match=r"(The Kafka broker|Kafka) nowhere:1 .*\.$"):
        source.validate()


def test_a_missing_topic_is_retryable_but_refused_before_the_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("confluent_kafka.admin.AdminClient", lambda _: EmptyAdmin())
    source = KafkaTopics(ADDRESS, ("t",), format=JsonValues(SCHEMA))

    with pytest.raises(Retryable, match="There is no topic t at Kafka nowhere:1"):
        source.find(set(), is_start=True)
    with pytest.raises(Rejected, match=r"There is no topic t at Kafka nowhere:1\.$"):
        source.validate()


def test_a_topic_id_is_spelled_as_in_kafkas_tools_and_absent_on_old_brokers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ids = {"new": Uuid(-1, -5), "old": Uuid(0, 0)}
    monkeypatch.setattr("confluent_kafka.admin.AdminClient", lambda _: DescribingAdmin(ids))

    found = KafkaAdmin(ADDRESS).topic_ids({"new", "old"})

    assert found == {"new": "____________________-w", "old": None}
    check_same_topic(SplitProgress("old-0", version=None), found["new"])
    check_same_topic(SplitProgress("old-0", version="any"), found["old"])
    with pytest.raises(Rejected):
        check_same_topic(SplitProgress("new-0", version="any"), found["new"])


@pytest.mark.parametrize("code", sorted(REFUSALS))
def test_a_refusal_while_reading_is_retryable(consumer: FakeConsumer, code: int) -> None:
    batches = [reader_of().read(SplitProgress("t-0")) for _ in range(2)]

    consumer.log = [Message(topic="t", partition=0, error=KafkaError(code))]
    with pytest.raises(Retryable, match="The Kafka broker nowhere:1"):
        next(batches[0])

    consumer.told = [KafkaError(code)]
    with pytest.raises(Retryable, match="The Kafka broker nowhere:1"):
        next(batches[1])


def test_a_refusal_is_reported_only_once(consumer: FakeConsumer) -> None:
    reader = reader_of()
    consumer.told = [KafkaError(KafkaError._AUTHENTICATION)]
    with pytest.raises(Retryable):
        next(reader.read(SplitProgress("t-0")))
    consumer.log = [record(0, 0)]

    assert next(reader.read(SplitProgress("t-0"))).offsets.tolist() == [0]


def test_a_client_error_is_translated_and_a_group_error_is_ignored(
    consumer: FakeConsumer,
) -> None:
    batches = reader_of().read(SplitProgress("t-0"))

    consumer.log = [Message(error=KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED))]
    assert next(batches).records.num_rows == 0

    consumer.log = [Message(error=KafkaError(KafkaError._FAIL))]
    with pytest.raises(Retryable, match=r"Kafka at nowhere:1 does not answer \(_FAIL\)"):
        next(batches)


def test_a_record_without_time_has_a_null_and_no_event_time(consumer: FakeConsumer) -> None:
    consumer.log = [record(0, 0, at_ms=5), record(0, 1, at_ms=-1)]
    batch = next(TopicsReader(ADDRESS, RawValues(), None, read_committed=True).read(split_0()))
    assert batch.records.column("at").cast(pa.int64()).to_pylist() == [5, None]

    consumer.log = [record(0, 0, at_ms=5), record(0, 1, at_ms=-1)]
    batches = TopicsReader(ADDRESS, RawValues(), "at", read_committed=True).read(split_0())
    assert next(batches).offsets.tolist() == [0]
    with pytest.raises(Rejected, match="offset 1 of partition 0 of topic t has no at: no event"):
        next(batches)


def reader_of() -> TopicsReader:
    return TopicsReader(ADDRESS, JsonValues(SCHEMA), None, read_committed=True)


def split_0() -> SplitProgress:
    return SplitProgress("t-0")


def record(partition: int, offset: int, at_ms: int = 0) -> Message:
    """Returns a record of ten bytes."""
    value = f'{{"key": {offset % 10}}}'.encode()
    return Message(topic="t", partition=partition, offset=offset, value=value, timestamp=(1, at_ms))


def end_of_partition(partition: int, offset: int) -> Message:
    error = KafkaError(KafkaError._PARTITION_EOF)
    return Message(topic="t", partition=partition, offset=offset, error=error)
