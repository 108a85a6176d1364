"""Sink: exactly once into a topic of Kafka, from a log in the snapshot; it survives any outage.

A segment is sent when its checkpoint has completed, in one transaction with its marker: the offset
of a consumer group, which is the segment's checkpoint. What was sent halfway is ended, and its
sender fenced, before the marker is read; so it needs neither to prepare nor to take up a
transaction. Price: records wait in memory until the barrier and are visible after it.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import timedelta

import pyarrow as pa
from confluent_kafka import TopicPartition

from pipelines.connectors.kafka.coordinator import KafkaCoordinator
from pipelines.connectors.kafka.owner import KafkaOwnership
from pipelines.connectors.kafka.producer import KafkaOutput, TransactionalProducer
from pipelines.connectors.kafka.sink import KafkaSink
from pipelines.connectors.sink import SinkContext
from pipelines.connectors.write_ahead import Marker, WriteAheadWriter

SENDING_TIMEOUT = timedelta(minutes=5)


@dataclass(frozen=True, slots=True)
class WriteAheadKafka(KafkaSink):
    """See `KafkaSink`. `transaction_timeout` bounds the sending of one segment only."""

    transaction_timeout: timedelta = field(default=SENDING_TIMEOUT, kw_only=True)

    def open(self, context: SinkContext, schema: pa.Schema) -> WriteAheadWriter:
        target = KafkaLogTarget(self.output, self.ownership, context)
        return WriteAheadWriter(target, context)


class KafkaLogTarget:
    """Guarantee: of each subtask that ever prepared, segments are published in order, each once.

    The transactional id follows from who prepared a segment, whoever publishes it: so two that try
    to publish the same one cannot both succeed.
    """

    def __init__(
        self, output: KafkaOutput, ownership: KafkaOwnership, context: SinkContext
    ) -> None:
        """Raises ProtocolError if this attempt has been replaced."""
        self._output = output
        self._ownership = ownership
        self._context = context
        self._coordinator = KafkaCoordinator(output.address)
        self._senders: dict[str, _Sender] = {}
        ownership.enter(self._coordinator, context)

    def published(self, marker: Marker) -> bool:
        self._ownership.check_current(self._coordinator, self._context)
        return self._sender(marker).newest >= marker.checkpoint_id

    def publish(self, marker: Marker, batches: Iterable[pa.RecordBatch]) -> None:
        sender = self._sender(marker)
        sender.producer.begin()
        for batch in batches:
            sender.producer.write(batch)
        sender.producer.flush()
        place = TopicPartition(self._output.topic, 0, marker.checkpoint_id)
        sender.producer.commit(sender.producer.transactional_id, place)
        sender.newest = marker.checkpoint_id

    def close(self) -> None:
        self._senders.clear()
        self._coordinator.close()

    def _sender(self, marker: Marker) -> "_Sender":
        """Whoever had that id before is fenced, and then its marker cannot change any more."""
        name = self._ownership.log_id(marker.uid, marker.run_id, marker.subtask)
        if name not in self._senders:
            producer = TransactionalProducer(self._output, name)
            mark = self._coordinator.remembered(name, self._output.topic)
            self._senders[name] = _Sender(producer, -1 if mark is None else mark[0])
        return self._senders[name]


@dataclass(slots=True)
class _Sender:
    """`newest` is kept here: the broker shows a marker a moment after its commit."""

    producer: TransactionalProducer
    newest: int
