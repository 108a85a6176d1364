"""The demonstration `page_views`: generated views, counted into all configured systems.

By default, views and counts are on a Redis of our own, and counts also in files. Systems that the
environment names (see `pipelines.flows.page_view_feed`) are used as they are. This module counts
the right totals from the views one by one, without the engine, and reads each system with its own
client. It knows only the names of the pipeline's output.
"""

import json
import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import redis
import sqlalchemy
from confluent_kafka import Consumer, KafkaError, TopicPartition
from django.conf import settings

from ftdash.embedded import stack
from ftdash.embedded.installation import LOOPBACK, own_views_redis
from ftdash.embedded.outcome import Comparison
from ftdash.embedded.supervisor import Service
from ftdash.requests import services
from pipelines.domain.errors import Rejected, Retryable
from pipelines.domain.ids import RequestId
from pipelines.flows.page_view_variables import DATABASE, KAFKA, REDIS, is_configured

NAME = "page_views"
INPUT = "page-views"
SPLITS = 2
VIEWS_PER_S = 200.0
CHECKPOINTING = {"execution.checkpointing.interval": "1 s"}


@dataclass(frozen=True, slots=True)
class PageViews:
    """Implements `demo.Demonstration`."""

    views_per_s: float = VIEWS_PER_S
    name: str = NAME
    prefix: str = NAME  # of tables, topics and keys
    input: str = INPUT
    views_per_split: int | None = None  # None: endless

    def services(self) -> Iterator[Service]:
        """Yields our own servers, then the feed, which continues where it had stopped."""
        yield from stack.views_redis()
        if is_configured(KAFKA):
            provide_topics(self.input, self.prefix)
        yield self._feed()

    def prepare(self) -> None:
        files_output().mkdir(parents=True, exist_ok=True)

    def submit(self) -> RequestId:
        return services.submit_pipeline(
            name=NAME,
            flow=NAME,
            requester="demo",
            reason="demonstration",
            parallelism=SPLITS,
            parameters={
                "source": source(),
                "input": self.input if source() == "kafka" else ",".join(streams(self.input)),
                "into": ",".join(systems()),
                "target": self.prefix,
                "output": str(files_output()),
            },
            settings=CHECKPOINTING,
            allows_faults=True,  # people are meant to kill it
        )

    def output(self) -> list[str]:
        """Omits addresses that the user gave, which may hold passwords."""
        given = [system for system in systems() if system in ("postgres", "kafka")]
        lines = [f"{NAME}_windows and {NAME}_totals in {system}" for system in given]
        return [*_in_redis(), *lines, str(files_output())]

    def _feed(self) -> Service:
        words = ("--to", source(), "--name", self.input, "--splits", str(SPLITS))
        pace = ["--views-per-s", f"{self.views_per_s:g}"]
        if self.views_per_split is not None:
            pace += ["--views-per-split", str(self.views_per_split)]
        return Service(
            name="page-view-feed",
            command=stack.module("pipelines.flows.page_view_feed", *words, *pace),
            is_ready=lambda: has_views(self.input),
            ready_within_s=stack.READY_WITHIN_S,
        )


def _in_redis() -> list[str]:
    key = f"{{{NAME}_totals}}:row:app-00"
    ours = own_views_redis()
    if ours is None:
        return [f"'{key}' and its like in the Redis of {REDIS}"]
    password = Path(settings.FTDASH_HOME) / "views-redis" / "redis.conf"
    return [
        f"redis-cli -h {LOOPBACK} -p {ours.port} HGETALL '{key}'",
        f"  after AUTH with the password in {password}",
    ]


def source() -> str:
    return "kafka" if is_configured(KAFKA) else "redis"


def systems() -> list[str]:
    """Returns the systems that get the counts."""
    found = {"postgres": DATABASE, "kafka": KAFKA}
    return [
        "redis",
        *(name for name, variable in found.items() if is_configured(variable)),
        "files",
    ]


def streams(name: str) -> list[str]:
    from pipelines.flows.page_view_feed import stream_of

    return [stream_of(name, split) for split in range(SPLITS)]


def files_output() -> Path:
    return Path(settings.FTDASH_HOME) / "output" / NAME


def provide_topics(views: str, prefix: str) -> None:
    """Raises Rejected if the brokers do not answer."""
    from pipelines.flows.page_view_feed import kafka_address, provide_topic

    try:
        for topic in (views, f"{prefix}_windows", f"{prefix}_totals"):
            provide_topic(kafka_address(), topic, SPLITS)
    except Retryable as failure:
        raise Rejected(f"{failure}.") from failure


def has_views(name: str = INPUT) -> bool:
    """True if every split exists, so that a pipeline can read it."""
    from pipelines.flows.page_view_feed import open_log

    try:
        log = open_log(source(), name)
        return all(log.count(split) for split in range(SPLITS))
    except Retryable:
        return False


WINDOW_S = 10
SAMPLES = 5
TURN_S, KAFKA_S = 1.0, 60.0

Window = tuple[str, int]  # app; start in seconds since 1970
Row = tuple[str | Window, int]


def expected(seed: int, views_per_split: int, splits: int) -> dict[str | Window, int]:
    """Returns the totals of each app, and of each app in each window."""
    from pipelines.flows.page_view_feed import page_views

    counts: Counter[str | Window] = Counter()
    for split in range(splits):
        for view in page_views(seed, split, 0, views_per_split).to_pylist():
            second = int(view["at"].timestamp())
            counts[view["app_id"]] += 1
            counts[view["app_id"], second - second % WINDOW_S] += 1
    return dict(counts)


def compared(right: Mapping[str | Window, int], rows: Iterable[Row]) -> Comparison:
    """An unexpected row counts as a difference."""
    found: dict[str | Window, int] = {}
    duplicated = 0
    for key, views in rows:
        duplicated += key in found
        found[key] = views
    missing = [key for key in right if key not in found]
    wrong = [key for key, views in found.items() if right.get(key) != views]
    samples = [f"{key}: {found.get(key)}, not {right.get(key)}" for key in (*missing, *wrong)]
    return Comparison(len(found), len(missing), duplicated, len(wrong), samples[:SAMPLES])


def in_redis(url: str, target: str) -> list[Row]:
    client = redis.Redis.from_url(url, decode_responses=True)
    with closing(client):
        keys = [key for kind in _tables(target) for key in client.scan_iter(f"{{{kind}}}:row:*")]
        found: list[Any] = [client.hgetall(key) for key in keys]
        return [_row(fields) for fields in found]


def in_postgres(url: str, target: str) -> list[Row]:
    return _in_tables(url, _tables(target))


def in_kafka(address: Mapping[str, Any], target: str) -> list[Row]:
    """Returns each window once, and the newest total of each app."""
    windows, totals = _tables(target)
    newest = dict(_row(json.loads(value)) for value in _records(address, totals))
    return [*(_row(json.loads(value)) for value in _records(address, windows)), *newest.items()]


def in_files(directory: Path, target: str) -> list[Row]:
    files = sorted((directory / "windows").glob("part-*.jsonl"))
    lines = [line for file in files for line in file.read_text().splitlines()]
    with closing(sqlite3.connect(directory / "totals.sqlite3")) as connection:
        totals = connection.execute(f'select app_id, views from "{_tables(target)[1]}"').fetchall()
    return [*(_row(json.loads(line)) for line in lines), *((app, views) for app, views in totals)]


def _tables(target: str) -> tuple[str, str]:
    return f"{target}_windows", f"{target}_totals"


def _row(fields: Mapping[str, Any]) -> Row:
    app, views, start = fields["app_id"], int(fields["views"]), fields.get("window_start")
    return (app, views) if start is None else ((app, _second(start)), views)


def _second(start: str | datetime) -> int:
    time = start if isinstance(start, datetime) else datetime.fromisoformat(start)
    return int(time.replace(tzinfo=time.tzinfo or UTC).timestamp())


def _in_tables(url: str, tables: Iterable[str]) -> list[Row]:
    engine = sqlalchemy.create_engine(url)
    with engine.connect() as connection:
        read = [connection.execute(sqlalchemy.text(f'select * from "{t}"')) for t in tables]
        rows = [_row(dict(row)) for result in read for row in result.mappings()]
    engine.dispose()
    return rows


def _records(settings: Mapping[str, Any], topic: str) -> list[bytes]:
    """Returns all committed records. Raises Rejected if the brokers do not supply them in time."""
    committed = {"isolation.level": "read_committed", "enable.auto.commit": False}
    own = {"group.id": "ftdash-check", "enable.partition.eof": True, "auto.offset.reset": "error"}
    consumer = Consumer({**settings, **committed, **own})
    with closing(consumer):
        partitions = consumer.list_topics(topic, KAFKA_S).topics[topic].partitions
        consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
        return list(_until_the_end(consumer, topic, len(partitions)))


def _until_the_end(consumer: Consumer, topic: str, partitions: int) -> Iterable[bytes]:
    silent_s, ended = 0.0, 0
    while ended < partitions:
        message = consumer.poll(TURN_S)
        silent_s = silent_s + TURN_S if message is None else 0.0
        if silent_s > KAFKA_S:
            raise Rejected(f"The records of the topic {topic} cannot be read.")
        if message is None:
            continue
        error, value = message.error(), message.value()
        if error is not None and error.code() != KafkaError._PARTITION_EOF:
            raise Rejected(f"The records of the topic {topic} cannot be read: {error}.")
        ended += error is not None
        if error is None and value is not None:
            yield value
