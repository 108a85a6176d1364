"""The logs that page views are appended to: Redis Streams, or the partitions of a Kafka topic.

Each log knows how many views it was ever given, so its callers need not remember. Decides neither
which views there are nor when they come.

Finds the servers that `page_views` reads and writes: the environment names them.
"""

import os
from itertools import chain
from typing import Any, Protocol

import msgspec
import pyarrow as pa
import redis
from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition, admin

from pipelines.connectors.json_rows import text_of
from pipelines.connectors.kafka.connection import ANSWER_TIMEOUT_S, KafkaAddress, KafkaAdmin
from pipelines.connectors.kafka.producer import RecordForm
from pipelines.connectors.redis.connection import RedisConnection, asking, client_of
from pipelines.domain.errors import UNDECODABLE, Rejected, Retryable

REDIS = "FTDASH_VIEWS_REDIS_URL"
DATABASE = "FTDASH_VIEWS_DATABASE_URL"
KAFKA = "FTDASH_VIEWS_KAFKA"
KAFKA_SECURITY = "FTDASH_VIEWS_KAFKA_SECURITY"


def is_configured(variable: str) -> bool:
    return bool(os.environ.get(variable))


def redis_url() -> str:
    return _named(REDIS, "a Redis server, such as redis://:password@host:6379/0")


def database_url() -> str:
    return _named(
        DATABASE, "a PostgreSQL database, such as postgresql+psycopg://user:password@host/name"
    )


def kafka_address() -> KafkaAddress:
    return KafkaAddress(_named(KAFKA, "Kafka brokers, such as host:9092"), _kafka_security())


def _named(variable: str, what: str) -> str:
    """Raises Rejected naming the variable, never its value."""
    value = os.environ.get(variable)
    if not value:
        raise Rejected(
            f"The pipeline page_views needs the environment variable {variable}: {what}."
        )
    return value


def _kafka_security() -> dict[str, str]:
    try:
        return msgspec.json.decode(os.environ.get(KAFKA_SECURITY) or "{}", type=dict[str, str])
    except UNDECODABLE:
        # The text of the error may repeat a part of the value.
        raise Rejected(
            f"The environment variable {KAFKA_SECURITY} is no JSON object of texts, such as"
            ' {"security.protocol": "SASL_SSL"}.'
        ) from None


KEPT_VIEWS = 1_000_000
"""About so many stay in each stream: at 100 views/s those of the last 2.7 hours, in some 100 MB.
An older point cannot be restored any more; its preflight says so."""

DELIVERY_MS = 30_000
BROKER_DECIDES = -1


class ViewLog(Protocol):
    """Used by one thread. Raises Retryable while the server is away; then ask for the count."""

    def count(self, split: int) -> int:
        """How many views the split was ever given, however many are left."""
        ...

    def append(self, split: int, views: pa.RecordBatch) -> None:
        """Appends all of them in order; after a failure, none of them or the first ones."""
        ...

    def close(self) -> None: ...


class RedisViewLog:
    """A stream for each split, `<name>-<split>`, which keeps its newest `kept` views."""

    def __init__(self, url: str, name: str, *, kept: int = KEPT_VIEWS) -> None:
        self._url = url
        self._client = client_of(url)
        self._name = name
        self._kept = kept

    def count(self, split: int) -> int:
        with RedisConnection(self._url) as connection:
            extent = connection.extent(stream_of(self._name, split))
        return 0 if extent is None else extent.added

    def append(self, split: int, views: pa.RecordBatch) -> None:
        stream = stream_of(self._name, split)
        bounded = ("XADD", stream, "MAXLEN", "~", self._kept, "*")
        pipeline = self._client.pipeline(transaction=True)  # none is left out in the middle
        for fields in _fields(views):
            pipeline.execute_command(*bounded, *fields)
        try:
            with asking(self._client, f"to append to the stream {stream}"):
                pipeline.execute()
        except redis.ResponseError as error:
            said = str(error).rpartition("caused error: ")[2]  # before it, the whole command
            raise Retryable(f"the Redis server takes no more views: {said}") from error

    def close(self) -> None:
        self._client.close()


class KafkaViewLog:
    """A partition for each split; needs to be the topic's only writer.

    The producer is idempotent: a view that was sent twice is there once. So the end of a partition
    is the number of its views.
    """

    def __init__(self, address: KafkaAddress, topic: str) -> None:
        self._address = address
        self._topic = topic
        self._form = RecordForm()
        self._client: Producer | None = None

    def count(self, split: int) -> int:
        (end,) = KafkaAdmin(self._address).newest(
            [TopicPartition(self._topic, split)], committed_only=False
        )
        return end

    def append(self, split: int, views: pa.RecordBatch) -> None:
        failures: list[KafkaError] = []
        self._client = self._client or self._new_producer()
        producer: Any = self._client
        (values,) = self._form.columns(views)
        for value in values:
            producer.produce(
                self._topic,
                value,
                partition=split,
                on_delivery=lambda error, _: failures.append(error) if error else None,
            )
        left = producer.flush(2 * DELIVERY_MS / 1000)
        if failures or left:
            producer.purge()
            self._client = None
            raise Retryable(f"Kafka at {self._address.bootstrap_servers} has not taken all views")

    def close(self) -> None:
        self._client = None  # all that it was given has arrived, or was reported as failed

    def _new_producer(self) -> Producer:
        with self._address.settings_are_understood():
            return Producer(
                {
                    **self._address.settings(lambda error: None),
                    "enable.idempotence": True,
                    "enable.gapless.guarantee": True,  # after a record that failed, none arrives
                    "delivery.timeout.ms": DELIVERY_MS,
                    "linger.ms": 0,
                }
            )


def open_log(system: str, name: str, *, kept: int = KEPT_VIEWS) -> ViewLog:
    """`system`: kafka or redis. Raises Rejected if the environment names no such server."""
    if system == "kafka":
        return KafkaViewLog(kafka_address(), name)
    return RedisViewLog(redis_url(), name, kept=kept)


def stream_of(name: str, split: int) -> str:
    return f"{name}-{split}"


def provide_topic(address: KafkaAddress, topic: str, partitions: int) -> None:
    """Create the topic, with the broker's default of replicas, unless it exists.

    Raises Retryable.
    """
    untyped: Any = admin
    with address.settings_are_understood():
        client = untyped.AdminClient(address.settings(lambda error: None))
    wanted = untyped.NewTopic(topic, partitions, BROKER_DECIDES)
    asked = client.create_topics([wanted], request_timeout=ANSWER_TIMEOUT_S)
    try:
        asked[topic].result()
    except KafkaException as failure:
        error: KafkaError = failure.args[0]
        if error.code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise address.translated(error) from failure
    KafkaAdmin(address).await_leaders(topic)


def _fields(views: pa.RecordBatch) -> list[list[str]]:
    """For each view, names and values in turn."""
    table = pa.Table.from_batches([views])
    columns = {name: text_of(table.column(name)).to_pylist() for name in table.schema.names}
    rows = zip(*columns.values(), strict=True)
    return [list(chain.from_iterable(zip(columns, row, strict=True))) for row in rows]
