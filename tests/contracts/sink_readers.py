"""Readers of the sinks' output: plain clients that know only the place a sink writes to.

`look` returns the ids of all rows visible now, an id as often as it is visible. A `Watch` looks all
the time, while writers live and die.
"""

import json
import sqlite3
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from threading import Event
from types import TracebackType
from typing import Protocol

import psycopg
import pyarrow.parquet as pq
import redis
from confluent_kafka import Consumer, KafkaError, Message, TopicPartition
from kafka.admin import KafkaAdminClient

from tests.polling import wait_until

PARTITIONS = 2
BETWEEN_LOOKS_S = 0.01
ANSWER_S = 20.0


class Reader(Protocol):
    def look(self) -> list[int]: ...

    def close(self) -> None: ...


class FilesReader:
    """Reads in whole every file whose name does not hide it."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def look(self) -> list[int]:
        ids: list[int] = []
        for file in self._directory.glob("[!._]*.parquet"):
            ids += pq.read_table(file)["id"].to_pylist()
        for file in self._directory.glob("[!._]*.jsonl"):
            ids += [json.loads(line)["id"] for line in file.read_text().splitlines()]
        return ids

    def close(self) -> None:
        pass


class SqliteReader:
    def __init__(self, file: Path) -> None:
        self._file = file

    def look(self) -> list[int]:
        if not self._file.exists():
            return []
        with closing(sqlite3.connect(self._file)) as connection:
            if not connection.execute(
                "select 1 from sqlite_master where name = 'results'"
            ).fetchall():
                return []
            return [i for (i,) in connection.execute("select id from results")]

    def close(self) -> None:
        pass


class PostgresReader:
    def __init__(self, url: str) -> None:
        self._connection = psycopg.connect(url.replace("+psycopg", ""), autocommit=True)

    def look(self) -> list[int]:
        try:
            return [i for (i,) in self._connection.execute("select id from results")]
        except psycopg.errors.UndefinedTable:
            return []

    def close(self) -> None:
        self._connection.close()


class RedisReader:
    """SCAN may return a key twice; the reader looks at each key once."""

    def __init__(self, url: str, prefix: str) -> None:
        self._client = redis.Redis.from_url(url, decode_responses=True)
        self._rows = f"{{{prefix}}}:row:*"

    def look(self) -> list[int]:
        found = self._client.pipeline(transaction=False)
        for key in set(self._client.scan_iter(self._rows, count=1000)):
            found.hget(key, "id")
        return [int(i) for i in found.execute() if i is not None]

    def close(self) -> None:
        self._client.close()


class KafkaReader:
    """Keeps reading committed records; `ids` has them per partition, in order."""

    def __init__(self, address: str, topic: str) -> None:
        self._address = address
        self._topic = topic
        self.ids: dict[int, list[int]] = {number: [] for number in range(PARTITIONS)}
        self._ended: set[int] = set()
        self._consumer = Consumer(
            {
                "bootstrap.servers": address,
                "group.id": "reader",
                "enable.partition.eof": True,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",  # where retention has deleted the beginning
                "isolation.level": "read_committed",
                "log_level": 0,
            }
        )

    def look(self) -> list[int]:
        """Reads on to the end; the first time, to the first open transaction of each partition.

        The first look waits until no transaction is ending. Otherwise it would take the place where
        those transactions end for the end of the partition.
        """
        if not self._ended:
            wait_until(self._has_no_ending, otherwise=lambda: "no transaction was ending")
            places = [TopicPartition(self._topic, number, 0) for number in range(PARTITIONS)]
            self._consumer.assign(places)
        while True:
            message = self._consumer.poll(ANSWER_S if len(self._ended) < PARTITIONS else 0.0)
            if message is None:  # a tombstone is false, too
                break
            error = message.error()
            if error is None:
                self._note(message)
            else:
                assert error.code() == KafkaError._PARTITION_EOF, error
                self._ended.add(message.partition())
                if len(self._ended) == PARTITIONS:
                    break
        assert len(self._ended) == PARTITIONS, "the broker answers"
        return [i for ids in self.ids.values() for i in ids]

    def _note(self, message: Message) -> None:
        self.ids[message.partition()].append(json.loads(message.value())["id"])

    def _has_no_ending(self) -> bool:
        """Returns True if no transaction is ending.

        A broker that accepted a commit writes its markers a moment later, and hides the records
        until then.
        """
        with closing(KafkaAdminClient(bootstrap_servers=self._address)) as admin:
            found = admin.list_transactions(state_filters=["PrepareCommit", "PrepareAbort"])
        return not any(found.values())

    def close(self) -> None:
        self._consumer.close()


class KafkaTableReader(KafkaReader):
    """`rows` is what compaction leaves: the newest value of each key, without tombstones."""

    def __init__(self, address: str, topic: str) -> None:
        super().__init__(address, topic)
        self.rows: dict[bytes, bytes] = {}
        self.tombstones = 0

    def _note(self, message: Message) -> None:
        key, value = message.key(), message.value()
        if value is None:
            self.rows.pop(key, None)
            self.tombstones += 1
        else:
            self.rows[key] = value


class Watch:
    """A reader that runs all the time, in a thread of its own.

    Fails if it sees a row twice, if a row disappears, or if an id is not below `covered()`, which
    it calls after each look. `covered` is None if the target shows rows early; then only doubles
    fail.
    """

    def __init__(
        self,
        reader: Callable[[], Reader],
        covered: Callable[[], int] | None,
        *,
        pause_s: float = BETWEEN_LOOKS_S,
    ) -> None:
        self._reader = reader
        self._covered = covered
        self._pause_s = pause_s
        self._seen: set[int] = set()
        self._ends = Event()
        self._pool = ThreadPoolExecutor(1, "watch")
        self._watching: Future[None]

    def __enter__(self) -> "Watch":
        self._watching = self._pool.submit(self._watch)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ends.set()
        self._pool.shutdown()
        self._watching.result()

    def comes_to(self, ids: list[int]) -> bool:
        """Returns True if it soon sees exactly these ids."""
        deadline_s = time.monotonic() + ANSWER_S
        while self._seen != set(ids) and time.monotonic() < deadline_s:
            if self._watching.done():
                return False
            time.sleep(self._pause_s)
        return self._seen == set(ids)

    def _watch(self) -> None:
        with closing(self._reader()) as reader:
            while not self._ends.is_set():
                self._look(reader)
                self._ends.wait(self._pause_s)
            self._look(reader)

    def _look(self, reader: Reader) -> None:
        ids = reader.look()
        covered = self._covered and self._covered()
        seen = set(ids)
        assert len(ids) == len(seen), f"rows are there twice: {sorted(ids)}"
        if covered is not None:
            assert seen >= self._seen, f"rows went away: {self._seen - seen}"
            assert all(i < covered for i in ids), f"of {covered} rows, {sorted(ids)} are visible"
        self._seen = seen
