"""Sink: exactly once into a topic of Kafka, by transactions that outlive their writer.

confluent-kafka writes, because it is the fast client, but it can neither prepare a transaction nor
take over that of a dead process. So kafka-python asks the coordinator. At the barrier it asks for
producer id, epoch and the records that have arrived, which also proves that the transaction is
still open. On completion it commits the transaction by those values, from any process. Once the
coordinator has forgotten a transaction, the log proves that it was committed: the sink reads one
offset like a reader of committed records.

A transaction waits no longer than its timeout. If an outage outlasts it, the output is lost and
reported with its range; `kafka.write_ahead` loses nothing.

Source: Flink, `KafkaSink`.
"""

import logging
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import timedelta
from enum import Enum, auto

import msgspec
import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, TopicPartition

from pipelines.connectors.kafka.connection import ANSWER_TURNS, TURN_S, KafkaAddress, KafkaAdmin
from pipelines.connectors.kafka.coordinator import CommitAnswer, KafkaCoordinator, PreparedAtKafka
from pipelines.connectors.kafka.producer import KafkaOutput, TransactionalProducer
from pipelines.connectors.kafka.sink import (
    HeldTopic,
    KafkaOwnership,
    KafkaSink,
    TransactionName,
    check_topic,
)
from pipelines.connectors.sink import TOKEN_BYTES_MAX, SinkContext
from pipelines.connectors.sink_bases import (
    PreparedTransaction,
    TransactionLost,
    TwoPhaseCommitWriter,
)
from pipelines.domain.errors import Rejected, Retryable
from pipelines.domain.ids import CheckpointId
from pipelines.domain.snapshots import Json


class Shown(Enum):
    YES = auto()
    NO = auto()
    DELETED = auto()
    """Retention has deleted the offset; even if committed, no reader could see it now."""


def is_shown(address: KafkaAddress, place: TopicPartition) -> Shown:
    """Raises Retryable if an open transaction before the offset holds readers back."""
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


log = logging.getLogger(__name__)

TRANSACTION_TIMEOUT = timedelta(minutes=15)
"""The most that a broker allows by default."""


@dataclass(frozen=True, slots=True)
class ExactlyOnceKafka(KafkaSink):
    """Exactly once into a topic, by transactions.

    A transaction is open from an interval's first record to its commit. Kafka's log cannot be
    rewound: if you restore an older point, the run publishes again what came after it.

    Args:
        address: the brokers.
        topic: the topic to write to. It has to exist.
        pipeline: the name of the pipeline. With the topic it names the transactions; of the runs
            that use both, one holds the topic.
        value: the column of text or bytes that is the value. None: the whole row.
        key: the column of text, bytes or whole numbers that is the key. None: no key.
        format: how a whole row is written, such as `AvroValues`. None: as a JSON object.
        transaction_timeout: the longest time from the first record of an interval to its commit, as
            a `timedelta`. The broker's `transaction.max.timeout.ms` has to allow it.

    Building the pipeline raises Rejected for a column that does not fit. A start raises it if the
    broker does not take the transactions.
    """

    transaction_timeout: timedelta = field(default=TRANSACTION_TIMEOUT, kw_only=True)

    @property
    def transaction_timeout_ms(self) -> int:
        """See `HoldsTransactions`."""
        return self.transaction_timeout // timedelta(milliseconds=1)

    def open(self, context: SinkContext, schema: pa.Schema) -> "KafkaWriter":
        target = KafkaTransactionTarget(self.output, self.ownership, context)
        return KafkaWriter(target, context, schema)


@dataclass(frozen=True, slots=True)
class KafkaUpsert(ExactlyOnceKafka):
    """Writes rows under a key, exactly once: the newest record of each key is its row.

    A row that a changelog takes back becomes a tombstone: its key, without a value. Give the topic
    `cleanup.policy=compact`, and Kafka deletes rows that are overwritten or taken back. If you
    restore an older point, the run publishes again what came after it. So the newest record of each
    key is right again once the replay has caught up.

    Args:
        address: the brokers.
        topic: the topic to write to. It has to exist, and belongs to this sink alone.
        keys: the key columns, at least one. One of text, bytes or whole numbers is the key;
            several become a JSON object.
        pipeline: the name of the pipeline. With the topic it names the transactions; of the runs
            that use both, one holds the topic.
        value: the column of text or bytes that is the value. None: the whole row.
        format: how a whole row is written, such as `AvroValues`. None: as a JSON object.
        transaction_timeout: the longest time from the first record of an interval to its commit, as
            a `timedelta`. The broker's `transaction.max.timeout.ms` has to allow it.

    Building the pipeline raises Rejected for a column that does not fit. A start raises it if the
    broker does not take the transactions. A row whose key is null fails the run.

    Source: Flink, the connector `upsert-kafka`.
    """

    keys: tuple[str, ...]
    key: None = field(default=None, init=False, repr=False)
    applies_changes: bool = field(default=False, repr=False, kw_only=True)  # not by authors

    def applying_changes(self) -> "KafkaUpsert":
        """See `AppliesChanges`."""
        return replace(self, applies_changes=True)

    @property
    def place(self) -> str:
        """See `OwnsPlace`: two sinks in one topic would overwrite each other's rows."""
        return self.output.place

    @property
    def output(self) -> KafkaOutput:
        form = self.record_form
        keyed = replace(form, keys=self.keys, applies_changes=self.applies_changes)
        return KafkaOutput(self.address, self.topic, keyed, self.transaction_timeout)

    def check_columns(self, schema: pa.Schema) -> None:
        """See `ChecksColumns`."""
        if not self.keys:
            raise Rejected(f"Topic {self.topic} needs key columns, by which rows are overwritten.")
        check_topic(self.topic)
        self.output.form.check(schema, self.topic)


class KafkaWriter(TwoPhaseCommitWriter):
    """Reports the place of its transactions in the log, for the ledger."""

    def token(self, committable: Json) -> str:
        prepared = msgspec.convert(committable, PreparedTransaction)
        at_kafka = msgspec.convert(prepared.handle, PreparedAtKafka)
        producer = f"{at_kafka.transactional_id}: producer {at_kafka.producer_id}"
        places = f"{producer}, {at_kafka.range}"
        return places if len(places) <= TOKEN_BYTES_MAX else producer


class KafkaTransactionTarget:
    """Guarantee: no id is used twice, and only its checkpoint, its timeout or the writer's
    replacement ends a transaction.

    While one transaction is written, the producer of the next one registers with the broker.
    """

    def __init__(
        self, output: KafkaOutput, ownership: KafkaOwnership, context: SinkContext
    ) -> None:
        """Raises ProtocolError if this attempt has been replaced, TargetTaken if its run has."""
        self._output = output
        self._ownership = ownership
        self._context = context
        self._coordinator = KafkaCoordinator(output.address)
        self._number = 0
        self._aside = ThreadPoolExecutor(1, "kafka-producer")
        self._next: Future[TransactionalProducer] | None = None
        self._held = HeldTopic(ownership, output, self._coordinator, context)

    def begin(
        self, context: SinkContext, schema: pa.Schema, after: CheckpointId
    ) -> "KafkaTransaction":
        waiting, self._next = self._next, None
        if waiting is None or waiting.exception() is not None:  # the broker was away
            producer = self._introduced()
        else:
            producer = waiting.result()
        self._next = self._aside.submit(self._introduced)
        producer.begin()
        return KafkaTransaction(self, producer)

    def prepared(self, producer: TransactionalProducer, records: int) -> PreparedAtKafka:
        """Raises Retryable unless the broker holds all records, ProtocolError if replaced."""
        self._held.check_current()
        prepared = self._coordinator.prepared(producer.transactional_id, self._output.topic)
        if prepared is None or prepared.records != records:
            raise Retryable(
                f"Kafka has given up a transaction on topic {self._output.topic} before its"
                " checkpoint: it was open for longer than its timeout"
            )
        return prepared

    def commit(self, handle: Json) -> None:
        self._held.check_current()
        prepared = msgspec.convert(handle, PreparedAtKafka)
        answer = self._coordinator.commit(prepared)
        if answer is CommitAnswer.NOT_OPEN and not self._was_committed(prepared):
            raise TransactionLost(
                "Kafka aborted their transaction, because it stayed open for longer than its"
                f" timeout or another run replaced its writer; it held {prepared.range}",
                on_restore="what came after it is published again, beside what the topic has of it"
                " already: Kafka takes nothing back",
            )

    def end_orphans(self, context: SinkContext, keep: list[Json]) -> None:
        """Ends the open transactions of this sink, of earlier attempts and of any run.

        A restore has replaced their writers, and an open transaction blocks all readers. The ids
        are listed before this attempt is known to be the newest, so none belongs to a newer one.
        The transactions in `keep` have been committed, so they are not open.
        """
        orphans = [each for each in self._coordinator.ongoing() if self._is_orphan(each)]
        self._held.check_current()
        for transactional_id in orphans:
            self._coordinator.end(transactional_id, self._output.timeout)

    def close(self) -> None:
        self._aside.shutdown(wait=True, cancel_futures=True)
        self._next = None
        self._coordinator.close()

    def _introduced(self) -> TransactionalProducer:
        self._number += 1
        context = self._context
        name = TransactionName(
            context.uid, context.run_id, context.attempt, context.subtask, self._number
        )
        return TransactionalProducer(self._output, self._ownership.id_of(name))

    def _is_orphan(self, transactional_id: str) -> bool:
        name, context = self._ownership.name_of(transactional_id), self._context
        return name is not None and name.uid == context.uid and context.inherits(name.subtask)

    def _was_committed(self, prepared: PreparedAtKafka) -> bool:
        """Checks one partition that still has the transaction: it is visible whole or not at all.

        If retention has deleted it everywhere, no reader can see it, but the coordinator may know.
        """
        for partition, (first, _) in prepared.ranges.items():
            place = TopicPartition(prepared.topic, int(partition), first)
            shown = is_shown(self._output.address, place)
            if shown is not Shown.DELETED:
                return shown is Shown.YES
        if self._coordinator.is_aborted(prepared):
            return False
        log.warning(
            "%s are deleted (retention): that they were committed before that cannot be proven",
            prepared.range,
        )
        return True


class KafkaTransaction:
    """The records of one interval."""

    def __init__(self, target: KafkaTransactionTarget, producer: TransactionalProducer) -> None:
        self._target = target
        self._producer = producer
        self._records = 0

    def write(self, batch: pa.RecordBatch) -> None:
        self._records += self._producer.write(batch)

    def prepare(self, checkpoint_id: CheckpointId) -> Json:
        self._producer.flush()
        handle: Json = msgspec.to_builtins(self._target.prepared(self._producer, self._records))
        return handle

    def abandon(self) -> None:
        self._producer.abandon()
