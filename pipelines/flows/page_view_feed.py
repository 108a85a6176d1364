"""Makes up page views from a seed, and feeds them at a given pace to the log of `page_views`.

A log is a set of Redis Streams, or the partitions of a Kafka topic. It knows how many views it has
ever received, so its callers need not remember that. Environment variables name the servers that
`page_views` reads and writes.
"""

import argparse
import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from itertools import chain
from typing import Any, Protocol

import msgspec
import numpy as np
import pyarrow as pa
import redis
from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition, admin

from pipelines.connectors.in_process import Draws
from pipelines.connectors.json_rows import text_of
from pipelines.connectors.kafka.connection import ANSWER_TIMEOUT_S, KafkaAddress, KafkaAdmin
from pipelines.connectors.kafka.producer import RecordForm
from pipelines.connectors.redis.connection import RedisConnection, client_of, redis_errors
from pipelines.domain.errors import UNDECODABLE, Rejected, Retryable
from pipelines.flows.page_view_variables import DATABASE, KAFKA, KAFKA_SECURITY, REDIS


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
"""About this many views stay in each stream: at 100 views/s the last 2.7 hours, in some 100 MB.
An older point can no longer be restored; its preflight says so."""

DELIVERY_MS = 30_000
BROKER_DECIDES = -1


class ViewLog(Protocol):
    """A log of views for use by one thread. Raises Retryable while the server is away.

    After that error, ask for the count again.
    """

    def count(self, split: int) -> int:
        """Returns how many views the split has ever received, including those deleted since."""
        ...

    def append(self, split: int, views: pa.RecordBatch) -> None:
        """Appends all views in order; a failure may leave none of them or only the first ones."""
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
            with redis_errors(self._client, f"to append to the stream {stream}"):
                pipeline.execute()
        except redis.ResponseError as error:
            said = str(error).rpartition("caused error: ")[2]  # before it, the whole command
            raise Retryable(f"the Redis server takes no more views: {said}") from error

    def close(self) -> None:
        self._client.close()


class KafkaViewLog:
    """A partition for each split; it must be the topic's only writer.

    The producer is idempotent: a view that is sent twice arrives once. So the end offset of a
    partition is the number of its views.
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
        self._client = None  # every view that it got has arrived, or was reported as failed

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
    """`system` is kafka or redis. Raises Rejected if the environment names no such server."""
    if system == "kafka":
        return KafkaViewLog(kafka_address(), name)
    return RedisViewLog(redis_url(), name, kept=kept)


def stream_of(name: str, split: int) -> str:
    return f"{name}-{split}"


def provide_topic(address: KafkaAddress, topic: str, partitions: int) -> None:
    """Create the topic, with the broker's default number of replicas, unless it exists.

    Raises Retryable.
    """
    untyped: Any = admin
    with address.settings_are_understood():
        client = untyped.AdminClient(address.settings(lambda error: None))
    wanted = untyped.NewTopic(topic, partitions, BROKER_DECIDES)
    futures = client.create_topics([wanted], request_timeout=ANSWER_TIMEOUT_S)
    try:
        futures[topic].result()
    except KafkaException as failure:
        error: KafkaError = failure.args[0]
        if error.code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise address.translated(error) from failure
    KafkaAdmin(address).await_leaders(topic)


def _fields(views: pa.RecordBatch) -> list[list[str]]:
    """Returns names and values in turn, for each view."""
    table = pa.Table.from_batches([views])
    columns = {name: text_of(table.column(name)).to_pylist() for name in table.schema.names}
    rows = zip(*columns.values(), strict=True)
    return [list(chain.from_iterable(zip(columns, row, strict=True))) for row in rows]


VIEWS = pa.schema(
    [
        ("user_id", pa.int64()),
        ("app_id", pa.string()),
        ("page", pa.string()),
        ("at", pa.timestamp("ms", tz="UTC")),
    ]
)
OUT_OF_ORDER_MS = 1_000
"""The most that a view's time may lie behind that of an earlier view in the same split."""

FIRST_MS = 1_767_225_600_000  # the first moment of 2026
STEP_MS = 10
"""The average time from one view of a split to the next."""

APPS = tuple(f"app-{number:02}" for number in range(20))
PAGES = ("/", "/search", "/item", "/item/reviews", "/cart", "/checkout", "/help")
USERS = 100_000


def page_views(seed: int, split: int, first: int, end: int) -> pa.RecordBatch:
    """Returns the views numbered from `first` up to but not including `end`."""
    draws = Draws(seed, split, np.arange(first, end, dtype=np.int64))
    lateness_ms = draws.integers("lateness", 0, OUT_OF_ORDER_MS)
    at_ms = FIRST_MS + draws.offsets * STEP_MS + OUT_OF_ORDER_MS - lateness_ms
    columns = [
        pa.array(draws.integers("user", 0, USERS)),
        _column(APPS).take(pa.array(_apps(draws))),
        _column(PAGES).take(pa.array(draws.integers("page", 0, len(PAGES)))),
        pa.array(at_ms).cast(VIEWS.field("at").type),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=VIEWS)


@cache
def _column(texts: tuple[str, ...]) -> pa.Array:
    """Makes the array on first use: the first array imports pandas, for a third of a second."""
    return pa.array(texts)


def _apps(draws: Draws) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
    """Draws apps such that some are viewed far more often than others."""
    one, other = (draws.integers(name, 0, len(APPS)) for name in ("app", "rival"))
    return np.minimum(one, other)


TURN_S = 0.05
BATCH_VIEWS = 2_000
"""The most views that are appended at once. After an outage the feed does not catch up."""

log = logging.getLogger("ftdash.page_views")


@dataclass(slots=True, kw_only=True)
class Feed:
    """All splits share `views_per_s`. One thread uses it."""

    log: ViewLog
    seed: int
    splits: int
    views_per_s: float
    views_per_split: int | None = None  # None: without end
    now_s: Callable[[], float] = time.monotonic
    _counts: list[int] = field(default_factory=list)
    _began_s: float = 0.0
    _begun_with: int = 0

    def append_due(self) -> None:
        """Appends the views that are due and not in the log yet. Raises Retryable or Rejected."""
        if not self._counts:
            self._counts = [self.log.count(split) for split in range(self.splits)]
            self._began_s, self._begun_with = self.now_s(), min(self._counts)
        due = self._begun_with + self._elapsed_views()
        if self.views_per_split is not None:
            due = min(due, self.views_per_split)
        for split in range(self.splits):
            self._append(split, due)

    def begin_again(self) -> None:
        """Forgets the counts after a failure: only the log knows how many views it has."""
        self._counts = []

    def _elapsed_views(self) -> int:
        return int((self.now_s() - self._began_s) * self.views_per_s / self.splits)

    def _append(self, split: int, due: int) -> None:
        first = self._counts[split]
        end = min(due, first + BATCH_VIEWS)
        if first < end:
            self.log.append(split, page_views(self.seed, split, first, end))
            self._counts[split] = end


def run(feed: Feed, ends: threading.Event) -> None:
    """Appends views until `ends` is set. Raises Rejected if the server refuses."""
    while not ends.wait(TURN_S):
        try:
            feed.append_due()
        except Retryable as failure:
            log.warning("Waiting: %s.", failure)
            feed.begin_again()


def main() -> None:
    options = _options()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    ends = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ends.set())
    try:
        view_log = open_log(options.to, options.name, kept=options.kept)
        feed = Feed(
            log=view_log,
            seed=options.seed,
            splits=options.splits,
            views_per_s=options.views_per_s,
            views_per_split=options.views_per_split,
        )
        run(feed, ends)
        view_log.close()
    except Rejected as refusal:
        raise SystemExit(str(refusal)) from refusal


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Append made-up page views to a log.")
    parser.add_argument("--to", choices=("redis", "kafka"), required=True)
    parser.add_argument("--name", default="page-views", help="of the topic, or of the streams")
    parser.add_argument("--splits", type=int, default=2, help="streams or partitions")
    parser.add_argument("--views-per-s", type=float, default=200.0)
    parser.add_argument(
        "--views-per-split", type=int, help="after that many it waits to be ended (default: never)"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kept", type=int, default=KEPT_VIEWS, help="views that a stream keeps")
    return parser.parse_args()


if __name__ == "__main__":
    main()
