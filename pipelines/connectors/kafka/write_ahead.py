"""Sink: exactly once into a topic of Kafka, from a log in the snapshot; it survives any outage.

When its checkpoint has completed, the sink sends a segment in one transaction with its marker: the
offset of a consumer group, whose number is the segment's checkpoint. Before the sink reads the
marker, it ends a transaction that was sent halfway and fences its sender. So it never prepares a
transaction or takes one over. The price: records wait in memory until the barrier and are visible
after it.

Brokers forget a group's offsets a week after the last commit, and when the topic is deleted. So
each segment records how far the marker had come when the segment was prepared. A marker that is
missing or older than that is lost, and the run ends instead of publishing twice. Deletion of
records by retention changes nothing, because the marker is stored elsewhere.

The first attempt of a run writes a marker when it opens the sink, so the position is known for
every segment that it prepares during an outage. A later attempt asks once it has committed what it
restored. An outage that begins before its first segment ends that attempt, and the next one reads
those records again. So the sink keeps no segment for which it could not tell later whether it was
published.
"""

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum

import pyarrow as pa
from confluent_kafka import TopicPartition

from pipelines.connectors.kafka.coordinator import KafkaCoordinator
from pipelines.connectors.kafka.producer import KafkaOutput, TransactionalProducer
from pipelines.connectors.kafka.sink import HeldTopic, KafkaOwnership, KafkaSink
from pipelines.connectors.sink import SinkContext
from pipelines.connectors.sink_bases import Marker, MarkerLost, WriteAheadWriter
from pipelines.domain.ids import CheckpointId

SENDING_TIMEOUT = timedelta(minutes=5)

log = logging.getLogger(__name__)


class LostMarker(StrEnum):
    """What to do with a segment if the broker has forgotten whether it is published."""

    FAIL = "fail"
    """The run ends and names the range: a person has to look for it in the topic and decide."""

    PUBLISH = "publish"
    LEAVE_OUT = "leave out"


@dataclass(frozen=True, slots=True)
class WriteAheadKafka(KafkaSink):
    """Exactly once into a topic, from a log in the snapshot: an outage of any length loses nothing.

    Records are sent when their checkpoint has completed, and wait in memory until then.

    Args:
        address: the brokers.
        topic: the topic to write to. It has to exist.
        pipeline: the name of the pipeline. With the topic it names the transactions; of the runs
            that use both, one holds the topic.
        value: the column of text or bytes that is the value. None: the whole row.
        key: the column of text, bytes or whole numbers that is the key. None: no key.
        format: how a whole row is written, such as `AvroValues`. None: as a JSON object.
        transaction_timeout: the longest time that the sending of one segment may take, as a
            `timedelta`.
        lost_marker: what to do with a segment if the broker has forgotten whether it is published.

    Building the pipeline raises Rejected for a column that does not fit. A start raises it if the
    broker does not take the transactions.
    """

    transaction_timeout: timedelta = field(default=SENDING_TIMEOUT, kw_only=True)
    lost_marker: LostMarker = field(default=LostMarker.FAIL, kw_only=True)

    def open(self, context: SinkContext, schema: pa.Schema) -> WriteAheadWriter:
        target = KafkaLogTarget(self.output, self.ownership, context, self.lost_marker)
        return WriteAheadWriter(target, context)


class KafkaLogTarget:
    """Guarantee: the segments of each subtask that ever prepared are published in order, each once.

    The transactional id follows from the preparing writer, not from the publisher. So if two
    publishers try the same segment, only one can succeed.
    """

    def __init__(
        self,
        output: KafkaOutput,
        ownership: KafkaOwnership,
        context: SinkContext,
        lost_marker: LostMarker = LostMarker.FAIL,
    ) -> None:
        """Raises ProtocolError if this attempt has been replaced, TargetTaken if its run has."""
        self._lost_marker = lost_marker
        self._output = output
        self._ownership = ownership
        self._coordinator = KafkaCoordinator(output.address)
        self._senders: dict[str, _Sender] = {}
        self._held = HeldTopic(ownership, output, self._coordinator, context)

    def published(self, marker: Marker) -> bool:
        self._held.check_current()
        sender = self._sender(marker)
        if marker.after is not None and sender.newest < marker.after:
            self._choose(marker, sender)
        return sender.newest >= marker.checkpoint_id

    def begun(self, marker: Marker) -> CheckpointId:
        """Writes a marker if there is none yet: no segment has to be published before this one."""
        sender = self._sender(marker)
        if sender.newest < 0:
            sender.producer.begin()
            self._commit(sender, CheckpointId(marker.checkpoint_id - 1))
        return CheckpointId(sender.newest)

    def publish(self, marker: Marker, batches: Iterable[pa.RecordBatch]) -> None:
        sender = self._sender(marker)
        sender.producer.begin()
        for batch in batches:
            sender.producer.write(batch)
        sender.producer.flush()
        self._commit(sender, marker.checkpoint_id)

    def close(self) -> None:
        self._senders.clear()
        self._coordinator.close()

    def _commit(self, sender: "_Sender", newest: CheckpointId) -> None:
        place = TopicPartition(self._output.topic, 0, newest)
        sender.producer.commit(sender.producer.transactional_id, place)
        sender.newest = newest

    def _choose(self, marker: Marker, sender: "_Sender") -> None:
        """Raises MarkerLost unless the author has chosen with `lost_marker`."""
        group = self._ownership.log_id(marker.uid, marker.run_id, marker.subtask)
        why = (
            f"Kafka has forgotten the offsets of group {group} for topic {self._output.topic}"
            " (offsets.retention.minutes; the topic was made again; another cluster)"
        )
        if self._lost_marker is LostMarker.FAIL:
            raise MarkerLost(
                f"{why}. Look for them in the topic, and give the sink"
                " lost_marker=LostMarker.PUBLISH or LostMarker.LEAVE_OUT for this start"
            )
        log.warning("%s: segment %s: %s", why, marker, self._lost_marker)
        if self._lost_marker is LostMarker.LEAVE_OUT:
            sender.newest = marker.checkpoint_id

    def _sender(self, marker: Marker) -> "_Sender":
        """Fences the previous user of the id; after that its marker cannot change any more."""
        name = self._ownership.log_id(marker.uid, marker.run_id, marker.subtask)
        if name not in self._senders:
            producer = TransactionalProducer(self._output, name)
            (mark,) = self._coordinator.remembered(self._output.topic, name)
            self._senders[name] = _Sender(producer, -1 if mark is None else mark[0])
        return self._senders[name]


@dataclass(slots=True)
class _Sender:
    """Keeps `newest` itself: the broker shows a marker a moment after its commit."""

    producer: TransactionalProducer
    newest: int
