"""Formats with a schema, through a real broker: what a sink writes, a source reads."""

from collections.abc import Callable
from contextlib import closing

import pyarrow as pa
import pytest

from pipelines.connectors import (
    AvroValues,
    ExactlyOnceKafka,
    KafkaAddress,
    KafkaTopics,
    ProtobufValues,
)
from pipelines.connectors.kafka.registry import SchemaRegistry
from pipelines.connectors.sink import SinkContext
from pipelines.connectors.source import MalformedRecord
from pipelines.domain.errors import Rejected
from pipelines.domain.ids import Attempt, CheckpointId, RunId, Uid
from pipelines.domain.ownership import Claim, Holder
from tests.brokers.kafka_broker import ANSWER_S, KafkaBroker
from tests.brokers.protobuf_messages import file_of, message_of
from tests.brokers.schema_registry import schema_registry

pytestmark = pytest.mark.slow

ROWS = pa.schema([("n", pa.int64()), ("text", pa.string()), ("at", pa.timestamp("ms", "UTC"))])
ORDER = message_of(file_of("order.proto"))
FORMATS: dict[str, Callable[[SchemaRegistry], AvroValues | ProtobufValues]] = {
    "avro": lambda registry: AvroValues(ROWS, registry=registry),
    "protobuf": lambda registry: ProtobufValues(ROWS, ORDER, registry=registry),
}
RUN = RunId("run-00000001")


@pytest.mark.parametrize("kind", ["avro", "protobuf"])
def test_rows_survive_a_topic_and_a_record_of_another_schema_is_reported(
    kafka_server: KafkaBroker, kind: str
) -> None:
    kafka_server.create_topic(kind)
    address = KafkaAddress(kafka_server.bootstrap_servers)
    rows = pa.RecordBatch.from_pylist(
        [{"n": n, "text": f"row {n}", "at": n} for n in range(1_000)], schema=ROWS
    )

    with schema_registry() as registry:
        values = FORMATS[kind](SchemaRegistry(registry.url))
        sink = ExactlyOnceKafka(address, kind, pipeline="formats", key="n", format=values)
        sink.validate(ROWS)
        with pytest.raises(Rejected, match="Column n of type int32 is of type int64 in the format"):
            sink.validate(pa.schema([("n", pa.int32())]))
        write(sink, rows)
        source = KafkaTopics(address, (kind,), format=values, is_bounded=True)
        assert read(source) == rows.to_pylist()

        number = registry.add('{"type": "record", "name": "Other", "fields": []}', "JSON")
        producer = kafka_server.producer()
        producer.produce(kind, number.to_bytes(5, "big") + b"\0", partition=0)
        producer.flush(ANSWER_S)
        with pytest.raises(
            MalformedRecord,
            match=rf"offset .* of topic {kind} is malformed: the schema 2 that wrote",
        ):
            read(source)


def write(sink: ExactlyOnceKafka, rows: pa.RecordBatch) -> None:
    sink.hold(Claim(holder=Holder(run_id=RUN, epoch=1)))
    context = SinkContext(RUN, Attempt(1), Uid("out"), 0, 1)
    writer = sink.open(context, rows.schema)
    with closing(writer):
        writer.write(rows)
        checkpoint = CheckpointId(1)
        writer.commit(checkpoint, writer.prepare(checkpoint))


def read(source: KafkaTopics) -> list[dict[str, object]]:
    with closing(source.open()) as reader:
        return [
            row
            for split in source.find(set(), is_start=True)
            for batch in reader.read(split)
            for row in batch.records.to_pylist()
        ]
