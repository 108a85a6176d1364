"""Feeds numbers into each pipeline and reads its committed output, without the engine's code.

A batch that may or may not have arrived is sent again under the same name. A stream refuses an
entry that it already has, a file replaces itself, and Kafka's producer retries by itself.
"""

import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar

import psycopg
import redis
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from psycopg import sql

from bench.drill.staging import Servers
from bench.soak import answers, flow
from bench.soak.answers import BATCH, Answer, Checker, Row

Server = TypeVar("Server")
ANSWER_S = 5.0
KAFKA_POLL_S = 0.5
METADATA_MS = 2000  # a new partition gets records soon
SCHEMA = "drill"
HAS_IT = "equal or smaller"
FILE_BATCHES = 5
"""The batches in one file. With one file per batch, the list of known files would be the largest
part of the state."""

Feed = Callable[[int, int], None]  # numbers from, up to but not including
Read = Callable[[], list[Row]]
AWAY = (OSError, redis.RedisError, psycopg.Error, BufferError)


class NotDelivered(OSError):
    """The broker has not confirmed the records in time; the client continues to try."""


@dataclass(slots=True)
class Line:
    """One pipeline with its two ends. `fed` is how many numbers have gone in.

    `still_s` is the longest time without a new row while input came, up to a look that found none.
    """

    name: str
    kind: str
    place: Path
    checker: Checker
    feed: Feed
    read: Read
    step: int = BATCH
    fed: int = 0
    looks: int = 0
    looks_missed: int = 0  # the end was away
    still_s: float = 0.0
    _fed_s: float = 0.0
    _grown_s: float | None = None
    _looking: Lock = field(default_factory=Lock)

    def feed_next(self) -> bool:
        """Returns False if the input is away; then the same numbers are due again."""
        try:
            self.feed(self.fed, self.fed + self.step)
        except AWAY:
            return False
        self.fed += self.step
        self._fed_s = time.monotonic()
        return True

    def look(self) -> bool:
        """Returns False if the end is away. You may call it from any thread."""
        with self._looking:
            began_s = time.monotonic()  # another end may keep the looks waiting
            try:
                rows = self.read()
            except AWAY:
                self.looks_missed += 1
                return False
            known = len(self.checker.seen)
            # The count comes after the rows and includes the batch that is just going in.
            self.checker.look(rows, self.fed + self.step)
            self._note_growth(began_s, has_grown=len(self.checker.seen) > known)
            self.looks += 1
            return True

    def _note_growth(self, looked_s: float, *, has_grown: bool) -> None:
        if has_grown:
            self._grown_s = looked_s
        elif self._grown_s is not None:
            self.still_s = max(self.still_s, min(looked_s, self._fed_s) - self._grown_s)

    @contextmanager
    def rewound(self) -> Iterator[None]:
        """Looks at nothing meanwhile: the run may take back its output, and write it again."""
        with self._looking:
            try:
                yield
            finally:
                self.checker.forget()


def line_of(kind: str, home: Path, servers: Servers) -> Line:
    """Makes the directory, feed and checker that a pipeline needs before it starts."""
    name, place = kind, home / kind
    place.mkdir(parents=True, exist_ok=True)
    answer = ANSWERS[kind]
    feed = _feed(kind, name, place, servers)
    step = BATCH * FILE_BATCHES if kind == flow.FILES_FILES else BATCH
    return Line(name, kind, place, Checker(answer), feed, _read(kind, name, place, servers), step)


ANSWERS: dict[str, Answer] = {
    flow.REDIS_POSTGRES: answers.AMOUNTS,
    flow.WINDOWS_FILES: answers.WINDOWS,
    flow.FILES_FILES: answers.PAIRS,
    flow.COUNTS_POSTGRES: answers.COUNTS,
    flow.DOCUMENTS_FILES: answers.REPLACED,
    flow.KAFKA_POSTGRES: answers.AMOUNTS,
    flow.REDIS_KAFKA: answers.AMOUNTS,
    flow.REDIS_LOG_KAFKA: answers.AMOUNTS,
}


def _feed(kind: str, name: str, place: Path, servers: Servers) -> Feed:
    if kind == flow.FILES_FILES:
        return FilesFeed(place)
    if kind == flow.KAFKA_POSTGRES:
        return KafkaFeed(_given(servers.kafka).bootstrap_servers, name)
    client = _given(servers.redis).client()
    return StreamsFeed(client, flow.streams_of(name, kind), is_timed=kind == flow.WINDOWS_FILES)


def _read(kind: str, name: str, place: Path, servers: Servers) -> Read:
    columns = ANSWERS[kind].columns
    if kind in (flow.FILES_FILES, flow.WINDOWS_FILES, flow.DOCUMENTS_FILES):
        return FileRows(place / "output", columns)
    if kind in flow.TO_KAFKA:
        return TopicRows(_given(servers.kafka).bootstrap_servers, name, columns)
    return TableRows(_given(servers.postgres).url, flow.table_of(name), columns)


def _given(server: Server | None) -> Server:
    if server is None:
        raise ValueError("a pipeline is only made where its servers are there")
    return server


@dataclass(frozen=True, slots=True)
class StreamsFeed:
    """Feeds streams. The id of an entry is its number, so no entry is there twice."""

    client: redis.Redis
    streams: tuple[str, ...]
    is_timed: bool

    def __call__(self, first: int, end: int) -> None:
        with self.client.pipeline(transaction=True) as at_once:
            for number in range(first, end):
                stream = self.streams[number % len(self.streams)]
                at_once.xadd(stream, self._fields(number), id=f"{number + 1}-0")
            answered = at_once.execute(raise_on_error=False)
        for each in answered:
            if isinstance(each, Exception) and HAS_IT not in str(each):
                raise each

    def _fields(self, number: int) -> dict[Any, Any]:
        if not self.is_timed:
            return {"n": number}
        at = datetime.fromtimestamp(number * answers.NUMBER_MS / 1000, UTC)
        return {"n": number, "at": at.isoformat(timespec="milliseconds")}


class FilesFeed:
    """Feeds one file into each side; a file appears at once, and whole."""

    def __init__(self, place: Path) -> None:
        self._sides = (place / "left", place / "right")
        for side in self._sides:
            side.mkdir(exist_ok=True)

    def __call__(self, first: int, end: int) -> None:
        numbers = range(first, end)
        left = [{"n": number} for number in numbers]
        right = [{"n": number, "price": answers.price(number)} for number in reversed(numbers)]
        for side, rows in zip(self._sides, (left, right), strict=True):
            new = side / f".{first:09}"
            new.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
            os.replace(new, side / f"{first:09}.jsonl")


class KafkaFeed:
    """Gives each record to the client only once, because the client retries by itself.

    The client spreads the records over all partitions, also over those that are added later.
    """

    def __init__(self, address: str, topic: str) -> None:
        quiet = {
            "log_level": 0,
            "message.timeout.ms": 0,
            "linger.ms": 0,
            "topic.metadata.refresh.interval.ms": METADATA_MS,
        }  # 0: for as long as it takes
        self._producer = Producer(
            {"bootstrap.servers": address, "enable.idempotence": True, **quiet}
        )
        self._topic = topic
        self._given_until = 0

    def __call__(self, first: int, end: int) -> None:
        for number in range(max(first, self._given_until), end):
            value = json.dumps({"n": number}).encode()
            self._producer.produce(self._topic, value)
            self._given_until = number + 1
        if self._producer.flush(ANSWER_S):
            raise NotDelivered


@dataclass(frozen=True, slots=True)
class TableRows:
    url: str
    table: str
    columns: tuple[str, ...]

    def __call__(self) -> list[Row]:
        """Reads the committed rows. A table that does not exist yet has no rows."""
        columns = sql.SQL(", ").join(map(sql.Identifier, self.columns))
        place = sql.Identifier(SCHEMA, self.table)
        query = sql.SQL("select {} from {}").format(columns, place)
        with psycopg.connect(self.url, connect_timeout=int(ANSWER_S)) as connection:
            try:
                return [tuple(row) for row in connection.execute(query)]
            except psycopg.errors.UndefinedTable:
                return []


@dataclass(slots=True)
class FileRows:
    """Reads the lines of the visible files. It reads a file again only if the file has changed."""

    directory: Path
    columns: tuple[str, ...]
    _read: dict[tuple[str, int, int], list[Row]] = field(default_factory=dict)

    def __call__(self) -> list[Row]:
        found = {}
        for file in sorted(self.directory.glob("part-*.jsonl")):
            status = file.stat()
            mark = (file.name, status.st_size, status.st_mtime_ns)
            found[mark] = self._read.get(mark) or self._rows(file.read_text())
        self._read = found
        return [row for rows in found.values() for row in rows]

    def _rows(self, text: str) -> list[Row]:
        lines = map(json.loads, text.splitlines())
        return [tuple(line[column] for column in self.columns) for line in lines]


class TopicRows:
    """Reads the committed records of a topic, and keeps them in a list: a log only grows."""

    def __init__(self, address: str, topic: str, columns: Sequence[str]) -> None:
        self._columns = columns
        self._rows: list[Row] = []
        self._consumer = Consumer(
            {
                "bootstrap.servers": address,
                "group.id": "soak",  # the client wants one; nothing is committed to it
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "log_level": 0,
            }
        )
        self._consumer.assign([TopicPartition(topic, partition, 0) for partition in range(2)])

    def __call__(self) -> list[Row]:
        while message := self._consumer.poll(KAFKA_POLL_S):
            if (error := message.error()) is not None:
                if error.code() == KafkaError._PARTITION_EOF:
                    continue
                raise NotDelivered(str(error))
            row = json.loads(message.value() or b"null")
            self._rows.append(tuple(row[column] for column in self._columns))
        return list(self._rows)
