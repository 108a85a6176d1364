"""Errors of a Kafka client without a broker, as errors of the engine."""

import gc
import subprocess
import sys
import weakref
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from threading import Event
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from pipelines.connectors.kafka import producer as producer_module
from pipelines.connectors.kafka.connection import KafkaAddress, KafkaAdmin
from pipelines.connectors.kafka.producer import (
    KafkaOutput,
    RecordForm,
    TransactionalProducer,
    ended_clients,
)
from pipelines.connectors.kafka.reader import TopicsReader
from pipelines.connectors.kafka.values import RawValues
from pipelines.domain.errors import Rejected, Retryable
from tests.polling import wait_until

ROOT = Path(__file__).parents[4]
ADDRESS = KafkaAddress("broker:9092")
OUTPUT = KafkaOutput(ADDRESS, "views", RecordForm(), timedelta(minutes=1))


@pytest.fixture(autouse=True)
def no_client_of_another_test_is_kept() -> None:
    ended_clients.cache_clear()


def test_a_full_client_queue_is_retryable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producer_module, "Producer", FullClient)
    producer = TransactionalProducer(OUTPUT, "ours")

    with pytest.raises(Retryable, match=r"the queue .* broker:9092 is full; topic views"):
        producer.write(pa.record_batch({"id": [1]}))


def test_a_client_that_lost_the_reason_for_its_end_is_asked_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A client that is fenced while it flushes sometimes loses the reason."""
    monkeypatch.setattr(producer_module, "Producer", SilentClient)
    producer = TransactionalProducer(OUTPUT, "ours")

    with pytest.raises(Retryable, match="has ended a transaction on topic views"):
        producer.flush()


def test_an_error_that_does_not_end_the_client_is_not_taken_for_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(producer_module, "Producer", SilentClient)
    monkeypatch.setattr(SilentClient, "problem", KafkaError(KafkaError._STATE))
    producer = TransactionalProducer(OUTPUT, "ours")

    with pytest.raises(SystemError, match="without setting an exception"):
        producer.flush()


def test_a_flush_reports_a_refused_record_without_waiting_for_the_rest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After a refused record, a client sends no more of its transaction."""
    monkeypatch.setattr(producer_module, "Producer", RefusedClient)
    producer = TransactionalProducer(OUTPUT, "ours")

    with pytest.raises(Rejected, match="takes no record that large"):
        producer.flush()

    assert producer._client.waited_s < 1


def test_a_flush_waits_no_longer_than_a_delivery_may_take(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(producer_module, "Producer", WaitingClient)
    producer = TransactionalProducer(OUTPUT, "ours")

    with pytest.raises(Retryable, match="has not taken 1 records of topic views in time"):
        producer.flush()

    delivery_s = OUTPUT.timeout.total_seconds() / 2
    assert delivery_s < producer._client.waited_s < OUTPUT.timeout.total_seconds()


def test_a_client_whose_producer_ends_amid_a_transaction_is_kept_for_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else it damages the memory of the process if it was just fenced."""
    producer = writing(TakingClient, monkeypatch)
    client = weakref.ref(producer._client)

    del producer

    found = client()
    assert found is not None
    assert found.purged == ["what is queued"]


def test_a_client_that_could_not_abort_its_transaction_is_kept_for_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    producer = writing(EndedClient, monkeypatch)
    producer.abandon()
    client = weakref.ref(producer._client)

    del producer

    assert client() is not None


def test_a_client_ends_once_it_was_kept_for_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producer_module, "ANSWERS_S", 0.01)
    producer = writing(TakingClient, monkeypatch)
    client = weakref.ref(producer._client)

    del producer

    wait_until(lambda: client() is None)


def test_a_process_that_ends_amid_a_transaction_ends_at_once() -> None:
    """It cannot start a thread any more when its last producer ends."""
    amid = (
        "from tests.unit.connectors.kafka import test_producer as tests\n"
        "tests.producer_module.Producer = tests.TakingClient\n"
        "producer = tests.TransactionalProducer(tests.OUTPUT, 'ours')\n"
        "producer.write(tests.pa.record_batch({'id': [1]}))\n"
    )

    ended = subprocess.run([sys.executable, "-c", amid], cwd=ROOT, timeout=60, check=False)

    assert ended.returncode == 0


def test_a_commit_ends_in_time_although_the_client_does_not_come_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """librdkafka ignores its time limit while the coordinator of the group is away."""
    monkeypatch.setattr(producer_module, "ANSWER_TIMEOUT_S", 0.01)
    monkeypatch.setattr(producer_module, "TURN_S", 0.01)
    producer = writing(StuckClient, monkeypatch)
    producer.flush()
    client = weakref.ref(producer._client)

    with pytest.raises(Retryable, match=r"broker:9092 does not answer \(_TIMED_OUT\)"):
        producer.commit("group", TopicPartition("views", 0, 7))
    del producer

    stuck = client()
    assert stuck is not None, "its call is still under way"
    stuck.comes_back.set()


def test_a_commit_raises_what_the_client_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    producer = writing(FencedClient, monkeypatch)

    with pytest.raises(Retryable, match="has ended a transaction on topic views"):
        producer.commit("group", TopicPartition("views", 0, 7))


@pytest.mark.parametrize("last", ["flush", "abandon"])
def test_a_client_without_an_unanswered_request_ends_with_its_producer(
    last: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = writing(TakingClient, monkeypatch)
    getattr(producer, last)()
    client = weakref.ref(producer._client)

    del producer

    assert client() is None


@pytest.mark.parametrize(
    "opened",
    [
        pytest.param(lambda: KafkaAdmin(ADDRESS), id="admin"),
        pytest.param(
            lambda: TopicsReader(ADDRESS, RawValues(), None, read_committed=True), id="reader"
        ),
        pytest.param(lambda: TransactionalProducer(OUTPUT, "ours"), id="producer"),
    ],
)
def test_a_dropped_client_ends_at_once_and_waits_for_no_garbage_collection(
    opened: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each has threads and connections, and a driver opens some for each attempt."""
    monkeypatch.setattr(producer_module, "Producer", FullClient)
    gc.disable()
    try:
        client = opened()
        found = weakref.ref(client)
        del client

        assert found() is None
    finally:
        gc.enable()


def writing(client: "type[TakingClient]", monkeypatch: pytest.MonkeyPatch) -> TransactionalProducer:
    """Returns a producer amid a transaction."""
    monkeypatch.setattr(producer_module, "Producer", client)
    producer = TransactionalProducer(OUTPUT, "ours")
    producer.write(pa.record_batch({"id": [1]}))
    return producer


class FullClient:
    """Fails like librdkafka when its queue is full: the error is a text and has no code."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._settings = settings

    def init_transactions(self, timeout_s: float) -> None:
        pass

    def produce(self, topic: str, value: bytes | None) -> None:
        raise BufferError("Local: Queue full")

    def poll(self, timeout_s: float) -> int:
        return 0

    def purge(self, in_queue: bool = True, in_flight: bool = True) -> None:
        pass

    def __len__(self) -> int:
        return 0


class TakingClient(FullClient):
    def __init__(self, settings: dict[str, Any]) -> None:
        super().__init__(settings)
        self.purged: list[str] = []

    def produce(self, topic: str, value: bytes | None) -> None:
        pass

    def purge(self, in_queue: bool = True, in_flight: bool = True) -> None:
        self.purged.append("everything" if in_flight else "what is queued")

    def flush(self, timeout_s: float) -> int:
        return 0

    def abort_transaction(self, timeout_s: float) -> None:
        pass


class EndedClient(TakingClient):
    def abort_transaction(self, timeout_s: float) -> None:
        raise KafkaException(KafkaError(KafkaError._FENCED, "by a newer instance", fatal=True))


class StuckClient(TakingClient):
    def __init__(self, settings: dict[str, Any]) -> None:
        super().__init__(settings)
        self.comes_back = Event()

    def send_offsets_to_transaction(self, *_: object) -> None:
        assert self.comes_back.wait(60)


class FencedClient(TakingClient):
    def send_offsets_to_transaction(self, *_: object) -> None:
        raise KafkaException(KafkaError(KafkaError._FENCED, "by a newer instance", fatal=True))


class SilentClient(FullClient):
    problem = KafkaError(KafkaError._FENCED, "by a newer instance", fatal=True)

    def begin_transaction(self) -> None:
        raise KafkaException(self.problem)

    def flush(self, timeout_s: float) -> int:
        raise SystemError("flush returned NULL without setting an exception")


class WaitingClient(FullClient):
    waited_s = 0.0

    def flush(self, timeout_s: float) -> int:
        self.waited_s += timeout_s
        return 1


class RefusedClient(WaitingClient):
    def flush(self, timeout_s: float) -> int:
        self._settings["on_delivery"](KafkaError(KafkaError.MSG_SIZE_TOO_LARGE), None)
        return super().flush(timeout_s)
