"""A real Apache Kafka on loopback, in KRaft mode, from Maven Central."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
)

from ftdash.embedded.installation import LOOPBACK
from pipelines.connectors import KafkaAddress
from pipelines.connectors.kafka.connection import KafkaAdmin
from tests.brokers.processes import ServerProcess
from tests.java_programs import JavaProgram
from tests.reserved_ports import reserved_port

VERSION = "4.1.1"
START_S = 90.0
ANSWER_S = 20.0
CLUSTER_ID = "ZnRkYXNoLXRlc3RicmtyMQ"
"""Any 16 bytes. A random id may begin with a dash, which the tool takes for an option."""

KAFKA = JavaProgram(
    "Kafka",
    VERSION,
    f"""
    <dependency>
      <groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId>
      <version>{VERSION}</version>
    </dependency>
    <dependency>
      <groupId>org.apache.kafka</groupId><artifactId>kafka-tools</artifactId>
      <version>{VERSION}</version>
      <exclusions>
        <exclusion>
          <groupId>org.apache.kafka</groupId><artifactId>connect-runtime</artifactId>
        </exclusion>
      </exclusions>
    </dependency>
  """,
)

LARGE_RECORDS = ["-Djdk.nio.maxCachedBufferSize=1048576"]
"""In bytes. Otherwise each thread of the broker keeps a direct buffer as large as the largest
record that it has passed on. Then records of 64 MiB fail once a few threads have such buffers."""


@dataclass(frozen=True, slots=True)
class KafkaBroker:
    """With `secured` it speaks SASL/PLAIN and knows one user."""

    bootstrap_servers: str
    secured: str
    server: ServerProcess

    def admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.bootstrap_servers, "log_level": 0})

    def create_topic(self, topic: str, partitions: int = 1, **settings: str) -> None:
        admin = self.admin()  # in a variable, because its requests are forgotten with it
        new = NewTopic(topic, partitions, 1, config=settings)
        (created,) = admin.create_topics([new]).values()
        created.result(ANSWER_S)
        KafkaAdmin(KafkaAddress(self.bootstrap_servers)).await_leaders(topic)

    def add_partitions(self, topic: str, total: int) -> None:
        admin = self.admin()
        (added,) = admin.create_partitions([NewPartitions(topic, total)]).values()
        added.result(ANSWER_S)

    def produce(self, topic: str, values: list[bytes | None], *, partition: int = 0) -> None:
        """Writes each value in a transaction of its own, so that the log has gaps."""
        producer = self.producer(**{"transactional.id": f"writer-of-{topic}", "linger.ms": 0})
        producer.init_transactions(ANSWER_S)
        for value in values:
            producer.begin_transaction()
            producer.produce(topic, value, partition=partition)
            producer.commit_transaction(ANSWER_S)

    def producer(self, **settings: object) -> Producer:
        """Returns a producer that keeps the order of records.

        Without idempotence, a record that is sent again, because the leader of a new topic is not
        known at once, would follow records sent after it.
        """
        here = {"bootstrap.servers": self.bootstrap_servers, "log_level": 0}
        return Producer({**here, "enable.idempotence": True, **settings})

    def delete_before(self, topic: str, offset: int, *, partition: int = 0) -> None:
        """Deletes records before `offset`, as retention does."""
        admin = self.admin()
        deleted = admin.delete_records([TopicPartition(topic, partition, offset)])
        for each in deleted.values():
            each.result(ANSWER_S)

    def delete_topic(self, topic: str) -> None:
        admin = self.admin()
        (deleted,) = admin.delete_topics([topic]).values()
        deleted.result(ANSWER_S)

    def let_topic_take(self, topic: str, *, record_bytes: int) -> None:
        self.set_topic(topic, "max.message.bytes", str(record_bytes))

    def set_topic(self, topic: str, setting: str, value: str) -> None:
        change = ConfigEntry(setting, value, incremental_operation=AlterConfigOpType.SET)
        admin, kind = self.admin(), ConfigResource.Type.TOPIC
        change_of_topic = ConfigResource(kind, topic, incremental_configs=[change])
        (changed,) = admin.incremental_alter_configs([change_of_topic]).values()
        changed.result(ANSWER_S)

    def delete_group(self, group: str) -> None:
        """Deletes a group, as a broker does when nothing has been committed to it for long."""
        admin = self.admin()
        (deleted,) = admin.delete_consumer_groups([group]).values()
        deleted.result(ANSWER_S)


USER, PASSWORD = "reader", "open-sesame"


@contextmanager
def kafka_broker(directory: Path) -> Iterator[KafkaBroker]:
    """Starts a broker. Its ports stay reserved while it is down, so it can always start again.

    Raises ProgramMissing.
    """
    with reserved_port() as plain, reserved_port() as secured, reserved_port() as controller:
        yield from _broker(directory, plain, secured, controller)


def _broker(directory: Path, plain: int, secured: int, controller: int) -> Iterator[KafkaBroker]:
    properties = directory / "server.properties"
    properties.write_text(_properties(directory / "log", plain, secured, controller))
    tool = KAFKA.command("kafka.tools.StorageTool", "format", "-t", CLUSTER_ID)
    subprocess.run([*tool, "-c", properties], check=True, capture_output=True)
    address = f"{LOOPBACK}:{plain}"
    server = ServerProcess(
        KAFKA.command("kafka.Kafka", str(properties), lives_long=True, options=LARGE_RECORDS),
        directory / "kafka.log",
        lambda: _answers(address),
        within_s=START_S,
    )
    server.start()
    try:
        yield KafkaBroker(address, f"{LOOPBACK}:{secured}", server)
    finally:
        server.kill()


def _properties(log: Path, plain: int, secured: int, controller: int) -> str:
    login = (
        "org.apache.kafka.common.security.plain.PlainLoginModule required"
        f' username="{USER}" password="{PASSWORD}" user_{USER}="{PASSWORD}";'
    )
    return f"""process.roles=broker,controller
node.id=1
controller.quorum.voters=1@{LOOPBACK}:{controller}
listeners=PLAINTEXT://{LOOPBACK}:{plain},SECURED://{LOOPBACK}:{secured},CONTROLLER://{LOOPBACK}:{controller}
advertised.listeners=PLAINTEXT://{LOOPBACK}:{plain},SECURED://{LOOPBACK}:{secured}
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SECURED:SASL_PLAINTEXT
sasl.enabled.mechanisms=PLAIN
listener.name.secured.plain.sasl.jaas.config={login}
log.dirs={log}
auto.create.topics.enable=false
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
transaction.abort.timed.out.transaction.cleanup.interval.ms=500
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
broker.session.timeout.ms=2000
broker.heartbeat.interval.ms=500
"""


def _answers(address: str) -> bool:
    try:
        client = AdminClient({"bootstrap.servers": address, "log_level": 0})
        return bool(client.list_topics(timeout=0.5).brokers)
    except KafkaException:
        return False
