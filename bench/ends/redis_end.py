"""Hashes into Redis: an exactly-once run against a pipelined loop.

The bare loop has two processes, each with a pipeline of HSET, 2,000 rows at a time, without MULTI.
"""

import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import redis

from bench.ends.end import run_between_ends, seconds_for
from bench.whole_run import Measured
from tests.brokers.redis_broker import redis_broker
from tests.processes.ends import KEYS_PER_SPLIT, SPLITS, generated

PIPELINE_ROWS = 2_000
SCAN_ROWS = 10_000
GIVEN = "FTDASH_BENCH_REDIS"


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows that one process writes."""

    url: str
    prefix: str
    split: int
    records: int  # of all splits


@dataclass(frozen=True, slots=True)
class RedisEnd:
    url: str
    records: int
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def bare(self) -> float:
        with self._prefix("bare") as prefix:
            shares = [Rows(self.url, prefix, split, self.records) for split in range(SPLITS)]
            took_s = seconds_for(write_hashes, shares)
            self._check_arrived(prefix)
        return self.records / took_s

    def exactly_once(self) -> Measured:
        with self._prefix("exact") as prefix:
            measured = run_between_ends(
                self.records, self.url, to="redis", source=str(self.records), target=prefix
            )
            self._check_arrived(prefix)
        return measured

    @contextmanager
    def _prefix(self, kind: str) -> Iterator[str]:
        """Yields a new prefix, and then deletes everything under it."""
        prefix = f"ftdash-bench-{os.getpid()}-{kind}-{next(self._numbers)}"
        try:
            yield prefix
        finally:
            with redis.Redis.from_url(self.url) as client:
                for keys in batched(client.scan_iter(f"{{{prefix}}}:*", SCAN_ROWS)):
                    client.unlink(*keys)

    def _check_arrived(self, prefix: str) -> None:
        expected = SPLITS * min(KEYS_PER_SPLIT, self.records // SPLITS)
        with redis.Redis.from_url(self.url) as client:
            found = sum(1 for _ in client.scan_iter(f"{{{prefix}}}:row:*", SCAN_ROWS))
        if found != expected:
            raise RuntimeError(f"{found} of {expected} hashes arrived under {prefix}")


@contextmanager
def redis_end(directory: Path, records: int) -> Iterator[RedisEnd]:
    """Yields an end at the server that the environment names, or at one that it starts."""
    given = os.environ.get(GIVEN)
    if given is not None:
        yield RedisEnd(given, records - records % SPLITS)
        return
    with redis_broker(directory) as broker:
        yield RedisEnd(broker.url, records - records % SPLITS)


def write_hashes(share: Rows) -> None:
    client = redis.Redis.from_url(share.url)
    for batch in generated(share.records).read(share.split, 0):
        for start in range(0, batch.num_rows, PIPELINE_ROWS):
            pipeline = client.pipeline(transaction=False)
            for row in batch.slice(start, PIPELINE_ROWS).to_pylist():
                pipeline.hset(f"{{{share.prefix}}}:row:{row['key']}", mapping=row)
            pipeline.execute()


def batched(keys: Iterator[bytes]) -> Iterator[list[bytes]]:
    while batch := list(itertools.islice(keys, SCAN_ROWS)):
        yield batch
