"""Hashes in Redis beyond the contract: visible rows, losses, outages and bad input."""

import dataclasses
from pathlib import Path

import pyarrow as pa
import pytest

from ftdash.embedded.installation import free_port
from pipelines.connectors.redis.hashes import RedisHashes
from pipelines.connectors.sink import SinkContext, SinkWriter
from pipelines.domain.errors import OutputLost, ProtocolError, Rejected, Retryable
from pipelines.domain.ids import Attempt, CheckpointId, RunId, Uid
from pipelines.domain.snapshots import Json
from tests.brokers.redis_broker import RedisBroker, redis_broker
from tests.hostile_names import HOSTILE, LONG, NUL
from tests.polling import wait_until
from tests.takeovers import rewound

SCHEMA = pa.schema(
    [("app", pa.string()), ("views", pa.int64()), ("last", pa.timestamp("ms", "UTC"))]
)
RUN, OTHER = RunId("run-1"), RunId("run-2")


@pytest.fixture
def sink(redis_server: RedisBroker, tmp_path: Path) -> RedisHashes:
    return RedisHashes(redis_server.url, tmp_path.name, ("app",), pipeline="views")


def test_a_reader_sees_plain_hashes_of_completed_checkpoints_only(
    sink: RedisHashes, redis_server: RedisBroker
) -> None:
    writer = opened(sink)
    complete(writer, 1, [("a", 1), ("b", 2), ("a", 3)])
    writer.write(rows([("a", 4)]))
    writer.prepare(CheckpointId(2))

    assert shown(sink, redis_server) == {
        "a": {"app": "a", "views": "3", "last": "1970-01-01T00:00:00.003Z"},
        "b": {"app": "b", "views": "2", "last": "1970-01-01T00:00:00.002Z"},
    }


def test_a_value_that_becomes_null_is_removed_from_its_hash(
    sink: RedisHashes, redis_server: RedisBroker
) -> None:
    writer = opened(sink)
    complete(writer, 1, [("a", 1), ("b", 1)])
    complete(writer, 2, [("a", None)])

    assert shown(sink, redis_server)["a"] == {"app": "a"}
    assert shown(sink, redis_server)["b"]["views"] == "1"


def test_different_key_values_never_share_a_hash(redis_server: RedisBroker, tmp_path: Path) -> None:
    pair = pa.schema([("x", pa.string()), ("y", pa.string())])
    sink = RedisHashes(redis_server.url, tmp_path.name, ("x", "y"), pipeline="views")
    values = [
        ("a:b", "c"),
        ("a", "b:c"),
        ("a%3Ab", "c"),
        ("", ""),
        ("}:own:owner", "\n*"),
        ("*", "ü"),
    ]
    writer = sink.open(context_of(), pair)
    writer.write(pa.RecordBatch.from_pylist([{"x": x, "y": y} for x, y in values], pair))
    writer.commit(CheckpointId(1), writer.prepare(CheckpointId(1)))

    found = shown(sink, redis_server)

    assert sorted((row["x"], row["y"]) for row in found.values()) == sorted(values)
    assert len(found) == len(values)


def test_a_column_name_with_any_characters_becomes_the_field_name(
    redis_server: RedisBroker, tmp_path: Path
) -> None:
    names = ["app", HOSTILE, NUL, LONG, "*", ""]
    schema = pa.schema([(name, pa.string()) for name in names])
    sink = RedisHashes(redis_server.url, tmp_path.name, ("app", HOSTILE), pipeline="views")
    sink.validate(schema)
    writer = sink.open(context_of(), schema)
    row = {name: f"value {number}" for number, name in enumerate(names)}
    writer.write(pa.RecordBatch.from_pylist([row], schema))
    writer.commit(CheckpointId(1), writer.prepare(CheckpointId(1)))

    assert list(shown(sink, redis_server).values()) == [row]


def test_a_late_commit_of_an_older_checkpoint_hides_nothing(
    sink: RedisHashes, redis_server: RedisBroker
) -> None:
    first, second = opened(sink), opened(sink, subtask=1)
    older = prepared(first, 1, [("a", 1), ("b", 1)])
    newer = prepared(second, 2, [("a", 2)])

    second.commit(CheckpointId(2), newer)
    first.commit(CheckpointId(1), older)

    assert views(sink, redis_server) == {"a": 2, "b": 1}
    rewound(sink, [(RUN, CheckpointId(1))], OTHER)
    assert views(sink, redis_server) == {"b": 1}


def test_a_fallback_within_the_run_removes_later_output(
    sink: RedisHashes, redis_server: RedisBroker
) -> None:
    writer = opened(sink)
    complete(writer, 1, [("a", 1)])
    complete(writer, 2, [("b", 2)])

    rewound(sink, [(RUN, CheckpointId(1))], RUN)

    assert views(sink, redis_server) == {"a": 1}


def test_an_interrupted_commit_resumes_where_it_stopped(
    sink: RedisHashes, redis_server: RedisBroker
) -> None:
    unbuffered = dataclasses.replace(sink, buffer_rows=1)
    writer = opened(unbuffered)
    (committable,) = prepared(writer, 1, [("a", 1)], [("b", 2)], [("c", 3)])
    partly = with_handle(committable, chunks=2)
    writer.commit(CheckpointId(1), [partly])
    assert views(sink, redis_server) == {"a": 1, "b": 2}

    opened(sink, attempt=2).commit(CheckpointId(1), [committable])

    assert views(sink, redis_server) == {"a": 1, "b": 2, "c": 3}


def test_running_totals_are_exact_after_a_restore_of_an_older_point(
    sink: RedisHashes, redis_server: RedisBroker
) -> None:
    writer = opened(sink)
    for checkpoint_id in (1, 2, 3):
        complete(writer, checkpoint_id, [("a", checkpoint_id), (f"only {checkpoint_id}", 0)])

    rewound(sink, [(RUN, CheckpointId(2))], OTHER)
    assert views(sink, redis_server) == {"only 1": 0, "only 2": 0}  # "a" comes back with the replay
    complete(opened(sink, run_id=OTHER), 1, [("a", 3), ("only 3", 0)])
    assert views(sink, redis_server) == {"a": 3, "only 1": 0, "only 2": 0, "only 3": 0}

    rewound(sink, [(RUN, CheckpointId(3))], RunId("run-3"))
    assert views(sink, redis_server) == {"a": 3, "only 1": 0, "only 2": 0, "only 3": 0}


def test_output_lost_by_the_server_is_reported_with_its_range(
    sink: RedisHashes, redis_server: RedisBroker
) -> None:
    writer = opened(sink)
    complete(writer, 1, [("a", 1)])
    committables = prepared(writer, 2, [("a", 2), ("b", 2)])
    client = redis_server.client()
    for staged in client.scan_iter(f"{{{sink.prefix}}}:own:staged:*"):
        client.delete(staged)

    with pytest.raises(
        OutputLost,
        match=r"2 records of out, subtask 0.*checkpoint 1 and checkpoint 2 are lost: .* point of"
        r" before checkpoint 2, .*: rows that came after it are set aside on the server and",
    ):
        opened(sink, attempt=2).commit(CheckpointId(2), committables)


def test_an_emptied_server_is_not_mistaken_for_a_new_one(
    sink: RedisHashes, redis_server: RedisBroker
) -> None:
    writer = opened(sink)
    complete(writer, 1, [("a", 1)])
    client = redis_server.client()
    client.delete(*client.scan_iter(f"{{{sink.prefix}}}:*"))

    with pytest.raises(Retryable, match="has lost whose"):
        prepared(writer, 2, [("a", 2)])
    with pytest.raises(Rejected, match=r"The output of run run-1 under .* is gone"):
        rewound(sink, [(RUN, CheckpointId(1))], RUN)


def test_a_key_of_another_type_is_named_and_nothing_is_lost(
    sink: RedisHashes, redis_server: RedisBroker
) -> None:
    writer = opened(sink)
    committables = prepared(writer, 1, [("a", 1), ("b", 1), ("c", 1)])
    in_the_way = f"{{{sink.prefix}}}:row:b"
    redis_server.client().set(in_the_way, "precious")

    with pytest.raises(Rejected, match=r":row:b is no hash"):
        writer.commit(CheckpointId(1), committables)
    assert redis_server.client().get(in_the_way) == b"precious"

    redis_server.client().delete(in_the_way)
    opened(sink, attempt=2).commit(CheckpointId(1), committables)
    assert views(sink, redis_server) == {"a": 1, "b": 1, "c": 1}


def test_an_attempt_is_refused_as_soon_as_its_run_is_rewound(sink: RedisHashes) -> None:
    zombie = opened(sink)
    committables = prepared(zombie, 1, [("a", 1)])
    rewound(sink, [(RUN, CheckpointId(1))], RUN)

    with pytest.raises(ProtocolError, match="may not write"):
        zombie.commit(CheckpointId(1), committables)
    with pytest.raises(ProtocolError, match="may not write"):
        prepared(zombie, 2, [("a", 2)])


def test_ended_transactions_leave_nothing_behind(
    sink: RedisHashes, redis_server: RedisBroker
) -> None:
    opened(sink).write(rows([("a", 1)] * 2001))
    prepared(opened(sink, subtask=1), 1, [("a", 1)])
    rewound(sink, [], RUN)

    complete(opened(sink, attempt=2), 2, [("b", 1)])

    names = {
        key.decode().split(":")[2]
        for key in redis_server.client().scan_iter(f"{{{sink.prefix}}}:own:*")
    }
    assert names == {"owner", "runs", "done", "index"}


def test_output_staged_by_other_runs_or_sinks_is_left_alone(
    sink: RedisHashes, redis_server: RedisBroker
) -> None:
    """A restore may still need an older run's; those under another prefix are another sink's."""
    neighbour = dataclasses.replace(sink, prefix=f"{sink.prefix}-2")
    theirs = opened(neighbour)
    committables = prepared(theirs, 1, [("n", 1)])
    older = prepared(opened(sink), 1, [("a", 1)])
    rewound(sink, [], OTHER)
    prepared(opened(sink, run_id=OTHER), 1, [("orphan", 1)])
    rewound(sink, [], OTHER)

    complete(opened(sink, run_id=OTHER, attempt=2), 2, [("b", 1)])
    theirs.commit(CheckpointId(1), committables)
    third = RunId("run-3")
    rewound(sink, [(RUN, CheckpointId(1))], third)
    opened(sink, run_id=third).commit(CheckpointId(1), older)

    assert views(neighbour, redis_server) == {"n": 1}
    assert views(sink, redis_server) == {"a": 1}


@pytest.mark.slow
def test_a_value_of_64_mib_is_written_like_any_other(
    redis_server: RedisBroker, tmp_path: Path
) -> None:
    text = pa.schema([("app", pa.string()), ("text", pa.string())])
    sink = RedisHashes(redis_server.url, tmp_path.name, ("app",), pipeline="views")
    writer = sink.open(context_of(), text)
    writer.write(pa.record_batch([["small", "large"], ["x", "y" * (64 << 20)]], schema=text))
    writer.commit(CheckpointId(1), writer.prepare(CheckpointId(1)))

    lengths = {name: len(row["text"]) for name, row in shown(sink, redis_server).items()}

    assert lengths == {"small": 1, "large": 64 << 20}


def test_prepared_hashes_survive_a_server_restart(tmp_path: Path) -> None:
    with redis_broker(tmp_path) as broker:
        sink = RedisHashes(broker.url, "views", ("app",), pipeline="views")
        writer = opened(sink)
        committables = prepared(writer, 1, [("a", 1)])

        broker.server.kill()
        with pytest.raises(Retryable, match=r"the Redis server 127.0.0.1:\d+ does not answer"):
            writer.commit(CheckpointId(1), committables)
        with pytest.raises(Rejected, match="does not answer"):
            sink.validate(SCHEMA)

        broker.server.start()
        opened(sink, attempt=2).commit(CheckpointId(1), committables)
        assert views(sink, broker) == {"a": 1}


def test_all_keys_lie_in_one_slot_of_a_cluster(tmp_path: Path) -> None:
    settings = f"cluster-enabled yes\ncluster-port {free_port()}"
    with redis_broker(tmp_path, more_settings=settings) as broker:
        client = broker.client()
        client.execute_command("CLUSTER ADDSLOTSRANGE", 0, 16383)
        wait_until(lambda: "ok" in str(client.execute_command("CLUSTER INFO")).split("slots")[0])
        sink = RedisHashes(broker.url, "views", ("app",), pipeline="views")
        complete(opened(sink), 1, [("a{b}", 1), ("c", 2)])
        rewound(sink, [], OTHER)
        rewound(sink, [(RUN, CheckpointId(1))], RunId("run-3"))

        assert views(sink, broker) == {"a{b}": 1, "c": 2}


def test_a_server_that_may_evict_output_is_refused(tmp_path: Path) -> None:
    settings = "maxmemory 100mb\nmaxmemory-policy allkeys-lru"
    with redis_broker(tmp_path, more_settings=settings) as broker:
        sink = RedisHashes(broker.url, "views", ("app",), pipeline="views")

        with pytest.raises(Rejected, match=r"allkeys-lru.*; use noeviction"):
            sink.validate(SCHEMA)


def test_no_message_or_committable_contains_the_password(
    redis_server: RedisBroker, tmp_path: Path
) -> None:
    address = redis_server.address
    wrong = f"redis://:very-secret@127.0.0.1:{address.port}/0"
    sink = RedisHashes(wrong, tmp_path.name, ("app",), pipeline="views")

    with pytest.raises(Rejected, match="check user and password") as refused:
        sink.validate(SCHEMA)

    assert "very-secret" not in f"{refused.value}{sink!r}"
    known = RedisHashes(redis_server.url, tmp_path.name, ("app",), pipeline="views")
    assert address.password not in f"{prepared(opened(known), 1, [('a', 1)])}{known!r}"


@pytest.mark.parametrize(
    "prefix",
    ["", "a}b", "a{b", "a b", "a\nb", "a*", "a?", "[ab]", "a\\", "a'b", 'a"b', "a;b", LONG, NUL],
    ids=repr,
)
def test_a_prefix_that_could_mean_other_keys_is_refused(
    redis_server: RedisBroker, prefix: str
) -> None:
    with pytest.raises(Rejected, match="The prefix of Redis hashes consists of"):
        RedisHashes(redis_server.url, prefix, ("app",), pipeline="views").validate(SCHEMA)


@pytest.mark.parametrize(
    ("keys", "column", "problem"),
    [
        ((), pa.int64(), "need key columns"),
        (("nothing",), pa.int64(), "key column nothing .* is not in the results"),
        (("app",), pa.list_(pa.int64()), "Column odd of type list.* cannot be a field"),
        (("app",), pa.binary(), "Column odd of type binary cannot be a field"),
        (("odd",), pa.float64(), "Key column odd of type double cannot name"),
    ],
)
def test_columns_that_do_not_fit_are_refused_by_name(
    redis_server: RedisBroker, keys: tuple[str, ...], column: pa.DataType, problem: str
) -> None:
    sink = RedisHashes(redis_server.url, "views", keys, pipeline="views")

    with pytest.raises(Rejected, match=problem):
        sink.validate(SCHEMA.append(pa.field("odd", column)))


def test_a_null_key_is_refused_by_column_name(sink: RedisHashes) -> None:
    with pytest.raises(Rejected, match="Key column app of the Redis hashes is null"):
        prepared(opened(sink), 1, [(None, 1)])


def context_of(run_id: RunId = RUN, attempt: int = 1, subtask: int = 0) -> SinkContext:
    return SinkContext(run_id, Attempt(attempt), Uid("out"), subtask, 2)


def opened(
    sink: RedisHashes, *, run_id: RunId = RUN, attempt: int = 1, subtask: int = 0
) -> SinkWriter:
    return sink.open(context_of(run_id, attempt, subtask), SCHEMA)


def rows(values: list[tuple[str | None, int | None]]) -> pa.RecordBatch:
    columns = [[app for app, _ in values], [n for _, n in values], [n for _, n in values]]
    arrays = [pa.array(c, t) for c, t in zip(columns, SCHEMA.types, strict=True)]
    return pa.record_batch(arrays, schema=SCHEMA)


def prepared(
    writer: SinkWriter, checkpoint_id: int, *batches: list[tuple[str | None, int | None]]
) -> list[Json]:
    for batch in batches:
        writer.write(rows(batch))
    return writer.prepare(CheckpointId(checkpoint_id))


def complete(
    writer: SinkWriter, checkpoint_id: int, values: list[tuple[str | None, int | None]]
) -> None:
    writer.commit(CheckpointId(checkpoint_id), prepared(writer, checkpoint_id, values))


def with_handle(committable: Json, **changes: Json) -> Json:
    assert isinstance(committable, dict)
    assert isinstance(committable["handle"], dict)
    return {**committable, "handle": {**committable["handle"], **changes}}


def shown(sink: RedisHashes, broker: RedisBroker) -> dict[str, dict[str, str]]:
    """Returns the hashes as redis-cli shows them, by the key behind the prefix."""
    client = broker.client()
    beginning = f"{{{sink.prefix}}}:row:"
    found = {}
    for key in client.scan_iter(f"{beginning}*", count=1000):
        fields = client.hgetall(key)
        found[key.decode().removeprefix(beginning)] = {
            name.decode(): value.decode() for name, value in fields.items()
        }
    return found


def views(sink: RedisHashes, broker: RedisBroker) -> dict[str, int]:
    return {row["app"]: int(row["views"]) for row in shown(sink, broker).values()}
