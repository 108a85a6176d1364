"""Sinks that apply a changelog hold the remaining rows, however often their writers die.

A seed chooses the changes: rows of ten keys are added, taken back and updated. A life ends anywhere
between two steps; the next one continues from the last point, with another number of writers.
"""

import json
import random
import sqlite3
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pytest
import redis
import sqlalchemy as sa

from pipelines.connectors.kafka.connection import KafkaAddress
from pipelines.connectors.kafka.producer import RecordForm
from pipelines.connectors.kafka.transactions import KafkaUpsert
from pipelines.connectors.redis.hashes import RedisHashes
from pipelines.connectors.sink import Sink, SinkContext, SinkWriter
from pipelines.connectors.sql.upsert import SqlUpsert
from pipelines.domain.errors import Rejected
from pipelines.domain.ids import Attempt, CheckpointId, RunId, Uid
from pipelines.domain.snapshots import Json
from tests.brokers.kafka_broker import KafkaBroker
from tests.brokers.redis_broker import RedisBroker
from tests.contracts.sink_readers import PARTITIONS, KafkaTableReader
from tests.postgres_server import PostgresServer
from tests.takeovers import rewound

SCHEMA = pa.schema([("id", pa.int64()), ("x", pa.float64()), ("row_kind", pa.string())])
KEYS = range(10)
FIRST_POINT = CheckpointId(0)
RUN, OTHER = RunId("run-1"), RunId("run-2")

Change = tuple[int, float, str]
Rows = dict[int, float]


@dataclass(frozen=True, slots=True)
class Target:
    sink: Sink
    visible: Callable[[], Rows]


@pytest.fixture(
    params=[
        "sqlite",
        "sqlite unbuffered",
        "redis",
        "redis unbuffered",
        pytest.param("postgres", marks=pytest.mark.slow),
    ]
)
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Target:
    name, _, is_unbuffered = request.param.partition(" ")
    buffer_rows = 2 if is_unbuffered else 1_000
    if name == "redis":
        return in_redis(request.getfixturevalue("redis_server"), tmp_path.name, buffer_rows)
    url = f"sqlite:///{tmp_path}/out.sqlite"
    if name == "postgres":
        postgres: PostgresServer = request.getfixturevalue("postgres")
        url = postgres.url_of(f"c{uuid.uuid4().hex}")
    return in_table(url, buffer_rows)


@pytest.mark.parametrize("seed", range(12))
def test_the_remaining_rows_are_exact_whenever_writers_die(target: Target, seed: int) -> None:
    rng = random.Random(seed)
    changes = random_changes(rng, 60)
    world = World(target, changes)

    while not world.is_done:
        world.live(RUN, rng)
        if world.has_replayed:
            assert target.visible() == left_of(changes[: world.point.offset])

    assert target.visible() == left_of(changes)


@pytest.mark.parametrize("seed", range(4))
def test_a_fresh_run_sets_old_rows_aside_and_keeps_its_own(target: Target, seed: int) -> None:
    rng = random.Random(seed)
    first, second = random_changes(rng, 40), random_changes(rng, 40)
    world = World(target, first)
    while not world.is_done:
        world.live(RUN, rng, dies=False)

    fresh = World(target, second)
    while not fresh.is_done:
        fresh.live(OTHER, rng)
    assert target.visible() == left_of(second)

    rewound(target.sink, [(RUN, world.point.checkpoint_id)], RunId("run-3"))
    found = target.visible()
    assert all(found.get(key, x) == x for key, x in left_of(first).items())
    assert found.keys() <= left_of(first).keys()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_a_topic_converges_to_the_remaining_rows_whenever_writers_die(
    kafka_server: KafkaBroker, tmp_path: Path, seed: int
) -> None:
    """The newest record of each key is its row, or a tombstone; a topic is never rewound."""
    rng = random.Random(seed)
    changes = random_changes(rng, 40)
    topic = f"changes-{seed}-{uuid.uuid4().hex}"
    kafka_server.create_topic(topic, PARTITIONS)
    world = World(in_topic(kafka_server, topic), changes)

    while not world.is_done:
        world.live(RUN, rng)
        if world.has_replayed:
            assert world.target.visible() == left_of(changes[: world.point.offset])

    assert world.target.visible() == left_of(changes)


def test_a_retracted_row_becomes_a_tombstone() -> None:
    form = RecordForm(keys=("id",), applies_changes=True)
    changes = [(1, 5.0, "+I"), (2, 6.0, "+I"), (1, 5.0, "-U"), (1, 7.0, "+U"), (2, 6.0, "-D")]

    values, keys = form.columns(batch_of(changes))

    assert dict(zip(keys, values, strict=True)) == {b"1": b'{"id":1,"x":7.0}', b"2": None}


def test_several_key_columns_become_one_json_object() -> None:
    form = RecordForm(keys=("id", "x"), applies_changes=True)

    values, keys = form.columns(batch_of([(1, 5.0, "-U"), (1, 7.0, "+U")]))

    expected = {b'{"id":1,"x":5.0}': None, b'{"id":1,"x":7.0}': b'{"id":1,"x":7.0}'}
    assert dict(zip(keys, values, strict=True)) == expected


def test_a_row_for_kafka_with_a_null_key_is_refused() -> None:
    form = RecordForm(keys=("id",))
    rows = pa.RecordBatch.from_pylist([{"id": None, "x": 1.0, "row_kind": "+I"}], schema=SCHEMA)

    with pytest.raises(Rejected, match=r"^Key column id of a row for Kafka is null"):
        form.columns(rows)


@pytest.mark.parametrize(
    ("keys", "refusal"),
    [
        ((), r"^Topic rows needs key columns"),
        (("of",), r"^The key column of of topic rows is not in the results"),
        (("x",), r"^The key column x of topic rows holds double; Kafka takes text, bytes or whole"),
        (("row_kind", "id"), r"^The key column row_kind of topic rows is not in the results"),
    ],
)
def test_invalid_key_columns_of_a_topic_are_refused(keys: tuple[str, ...], refusal: str) -> None:
    sink = KafkaUpsert(KafkaAddress("nowhere:9092"), "rows", keys, pipeline="p")

    with pytest.raises(Rejected, match=refusal):
        sink.applying_changes().check_columns(SCHEMA)


def test_a_transaction_of_an_older_checkpoint_does_not_bring_a_row_back(
    redis_server: RedisBroker, tmp_path: Path
) -> None:
    """Transactions of one run may be committed in any order."""
    target = in_redis(redis_server, tmp_path.name, 1_000)
    rewound(target.sink, [], RUN)
    older, newer = (opened(target, Attempt(1), subtask, 2) for subtask in (0, 1))
    older.write(batch_of([(1, 5.0, "+I")]))
    prepared = older.prepare(CheckpointId(1))
    newer.write(batch_of([(1, 5.0, "-D")]))
    newer.commit(CheckpointId(2), newer.prepare(CheckpointId(2)))

    older.commit(CheckpointId(1), prepared)

    assert target.visible() == {}


def in_table(url: str, buffer_rows: int) -> Target:
    sink = SqlUpsert(url, "results", ("id",), pipeline="p", buffer_rows=buffer_rows)

    def visible() -> Rows:
        if url.startswith("sqlite"):
            path = url.removeprefix("sqlite:///")
            with closing(sqlite3.connect(path)) as connection:
                return dict(connection.execute("select id, x from results").fetchall())
        engine = sa.create_engine(url)
        with engine.connect() as connection:
            found = connection.execute(sa.text("select id, x from results")).all()
        engine.dispose()
        return {row.id: row.x for row in found}

    return Target(sink.applying_changes(), visible)


def in_topic(server: KafkaBroker, topic: str) -> Target:
    address = server.bootstrap_servers
    sink = KafkaUpsert(KafkaAddress(address), topic, ("id",), pipeline="p")

    def visible() -> Rows:
        with closing(KafkaTableReader(address, topic)) as reader:
            reader.look()
        rows = [json.loads(row) for row in reader.rows.values()]
        return {row["id"]: row["x"] for row in rows}

    return Target(sink.applying_changes(), visible)


def in_redis(server: RedisBroker, prefix: str, buffer_rows: int) -> Target:
    sink = RedisHashes(server.url, prefix, ("id",), pipeline="p", buffer_rows=buffer_rows)

    def visible() -> Rows:
        with closing(redis.Redis.from_url(server.url)) as client:
            rows = [client.hgetall(key) for key in client.keys(f"{{{prefix}}}:row:*")]
        return {int(row[b"id"]): float(row[b"x"]) for row in rows}

    return Target(sink.applying_changes(), visible)


@dataclass(frozen=True, slots=True)
class Point:
    checkpoint_id: CheckpointId = FIRST_POINT
    offset: int = 0
    pending: tuple[tuple[int, list[Json]], ...] = ()  # each with the subtask that prepared it


@dataclass(slots=True)
class World:
    """The state that outlives a life: the target, the points, and how far any life has come."""

    target: Target
    changes: list[Change]
    point: Point = field(default_factory=Point)
    attempt: int = 0
    checkpoints: int = 0
    furthest: int = 0
    committed_offset: int = -1

    @property
    def is_done(self) -> bool:
        return self.committed_offset == len(self.changes)

    @property
    def has_replayed(self) -> bool:
        """Returns True if the last life ended after a commit and repeated every earlier write."""
        return self.committed_offset == self.point.offset == self.furthest

    def live(self, run_id: RunId, rng: random.Random, *, dies: bool = True) -> None:
        steps = iter([False] * rng.randint(0, 25) + [True]) if dies else iter([])
        lineage = [(run_id, self.point.checkpoint_id)] if self.checkpoints else []
        rewound(self.target.sink, lineage, run_id)
        self.attempt += 1
        parallelism = rng.randint(1, 3)
        writers = [
            opened(self.target, Attempt(self.attempt), subtask, parallelism, run_id)
            for subtask in range(parallelism)
        ]
        for old_subtask, items in self.point.pending:
            writers[old_subtask % parallelism].commit(self.point.checkpoint_id, items)
            if next(steps, False):
                return
        self.committed_offset = self.point.offset
        while self.point.offset < len(self.changes):
            if self._interval(writers, steps, rng):
                return

    def _interval(
        self, writers: list[SinkWriter], steps: Iterator[bool], rng: random.Random
    ) -> bool:
        """Returns True if the life died."""
        begin = self.point.offset
        end = min(begin + rng.randint(1, 12), len(self.changes))
        for offset in range(begin, end, 3):
            part = self.changes[offset : min(offset + 3, end)]
            for subtask, writer in enumerate(writers):
                mine = [each for each in part if each[0] % len(writers) == subtask]
                if mine:
                    writer.write(batch_of(mine))
            self.furthest = max(self.furthest, min(offset + 3, end))
            if next(steps, False):
                return True
        self.checkpoints += 1
        checkpoint_id = CheckpointId(self.checkpoints)
        pending = []
        for subtask, writer in enumerate(writers):
            pending.append((subtask, writer.prepare(checkpoint_id)))
            if next(steps, False):
                return True
        self.point = Point(checkpoint_id, end, tuple(pending))
        for subtask, items in pending:
            if next(steps, False):
                return True
            writers[subtask].commit(checkpoint_id, items)
        self.committed_offset = end
        return False


def opened(
    target: Target, attempt: Attempt, subtask: int, parallelism: int, run_id: RunId = RUN
) -> SinkWriter:
    context = SinkContext(run_id, attempt, Uid("out"), subtask, parallelism)
    return target.sink.open(context, SCHEMA)


def random_changes(rng: random.Random, count: int) -> list[Change]:
    """Returns a changelog: a missing row is added, an existing one is taken back or updated."""
    rows: Rows = {}
    changes: list[Change] = []
    while len(changes) < count:
        key, x = rng.choice(KEYS), float(rng.randint(0, 1_000))
        if key not in rows:
            changes.append((key, x, "+I"))
            rows[key] = x
        elif rng.random() < 0.5:
            changes.append((key, rows.pop(key), "-D"))
        else:
            before, after = rng.choice([("-U", "+U"), ("-D", "+I")])
            changes += [(key, rows[key], before), (key, x, after)]
            rows[key] = x
    return changes


def left_of(changes: list[Change]) -> Rows:
    rows: Rows = {}
    for key, x, kind in changes:
        if kind in ("-D", "-U"):
            assert rows.pop(key) == x
        else:
            rows[key] = x
    return rows


def batch_of(changes: list[Change]) -> pa.RecordBatch:
    columns = [pa.array(column) for column in zip(*changes, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)
