"""Sink: exactly once into a topic of Kafka, by transactions that outlive their writer.

confluent-kafka writes, since it is the fast client; it can neither prepare a transaction nor take
up that of a dead process. So the coordinator is asked by kafka-python: at the barrier for producer
id, epoch and what has arrived, which proves in one question that the transaction is still open; and
on completion to commit it by those, from whichever process.

Kafka's log cannot be rewound: restoring an older point publishes again what came after it. A
transaction waits no longer than its timeout: an outage that outlasts it is a loss, which is told
with its range (`kafka_write_ahead` loses nothing). Source: Flink, `KafkaSink`.
"""

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import KW_ONLY, dataclass
from datetime import timedelta

import msgspec
import pyarrow as pa
from confluent_kafka import TopicPartition

from pipelines.connectors.kafka_connection import KafkaAddress, KafkaAdmin
from pipelines.connectors.kafka_coordinator import (
    CommitAnswer,
    KafkaCoordinator,
    PreparedAtKafka,
)
from pipelines.connectors.kafka_log import Shown, is_shown
from pipelines.connectors.kafka_owner import KafkaOwnership, TransactionName
from pipelines.connectors.kafka_producer import KafkaOutput, TransactionalProducer
from pipelines.connectors.kafka_records import RecordForm
from pipelines.connectors.sink import SinkContext, Superseded
from pipelines.connectors.two_phase_commit import TransactionLost, TwoPhaseCommitWriter
from pipelines.domain.errors import Rejected, Retryable
from pipelines.domain.ids import CheckpointId, RunId
from pipelines.domain.snapshots import Json

TRANSACTION_TIMEOUT = timedelta(minutes=15)
"""The most that a broker allows unless told otherwise."""


@dataclass(frozen=True, slots=True)
class ExactlyOnceKafka:
    """`pipeline` and `topic` name its transactions: whoever else uses both is replaced by it.

    `value` and `key` are columns, see `RecordForm`; without `value` a record is the row as JSON.
    """

    address: KafkaAddress
    topic: str
    _: KW_ONLY
    pipeline: str
    value: str | None = None
    key: str | None = None
    transaction_timeout: timedelta = TRANSACTION_TIMEOUT

    @property
    def guarantee(self) -> str:
        return "exactly-once"

    def validate(self, schema: pa.Schema) -> None:
        self._output.form.check(schema, self.topic)
        coordinator = KafkaCoordinator(self.address)
        try:
            KafkaAdmin(self.address).partitions(self.topic)
            coordinator.end(f"{self._ownership.prefix}/validation", self.transaction_timeout)
        except Retryable as error:
            raise Rejected(f"{error}.") from error
        finally:
            coordinator.close()

    def open(self, context: SinkContext, schema: pa.Schema) -> TwoPhaseCommitWriter:
        target = KafkaTransactionTarget(self._output, self._ownership, context)
        return TwoPhaseCommitWriter(target, context, schema)

    def rewind(
        self, ancestors: list[tuple[RunId, CheckpointId]], run_id: RunId
    ) -> Superseded | None:
        """Replaces writers of other runs. What is published stays."""
        coordinator = KafkaCoordinator(self.address)
        try:
            self._ownership.take_over(coordinator, run_id)
        finally:
            coordinator.close()
        return None

    @property
    def _output(self) -> KafkaOutput:
        form = RecordForm(self.value, self.key)
        return KafkaOutput(self.address, self.topic, form, self.transaction_timeout)

    @property
    def _ownership(self) -> KafkaOwnership:
        return KafkaOwnership(self.pipeline, self.topic)


class KafkaTransactionTarget:
    """Guarantee: no id is used twice, and no transaction ends but by its checkpoint, its timeout or
    whoever replaces its writer.

    While one transaction is written the producer of the next one introduces itself to the broker.
    """

    def __init__(
        self, output: KafkaOutput, ownership: KafkaOwnership, context: SinkContext
    ) -> None:
        """Raises ProtocolError if this attempt has been replaced."""
        self._output = output
        self._ownership = ownership
        self._context = context
        self._coordinator = KafkaCoordinator(output.address)
        self._number = 0
        self._aside = ThreadPoolExecutor(1, "kafka-producer")
        self._next: Future[TransactionalProducer] | None = None
        ownership.enter(self._coordinator, context)

    def begin(
        self, context: SinkContext, schema: pa.Schema, after: CheckpointId
    ) -> "KafkaTransaction":
        waiting, self._next = self._next, None
        if waiting is None or waiting.exception() is not None:  # the broker was away meanwhile
            producer = self._introduced()
        else:
            producer = waiting.result()
        self._next = self._aside.submit(self._introduced)
        producer.begin()
        return KafkaTransaction(self, producer)

    def prepared(self, producer: TransactionalProducer, records: int) -> PreparedAtKafka:
        """Raises Retryable unless the broker holds all of it, and ProtocolError when replaced."""
        self._ownership.check_current(self._coordinator, self._context)
        prepared = self._coordinator.prepared(producer.transactional_id, self._output.topic)
        if prepared is None or prepared.records != records:
            raise Retryable(
                f"Kafka has given up a transaction on topic {self._output.topic} before its"
                " checkpoint: it was open for longer than its timeout"
            )
        return prepared

    def commit(self, handle: Json) -> None:
        self._ownership.check_current(self._coordinator, self._context)
        prepared = msgspec.convert(handle, PreparedAtKafka)
        answer = self._coordinator.commit(prepared)
        if answer is CommitAnswer.NOT_OPEN and not self._was_committed(prepared):
            raise TransactionLost(
                "Kafka aborted their transaction, because it stayed open for longer than its"
                f" timeout or another run replaced its writer; it held {prepared.range}"
            )

    def end_orphans(self, context: SinkContext, keep: list[Json]) -> None:
        """Of this sink, of earlier attempts and of any run: whoever restores has replaced it, and
        an open transaction holds up all readers.

        They are listed before this attempt is found to be the newest: so none is of a newer one.
        What is to `keep` has been committed, and so is not open.
        """
        orphans = [each for each in self._coordinator.ongoing() if self._is_orphan(each)]
        self._ownership.check_current(self._coordinator, context)
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
        """All of a transaction or nothing: one partition that still has it tells."""
        for partition, (first, _) in prepared.ranges.items():
            place = TopicPartition(prepared.topic, int(partition), first)
            shown = is_shown(self._output.address, place)
            if shown is not Shown.DELETED:
                return shown is Shown.YES
        return True


class KafkaTransaction:
    """The records of one interval."""

    def __init__(self, target: KafkaTransactionTarget, producer: TransactionalProducer) -> None:
        self._target = target
        self._producer = producer
        self._records = 0

    def write(self, batch: pa.RecordBatch) -> None:
        self._producer.write(batch)
        self._records += batch.num_rows

    def prepare(self, checkpoint_id: CheckpointId) -> Json:
        self._producer.flush()
        handle: Json = msgspec.to_builtins(self._target.prepared(self._producer, self._records))
        return handle

    def abandon(self) -> None:
        self._producer.abandon()
