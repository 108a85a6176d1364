"""The questions to Kafka's coordinators that the producing client cannot ask.

They read the state of a transaction, commit one that another process has prepared, end one, and
look up a marker. A snapshot keeps the handle of a transaction, so that any process can end it.

This is the one connector that speaks kafka-python, and that uses private parts of it (finding a
coordinator, sending it a request); its version is pinned. The requests are those of the transaction
protocol that confluent-kafka speaks (before KIP-890): a repeated commit gets the same answer.

Source: Kafka, `TransactionCoordinator.endTransaction`; Flink, `FlinkKafkaInternalProducer`.
"""

import logging
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from enum import Enum, auto
from typing import Any, TypeVar

import msgspec
from kafka import TopicPartition
from kafka.admin import KafkaAdminClient
from kafka.errors import (
    AuthorizationError,
    ConcurrentTransactionsError,
    InvalidProducerEpochError,
    InvalidProducerIdMappingError,
    InvalidTransactionTimeoutError,
    InvalidTxnStateError,
    KafkaConfigurationError,
    KafkaError,
    NoError,
    ProducerFencedError,
    TransactionalIdNotFoundError,
    for_code,
)
from kafka.protocol.metadata import CoordinatorType
from kafka.protocol.producer import EndTxnRequest, InitProducerIdRequest
from kafka.structs import OffsetAndMetadata
from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_random_exponential

from pipelines.connectors.kafka.connection import ANSWER_TIMEOUT_S, KafkaAddress, python_settings
from pipelines.domain.clock import patience_s
from pipelines.domain.errors import Rejected, Retryable


class PreparedAtKafka(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A transaction that waits for its end. `ranges`: first offset and count, by partition."""

    transactional_id: str
    producer_id: int
    epoch: int
    topic: str
    ranges: dict[str, tuple[int, int]]

    @property
    def records(self) -> int:
        return sum(count for _, count in self.ranges.values())

    @property
    def range(self) -> str:
        parts = [
            f"offsets {first:,} to {first + count - 1:,} of partition {partition}"
            for partition, (first, count) in sorted(self.ranges.items())
        ]
        return f"{', '.join(parts)} of topic {self.topic}"


logging.getLogger("kafka").setLevel(logging.CRITICAL + 1)
"""kafka-python would log its settings, and with them a password; every error reaches us anyway."""

NEWEST_END_TXN = 4
NO_PRODUCER = -1
LONGEST_PAUSE_S = 0.5
ONGOING, ABORTED = "Ongoing", "CompleteAbort"

NOT_OPEN_ANY_MORE = (
    InvalidTxnStateError,
    InvalidProducerEpochError,
    ProducerFencedError,
    InvalidProducerIdMappingError,
)
ANSWERS = (*NOT_OPEN_ANY_MORE, InvalidTransactionTimeoutError, TransactionalIdNotFoundError)

Answer = TypeVar("Answer")


class CommitAnswer(Enum):
    DONE = auto()
    NOT_OPEN = auto()
    """Aborted, or committed so long ago that the coordinator has forgotten it."""


class KafkaCoordinator:
    """Used by one thread; repeats a question while the broker is starting or busy.

    Every question raises Retryable if the broker does not answer, Rejected if it refuses.
    """

    def __init__(self, address: KafkaAddress) -> None:
        self._address = address
        self._settings = python_settings(address)
        self._client: Any = None

    def prepared(self, transactional_id: str, topic: str) -> PreparedAtKafka | None:
        """Returns the transaction as the broker has it now, or None if it is no longer open."""
        try:
            (described,) = self._ask(
                lambda client: client.describe_transactions([transactional_id])
            ).values()
        except TransactionalIdNotFoundError:
            return None
        if described.state.value != ONGOING:
            return None
        partitions = self._ask(lambda client: client.describe_producers(described.topic_partitions))
        ranges = {
            str(partition.partition): (
                each.current_transaction_start_offset,
                each.last_sequence + 1,
            )
            for partition, state in partitions.items()
            for each in state.active_producers
            if each.producer_id == described.producer_id
        }
        return PreparedAtKafka(
            transactional_id=transactional_id,
            producer_id=described.producer_id,
            epoch=described.producer_epoch,
            topic=topic,
            ranges=ranges,
        )

    def is_aborted(self, prepared: PreparedAtKafka) -> bool:
        """True only if certain: a coordinator forgets it, and a later writer hides its state."""
        try:
            (described,) = self._ask(
                lambda client: client.describe_transactions([prepared.transactional_id])
            ).values()
        except TransactionalIdNotFoundError:
            return False
        return bool(
            described.producer_id == prepared.producer_id and described.state.value == ABORTED
        )

    def commit(self, prepared: PreparedAtKafka) -> CommitAnswer:
        """Commits a prepared transaction. May be repeated."""
        request = EndTxnRequest(
            transactional_id=prepared.transactional_id,
            producer_id=prepared.producer_id,
            producer_epoch=prepared.epoch,
            committed=True,
            max_version=NEWEST_END_TXN,
        )
        try:
            self._send(prepared.transactional_id, request)
        except NOT_OPEN_ANY_MORE:
            return CommitAnswer.NOT_OPEN
        return CommitAnswer.DONE

    def end(self, transactional_id: str, timeout: timedelta) -> None:
        """Aborts what is open under that id, waits until it is aborted, and fences its producer.

        Raises Rejected if the broker does not allow so long a timeout.
        """
        request = InitProducerIdRequest(
            transactional_id=transactional_id,
            transaction_timeout_ms=timeout // timedelta(milliseconds=1),
            producer_id=NO_PRODUCER,
            producer_epoch=NO_PRODUCER,
        )
        try:
            self._send(transactional_id, request)
        except InvalidTransactionTimeoutError as error:
            raise Rejected(
                f"The transaction timeout of {timeout.total_seconds():g} s is longer than Kafka at"
                f" {self._address.bootstrap_servers} allows; shorten it, or raise"
                " transaction.max.timeout.ms of the broker."
            ) from error

    def ongoing(self) -> list[str]:
        """All transactional ids with an open transaction, of all users of the broker."""
        listings = self._ask(lambda client: client.list_transactions(state_filters=[ONGOING]))
        return [each.transactional_id for listed in listings.values() for each in listed]

    def remembered(self, topic: str, *groups: str) -> list[tuple[int, str] | None]:
        """The committed offset and text of each group; None: the broker has none."""
        place = TopicPartition(topic, 0)
        described = self._ask(
            lambda client: client.list_group_offsets({group: [place] for group in groups})
        )
        marks = [described[group].get(place) for group in groups]
        return [
            None if mark is None or mark.offset < 0 else (mark.offset, mark.metadata)
            for mark in marks
        ]

    def remember(self, group: str, topic: str, offset: int, text: str) -> None:
        place = TopicPartition(topic, 0)
        marks = {place: OffsetAndMetadata(offset, text, None)}

        def put(client: Any) -> None:
            (outcome,) = client.alter_group_offsets(group, marks).values()
            if outcome is not NoError:
                raise outcome()

        self._ask(put)

    def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            with suppress(KafkaError):
                client.close()

    def _connected(self) -> KafkaAdminClient:
        try:
            return KafkaAdminClient(**self._settings)
        except (KafkaConfigurationError, ValueError, AssertionError, OSError):
            raise Rejected(
                f"The settings for Kafka at {self._address.bootstrap_servers} make no sense to it;"
                " check the values and files of its security settings."
            ) from None  # its text may repeat a setting

    def _send(self, transactional_id: str, request: Any) -> None:
        """Sends the request to the coordinator of that id. Raises the error in its answer."""

        async def send(client: Any) -> Any:
            node = await client._find_coordinator_id(transactional_id, CoordinatorType.TRANSACTION)
            return await client._manager.send(request, node_id=node)

        def ask(client: Any) -> None:
            error = for_code(client._manager.run(send, client).error_code)
            if error is not NoError:
                raise error()

        self._ask(ask)

    def _ask(self, question: Callable[[Any], Answer]) -> Answer:
        tries = Retrying(
            retry=retry_if_exception(_may_pass),
            stop=stop_after_delay(patience_s(ANSWER_TIMEOUT_S)),
            wait=wait_random_exponential(multiplier=0.02, max=LONGEST_PAUSE_S),
            reraise=True,
        )
        try:
            answer: Answer = tries(self._once, question)
            return answer
        except AuthorizationError as error:
            raise Rejected(
                f"Kafka at {self._address.bootstrap_servers} does not let this user hold"
                f" transactions, or read the topic ({type(error).__name__})."
            ) from error
        except ANSWERS:
            raise
        except KafkaError as error:
            name = type(error).__name__
            raise Retryable(
                f"Kafka at {self._address.bootstrap_servers} does not answer ({name})"
            ) from error

    def _once(self, question: Callable[[Any], Answer]) -> Answer:
        try:
            if self._client is None:
                self._client = self._connected()
            return question(self._client)
        except ConcurrentTransactionsError:
            raise
        except KafkaError as error:
            if _may_pass(error):
                self.close()  # the client may know only brokers that are gone
            raise


def _may_pass(error: BaseException) -> bool:
    return isinstance(error, KafkaError) and bool(error.retriable)
