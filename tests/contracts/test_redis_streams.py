"""Redis Streams beyond the contract: losses, outages, values that do not fit, and secrets."""

import dataclasses
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest

from pipelines.connectors.positions import check_still_there
from pipelines.connectors.redis import connection as redis_connection
from pipelines.connectors.redis.stream_entries import StreamMark, offset_of
from pipelines.connectors.redis.streams import RedisStreams
from pipelines.connectors.source import MalformedRecord, StartAt
from pipelines.connectors.split_progress import SplitProgress
from pipelines.domain.errors import Rejected, Retryable
from pipelines.domain.snapshots import Json
from pipelines.runtime.subtask.sources.direct_reader import DirectReader
from tests.brokers.redis_broker import RedisBroker, redis_broker
from tests.contracts.growing_places import SCHEMA, behind, rows_of
from tests.hostile_names import HOSTILE, LONG, NUL
from tests.unit.runtime.fakes import ManualClock

TYPED = pa.schema(
    [("n", pa.int64()), ("x", pa.float64()), ("s", pa.string()), ("at", pa.timestamp("ms", "UTC"))]
)


def test_entries_become_typed_columns_and_missing_fields_null(redis_server: RedisBroker) -> None:
    client = redis_server.client()
    client.xadd("typed", {"n": 1, "x": "0.5", "s": "ü", "at": "1970-01-01T00:00:01Z"})
    client.xadd("typed", {"s": "", "extra": "y", "n": -2})
    source = source_of(redis_server, "typed", schema=TYPED)

    with closing(source.open()) as reader:
        batch = next(reader.read(SplitProgress("typed"))).records

    first, second = batch.to_pylist()
    assert (first["n"], first["x"], first["s"], first["at"].timestamp()) == (1, 0.5, "ü", 1.0)
    assert second == {"n": -2, "x": None, "s": "", "at": None}


def test_a_value_that_does_not_fit_names_entry_and_column(redis_server: RedisBroker) -> None:
    client = redis_server.client()
    client.xadd("unfit", {"key": 1}, id="5-1")
    client.xadd("unfit", {"key": "one"}, id="5-2")
    client.xadd("unfit", {"key": 3}, id="5-3")
    source = source_of(redis_server, "unfit")
    given: list[int] = []

    match = r"Entry 5-2 of the stream unfit does not fit column key: .*one"
    with closing(source.open()) as reader, pytest.raises(MalformedRecord, match=match) as refused:
        given.extend(
            key
            for batch in reader.read(SplitProgress("unfit"))
            for key in batch.records.column("key").to_pylist()
        )

    assert given == [1]
    assert refused.value.text == '{"key":"one"}'
    assert read(source, SplitProgress("unfit", refused.value.offset + 1, 2), 1)[0][0] == 3


def test_an_entry_without_event_time_is_reported_with_its_place_and_fields(
    redis_server: RedisBroker,
) -> None:
    client = redis_server.client()
    client.xadd("timeless", {"key": 1, "at": "1970-01-01T00:00:01Z"}, id="5-1")
    client.xadd("timeless", {"key": 2}, id="5-2")
    schema = pa.schema([("key", pa.int64()), ("at", pa.timestamp("ms", "UTC"))])
    source = RedisStreams(redis_server.url, ("timeless",), schema=schema, timestamp_column="at")

    with closing(source.open()) as reader:
        batches = reader.read(SplitProgress("timeless"))
        assert next(batches).records.column("key").to_pylist() == [1]
        with pytest.raises(MalformedRecord, match="no event time") as refused:
            next(batches)

    assert refused.value.text == '{"key":"2"}'
    assert refused.value.offset == offset_of(b"5-2")


def test_only_entries_that_are_trimmed_unread_count_as_lost(
    redis_server: RedisBroker,
) -> None:
    client = redis_server.client()
    for number in range(1, 11):
        client.xadd("trimmed", {"key": number}, id=f"{number}-0")
    source = source_of(redis_server, "trimmed")
    (split,) = source.find(set(), is_start=True)
    at_five = behind(split, read(source, split, 5))

    client.xtrim("trimmed", minid="6-0", approximate=False)
    check_still_there(source, at_five)

    client.xtrim("trimmed", minid="8-0", approximate=False)
    with pytest.raises(Rejected, match=r"trimmed: 2 entries, 5-1 to 7-524287, are gone \(trimmed"):
        check_still_there(source, at_five)
    with pytest.raises(Rejected, match="2 entries, 5-1 to"):
        read(source, at_five, 1)


def test_entries_trimmed_before_the_start_are_not_missed(redis_server: RedisBroker) -> None:
    client = redis_server.client()
    for number in range(1, 11):
        client.xadd("begun", {"key": number}, id=f"{number}-0")
    client.xtrim("begun", minid="4-0", approximate=False)
    source = source_of(redis_server, "begun")
    (split,) = source.find(set(), is_start=True)

    read_all = read(source, split, 7)
    client.xtrim("begun", maxlen=0, approximate=False)

    assert [key for key, _ in read_all] == [4, 5, 6, 7, 8, 9, 10]
    check_still_there(source, behind(split, read_all))
    with pytest.raises(Rejected, match="are gone"):
        check_still_there(source, behind(split, read_all[:6]))


def test_entries_deleted_before_the_start_are_not_missed(
    redis_server: RedisBroker,
) -> None:
    client = redis_server.client()
    for number in range(1, 11):
        client.xadd("thinned", {"key": number}, id=f"{number}-0")
    client.xdel("thinned", "3-0", "5-0")
    source = source_of(redis_server, "thinned")
    (split,) = source.find(set(), is_start=True)

    read_all = read(source, split, 8)
    client.xtrim("thinned", maxlen=0, approximate=False)

    assert [key for key, _ in read_all] == [1, 2, 4, 6, 7, 8, 9, 10]
    check_still_there(source, behind(split, read_all))
    with pytest.raises(Rejected, match="are gone"):
        check_still_there(source, behind(split, read_all[:7]))


def test_an_entry_deleted_unread_is_reported_as_lost(redis_server: RedisBroker) -> None:
    client = redis_server.client()
    for number in range(1, 6):
        client.xadd("deleted", {"key": number}, id=f"{number}-0")
    source = source_of(redis_server, "deleted")
    (split,) = source.find(set(), is_start=True)
    at_two = behind(split, read(source, split, 2))

    client.xdel("deleted", "2-0")
    check_still_there(source, at_two)
    client.xdel("deleted", "4-0")

    with pytest.raises(Rejected, match="entries 2-1 to 4-0 are gone"):
        check_still_there(source, at_two)


def test_another_stream_of_the_same_name_is_refused(redis_server: RedisBroker) -> None:
    client = redis_server.client()
    client.xadd("again", {"key": 1}, id="9-0")
    source = source_of(redis_server, "again")
    (split,) = source.find(set(), is_start=True)
    position = behind(split, read(source, split, 1))
    client.delete("again")

    with pytest.raises(Rejected, match="is gone, with the entries not read yet"):
        check_still_there(source, position)
    client.xadd("again", {"key": 1}, id="3-0")
    with pytest.raises(Rejected, match="is another one than that which was read"):
        check_still_there(source, position)


def test_entries_deleted_unread_before_an_older_gap_are_missed(redis_server: RedisBroker) -> None:
    """The largest deleted id does not change, and entries already read may disappear meanwhile."""
    client = redis_server.client()
    for number in range(1, 1_001):
        client.xadd("holes", {"key": number}, id=f"{number}-0")
    client.xdel("holes", "900-0", "950-0")
    source = source_of(redis_server, "holes")
    (split,) = source.find(set(), is_start=True)
    at_300 = behind(split, read(source, split, 300))
    client.xdel("holes", *(f"{number}-0" for number in range(1, 200)))
    assert read(source, at_300, 10)[0][0] == 301

    client.xdel("holes", *(f"{number}-0" for number in range(500, 600)))

    with pytest.raises(Rejected, match="holes: 100 of the entries up to 950-0 that were there"):
        read(source, at_300, 1_000)


@pytest.mark.parametrize("size", [1, 7, 30_000])
def test_entries_up_to_a_gap_are_counted_from_the_shorter_side(
    redis_server: RedisBroker, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_connection, "PAGE", size)
    client = redis_server.client()
    name = f"counted-{size}"
    for number in range(1, 31):
        client.xadd(name, {"key": number}, id=f"{number}-0")
    for hole in ("4-0", "20-0"):
        client.xdel(name, hole)
        (split,) = source_of(redis_server, name).find(set(), is_start=True)
        there = [int(each[0].split(b"-")[0]) for each in client.xrange(name)]
        up_to_hole = sum(number < int(hole[:-2]) for number in there)

        assert StreamMark.of(split.version).due == split.passed + up_to_hole


@pytest.mark.parametrize("ids", [lambda n: f"{n}-0", lambda n: f"{n + 5_000}-0"])
def test_a_recreated_stream_is_refused_at_any_length(
    redis_server: RedisBroker, ids: Callable[[int], str]
) -> None:
    """Both a reader that continues and a restore refuse it."""
    client = redis_server.client()
    client.delete("remade")
    for number in range(1, 501):
        client.xadd("remade", {"key": number}, id=f"{number}-0")
    source = dataclasses.replace(source_of(redis_server, "remade"), batch_rows=100)
    (split,) = source.find(set(), is_start=True)
    at_100 = behind(split, read(source, split, 100))

    with closing(source.open()) as reader:
        batches = reader.read(split)
        rows_of(batches, 100)
        client.delete("remade")
        for number in range(1, 801):
            client.xadd("remade", {"key": -number}, id=ids(number))
        with pytest.raises(Rejected, match="is another one than that which was read"):
            next(batches)
    with pytest.raises(Rejected, match="is another one than that which was read"):
        check_still_there(source, at_100)


def test_a_run_may_start_after_the_newest_entry(redis_server: RedisBroker) -> None:
    client = redis_server.client()
    client.xadd("newest", {"key": 1})
    source = source_of(redis_server, "newest", start_at=StartAt.NEWEST)
    (split,) = source.find(set(), is_start=True)
    client.xadd("newest", {"key": 2})

    assert [key for key, _ in read(source, split, 1)] == [2]


@pytest.mark.slow
def test_an_entry_of_64_mib_is_read_like_any_other(redis_server: RedisBroker) -> None:
    client = redis_server.client()
    for key, size in [(1, 1), (2, 64 << 20), (3, 1)]:
        client.xadd("wide", {"key": key, "text": b"x" * size})
    source = source_of(redis_server, "wide")

    assert [key for key, _ in read(source, SplitProgress("wide"), 3)] == [1, 2, 3]
    client.delete("wide")


@pytest.mark.slow
def test_reading_continues_after_a_server_restart(tmp_path: Path) -> None:
    with redis_broker(tmp_path) as broker:
        for number in range(1, 4):
            broker.client().xadd("s", {"key": number})
        source = source_of(broker, "s")
        (split,) = source.find(set(), is_start=True)
        with closing(source.open()) as reader:
            batches = reader.read(split)
            assert [key for key, _ in rows_of(batches, 3)] == [1, 2, 3]

            broker.server.kill()
            assert next(batches).records.num_rows == 0
            with pytest.raises(Retryable, match=r"127\.0\.0\.1:\d+ does not answer"):
                source.find(set(), is_start=False)
            broker.server.start()
            broker.client().xadd("s", {"key": 4})

            assert [key for key, _ in rows_of(batches, 1)] == [4]


def test_reading_continues_once_a_replica_that_lost_its_master_serves_again(
    redis_server: RedisBroker,
) -> None:
    redis_server.client().xadd("failover", {"key": 1})
    source = source_of(redis_server, "failover")
    (split,) = source.find(set(), is_start=True)
    with closing(source.open()) as reader:
        batches = reader.read(split)
        assert [key for key, _ in rows_of(batches, 1)] == [1]

        with redis_server.without_master():
            assert next(batches).records.num_rows == 0
            with pytest.raises(Retryable, match=r"serves nothing: .*MASTER is down"):
                source.find(set(), is_start=False)
        redis_server.client().xadd("failover", {"key": 2})

        assert [key for key, _ in rows_of(batches, 1)] == [2]


@pytest.mark.parametrize("password", ["wrong-secret", None])
def test_the_sentence_about_a_refused_password_does_not_contain_it(
    redis_server: RedisBroker, password: str | None
) -> None:
    place = redis_server.url.rpartition("@")[2]
    url = f"redis://:{password}@{place}" if password else f"redis://{place}"
    source = RedisStreams(url, ("s",), schema=SCHEMA)

    with pytest.raises(Rejected, match="check user and password") as refused:
        source.validate()

    assert "wrong-secret" not in str(refused.value)
    assert "wrong-secret" not in repr(source)


def test_a_missing_stream_or_a_key_of_another_type_is_refused_at_the_start(
    redis_server: RedisBroker,
) -> None:
    redis_server.client().set("text", "x")

    with pytest.raises(Rejected, match="There is no stream nothing-here"):
        source_of(redis_server, "nothing-here").validate()
    with pytest.raises(Rejected, match="The Redis key text is not a stream"):
        source_of(redis_server, "text").validate()
    with pytest.raises(Rejected, match="does not answer"):
        RedisStreams("redis://:secret@127.0.0.1:1", ("s",), schema=SCHEMA).validate()
    with pytest.raises(Rejected, match="is no redis:// address"):
        RedisStreams("htp://:secret@x", ("s",), schema=SCHEMA).validate()


@pytest.mark.parametrize(
    "name", [HOSTILE, NUL, LONG, "*", "[qr]eal", "real?", "..", "{real}"], ids=repr
)
def test_a_stream_name_may_contain_any_characters(redis_server: RedisBroker, name: str) -> None:
    """Other streams exist that the name would mean as a pattern, or cut off."""
    client = redis_server.client()
    for other in ("real", "really"):
        client.xadd(other, {"key": 1})
    source = source_of(redis_server, name, is_bounded=True)
    with pytest.raises(Rejected, match=r"^There is no stream "):
        source.validate()

    client.xadd(name, {"key": 2})
    source.validate()
    (split,) = source.find(set(), is_start=True)

    assert [key for key, _ in read(source, split, 10)] == [2]
    assert source.oldest(split) == 0


def test_bounded_and_unbounded_sources_restore_points_of_each_other(
    redis_server: RedisBroker,
) -> None:
    client = redis_server.client()
    client.xadd("restored", {"key": 1})
    following = source_of(redis_server, "restored")
    ending = source_of(redis_server, "restored", is_bounded=True)

    followed, after_one = passed(following, ())
    client.xadd("restored", {"key": 2})
    client.xadd("restored", {"key": 3})
    ended, after_three = passed(ending, (after_one,))
    client.xadd("restored", {"key": 4})
    followed_again, _ = passed(following, (after_three,))

    assert followed == ([1], False)
    assert ended == ([2, 3], True)
    assert followed_again == ([4], False)


def passed(source: RedisStreams, restored: tuple[Json, ...]) -> tuple[tuple[list[int], bool], Json]:
    """Reads with a run of one subtask until nothing comes.

    Returns the keys, True if the source then ends, and its positions.
    """
    reader = DirectReader(
        source=source,
        restored=restored,
        subtask=0,
        parallelism=1,
        clock=ManualClock(),
        event_hours_per_s=None,
        beginning=source.find(frozenset(), is_start=True),
    )
    with closing(reader):
        keys = []
        while (batch := reader.next()) is not None and batch.num_rows:
            keys += batch.column("key").to_pylist()
        return (keys, reader.is_exhausted), reader.positions()


def source_of(broker: RedisBroker, stream: str, **options: object) -> RedisStreams:
    return RedisStreams(broker.url, (stream,), **{"schema": SCHEMA, **options})


def read(
    source: RedisStreams, split: SplitProgress, wanted: int, batch_rows: int = 100
) -> list[tuple[int, int | None]]:
    source = dataclasses.replace(source, batch_rows=batch_rows)
    with closing(source.open()) as reader:
        return rows_of(reader.read(split), wanted)
