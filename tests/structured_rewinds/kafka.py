"""Spark's Kafka connector, and a topic that grows, for a query that reads Kafka.

Connector and broker come from Maven Central. Both raise ProgramMissing if this machine cannot have
them.
"""

import re
import uuid
from pathlib import Path

import pyspark
from pyspark.sql import DataFrame, SparkSession

from tests.brokers.kafka_broker import KafkaBroker
from tests.java_programs import JavaProgram

PARTITIONS = 2
FLUSHED_S = 30.0
CONNECTOR_VERSION = "4.2.0"
"""The newest published version; it works with Spark 4.3.0."""

CONNECTOR = JavaProgram(
    "SparkKafka",
    CONNECTOR_VERSION,
    f"""
    <dependency>
      <groupId>org.apache.spark</groupId><artifactId>spark-sql-kafka-0-10_2.13</artifactId>
      <version>{CONNECTOR_VERSION}</version>
    </dependency>
  """,
)


def add_connector(spark: SparkSession) -> None:
    """Adds the connector to all sessions of the process, without the jars that Spark has itself."""
    own = {_artifact(path) for path in (Path(pyspark.__file__).parent / "jars").iterdir()}
    for jar in CONNECTOR.jars():
        if _artifact(jar) not in own:
            spark.sql(f"ADD JAR '{jar}'")


def _artifact(jar: Path) -> str:
    """Returns the jar's name without the version."""
    return re.sub(r"-[\d.]+\.jar$", "", jar.name)


class Topic:
    """A topic of its own. Each batch sends its values round-robin to the partitions."""

    def __init__(self, broker: KafkaBroker) -> None:
        self._broker = broker
        self._name = f"rewind-{uuid.uuid4()}"
        self._offered = 0  # the number of values so far
        broker.create_topic(self._name, PARTITIONS)

    def offer(self, until: int) -> None:
        """Sends all values below `until` that have not been sent yet."""
        producer = self._broker.producer()
        for value in range(self._offered, until):
            producer.produce(self._name, str(value).encode(), partition=value % PARTITIONS)
        assert producer.flush(FLUSHED_S) == 0
        self._offered = max(self._offered, until)

    def read(self, spark: SparkSession, values_per_batch: int) -> DataFrame:
        """Returns the values as text in the column `value`."""
        settings = {
            "kafka.bootstrap.servers": self._broker.bootstrap_servers,
            "subscribe": self._name,
            "startingOffsets": "earliest",
            "maxOffsetsPerTrigger": str(values_per_batch),
        }
        frame = spark.readStream.format("kafka").options(**settings).load()
        return frame.selectExpr("cast(value as string) as value")
