"""Decides which reader audits which sink. A sink without one is reported as not audited."""

from pathlib import Path

import pyarrow as pa

from pipelines.audit.file_output import FileOutput
from pipelines.audit.kafka_log_output import KafkaLogOutput
from pipelines.audit.kafka_output import KafkaOutput
from pipelines.audit.kafka_topic import RecordRows, TopicReading
from pipelines.audit.output import TargetReader
from pipelines.audit.redis_output import RedisOutput
from pipelines.audit.table_output import TableOutput, Tags
from pipelines.connectors.files.sink import ExactlyOnceFiles
from pipelines.connectors.kafka.sink import KafkaSink
from pipelines.connectors.kafka.transactions import ExactlyOnceKafka
from pipelines.connectors.kafka.write_ahead import WriteAheadKafka
from pipelines.connectors.postgres.insert import PostgresInsert
from pipelines.connectors.postgres.two_phase import PostgresTwoPhase
from pipelines.connectors.redis.hashes import RedisHashes
from pipelines.connectors.sink import Sink
from pipelines.connectors.sql.upsert import SqlUpsert


def reader_of(sink: Sink, schema: pa.Schema) -> TargetReader | None:
    """None: the target cannot be read again. Reads the target at once: read the journal before.

    Raises Rejected when the target cannot be read.
    """
    match sink:
        case ExactlyOnceFiles(directory=directory):
            return FileOutput(Path(directory), schema)
        case SqlUpsert(url=url, table=table):
            return TableOutput(url, table, schema, Tags.OF_NEWEST)
        case PostgresInsert(url=url, table=table):
            return TableOutput(url, table, schema, Tags.OF_CHECKPOINT)
        case PostgresTwoPhase(url=url, table=table):
            return TableOutput(url, table, schema, Tags.OF_INTERVAL)
        case RedisHashes(url=url, prefix=prefix):
            return RedisOutput(url, prefix, schema)
        case ExactlyOnceKafka():
            return KafkaOutput(_reading(sink, schema))
        case WriteAheadKafka():
            return KafkaLogOutput(_reading(sink, schema), sink.ownership)
    return None


def _reading(sink: KafkaSink, schema: pa.Schema) -> TopicReading:
    return TopicReading(sink.address, sink.topic, RecordRows(schema, sink.value, sink.key))
