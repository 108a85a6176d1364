"""The flow `page_views`: counts views per app, in event-time windows and in total.

It reads views from Kafka (each one a JSON object) or from Redis Streams (the fields of an entry),
keys them by app and counts them. It writes the same counts into each system that you ask for:
Redis, PostgreSQL, Kafka and files. Each system commits with the checkpoints of the run.

A view that is no JSON object, or has no time, ends the run, and the error names its place. A view
without an app is counted under `UNNAMED`, so that the totals add up to the views that were read.
"""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from pipelines.connectors import (
    JSON_LINES,
    ExactlyOnceFiles,
    ExactlyOnceKafka,
    GrowingSource,
    JsonValues,
    KafkaTopics,
    PostgresInsert,
    RedisHashes,
    RedisStreams,
    SqlUpsert,
)
from pipelines.flows import page_view_feed as servers
from pipelines.flows.page_view_feed import OUT_OF_ORDER_MS, VIEWS
from pipelines.stream import (
    Environment,
    Flow,
    Parameter,
    Pipeline,
    Rejected,
    Stream,
    count,
    tumbling,
)

NAME = "page_views"
UNNAMED = "(no app)"
"""The name of views without an app. No app can have it, because names contain no blank."""

APP = r"^[A-Za-z0-9._-]{1,64}$"
TARGET = re.compile(r"[a-z][a-z0-9_]{0,39}")
LONGEST_WINDOW_S = 86_400

Choice = TypeVar("Choice")


def assemble(parameters: Mapping[str, str]) -> Pipeline:
    systems = _names(parameters["into"])
    if not systems or len(set(systems)) < len(systems):
        raise _refusal("into", parameters["into"], f"name any of {', '.join(_INTO)}, each once")
    into = [_chosen("into", system, _INTO) for system in systems]
    env = Environment()
    views = env.source(_source(parameters), uid="views")
    by_app = views.map_batches(with_app, VIEWS, uid="with-app").key_by("app_id")
    window = tumbling(seconds=_window_s(parameters["window_s"]))
    counts = Counts(
        by_app.window(window).aggregate(views=count(), uid="views-per-window"),
        by_app.aggregate(views=count(), uid="views-in-total"),
        parameters,
    )
    for store in into:
        store(counts)
    return env.build()


def with_app(views: pa.RecordBatch) -> pa.RecordBatch:
    """Sets `UNNAMED` for apps that cannot name a key, a row and a record in every system."""
    apps = views.column("app_id")
    is_named = pc.fill_null(pc.match_substring_regex(apps, APP), False)
    named = pc.if_else(is_named, apps, UNNAMED)
    return views.set_column(views.schema.get_field_index("app_id"), "app_id", named)


class Counts:
    """The two results, and the systems they go into."""

    def __init__(self, windows: Stream, totals: Stream, parameters: Mapping[str, str]) -> None:
        target = parameters["target"]
        if not TARGET.fullmatch(target):
            raise _refusal("target", target, "use a small letter, then up to 39 of a-z, 0-9 and _")
        self._windows = windows
        self._totals = totals
        self._windows_name = f"{target}_windows"
        self._totals_name = f"{target}_totals"
        self._output = parameters["output"]

    def into_redis(self) -> None:
        url = servers.redis_url()
        windows = RedisHashes(url, self._windows_name, WINDOW_KEYS, pipeline=NAME)
        self._windows.sink(windows, uid="windows-redis")
        totals = RedisHashes(url, self._totals_name, TOTAL_KEYS, pipeline=NAME)
        self._totals.sink(totals, uid="totals-redis")

    def into_postgres(self) -> None:
        """Overwrites a total; writes one row for each window, for ever."""
        url = servers.database_url()
        windows = PostgresInsert(url, self._windows_name, pipeline=NAME)
        self._windows.sink(windows, uid="windows-postgres")
        totals = SqlUpsert(url, self._totals_name, TOTAL_KEYS, pipeline=NAME)
        self._totals.sink(totals, uid="totals-postgres")

    def into_kafka(self) -> None:
        address = servers.kafka_address()
        windows = ExactlyOnceKafka(address, self._windows_name, pipeline=NAME, key="app_id")
        self._windows.sink(windows, uid="windows-kafka")
        totals = ExactlyOnceKafka(address, self._totals_name, pipeline=NAME, key="app_id")
        self._totals.sink(totals, uid="totals-kafka")

    def into_files(self) -> None:
        """Writes lines of JSON, and next to them a SQLite table."""
        if not self._output:
            raise Rejected(f"The pipeline {NAME} needs the parameter 'output' to write files.")
        directory = Path(self._output)
        windows = ExactlyOnceFiles(directory / "windows", pipeline=NAME, format=JSON_LINES)
        self._windows.sink(windows, uid="windows-files")
        url = f"sqlite:///{directory / 'totals.sqlite3'}"
        totals = SqlUpsert(url, self._totals_name, TOTAL_KEYS, pipeline=NAME)
        self._totals.sink(totals, uid="totals-files")


WINDOW_KEYS = ("app_id", "window_start")
TOTAL_KEYS = ("app_id",)
_INTO: Mapping[str, Callable[[Counts], None]] = {
    "redis": Counts.into_redis,
    "postgres": Counts.into_postgres,
    "kafka": Counts.into_kafka,
    "files": Counts.into_files,
}


def _from_redis(streams: tuple[str, ...]) -> GrowingSource:
    return RedisStreams(
        servers.redis_url(),
        streams,
        schema=VIEWS,
        timestamp_column="at",
        out_of_orderness_ms=OUT_OF_ORDER_MS,
    )


def _from_kafka(topics: tuple[str, ...]) -> GrowingSource:
    return KafkaTopics(
        servers.kafka_address(),
        topics,
        format=JsonValues(VIEWS),
        timestamp_column="at",
        out_of_orderness_ms=OUT_OF_ORDER_MS,
    )


_FROM = {"redis": _from_redis, "kafka": _from_kafka}


def _source(parameters: Mapping[str, str]) -> GrowingSource:
    source = _chosen("source", parameters["source"], _FROM)
    return source(_names(parameters["input"]))


def _window_s(window_s: str) -> int:
    if not window_s.isdecimal() or not 1 <= int(window_s) <= LONGEST_WINDOW_S:
        raise _refusal("window_s", window_s, f"give seconds, from 1 to {LONGEST_WINDOW_S}")
    return int(window_s)


def _names(listed: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in listed.split(",") if name.strip())


def _chosen(parameter: str, value: str, known: Mapping[str, Choice]) -> Choice:
    if value not in known:
        raise _refusal(parameter, value, f"known are {', '.join(known)}")
    return known[value]


def _refusal(parameter: str, value: str, wanted: str) -> Rejected:
    return Rejected(f"The parameter {parameter!r} cannot be {value!r}; {wanted}.")


FLOW = Flow(
    name=NAME,
    summary="Page views per app, in windows and in total, into Redis, PostgreSQL, Kafka and files.",
    parameters=(
        Parameter("source", "redis", "where views come from: redis or kafka"),
        Parameter("input", "page-views", "streams or topics, separated by commas"),
        Parameter("into", "redis", "any of redis, postgres, kafka, files, separated by commas"),
        Parameter("target", NAME, "what tables, topics and keys begin with"),
        Parameter("window_s", "10", "length of a window of event time, in seconds"),
        Parameter("output", "", "directory of the files, where they are asked for"),
    ),
    assemble=assemble,
)
