"""A Redis server that does not answer: who asks it, and for how long."""

import pyarrow as pa
import pytest

from pipelines.connectors.redis import reader as redis_reader
from pipelines.connectors.redis.connection import Entry
from pipelines.connectors.redis.reader import StreamsReader
from pipelines.connectors.redis.stream_extent import StreamExtent
from pipelines.connectors.split_progress import SplitProgress
from pipelines.domain.errors import Retryable

SCHEMA = pa.schema([("key", pa.int64())])


class FakeConnection:
    """Every stream holds one entry."""

    def __init__(self) -> None:
        self.is_away = False
        self.asked: list[str] = []

    def entries(
        self, stream: str, offset: int, end_offset: int | None, count: int
    ) -> tuple[StreamExtent | None, list[Entry]]:
        self.asked.append(stream)
        if self.is_away:
            raise Retryable("the server does not answer")
        return StreamExtent(1, 1, 1, 0, 1), [(b"0-1", [b"key", b"7"])] if offset <= 1 else []


@pytest.fixture
def connection(monkeypatch: pytest.MonkeyPatch) -> FakeConnection:
    connection = FakeConnection()
    monkeypatch.setattr(redis_reader, "RedisConnection", lambda url: connection)
    return connection


def test_a_server_that_hangs_is_asked_for_one_stream_in_each_turn(
    connection: FakeConnection,
) -> None:
    reader = reader_of()
    streams = [reader.read(SplitProgress(name)) for name in "abc"]
    connection.is_away = True

    rows = [next(stream).records.num_rows for _ in range(3) for stream in streams]
    assert rows == [0] * 9
    assert connection.asked == ["a", "a", "a"]

    connection.is_away = False
    assert [next(stream).records.num_rows for stream in streams] == [1, 1, 1]


def test_a_stream_that_alone_is_read_on_asks_itself(connection: FakeConnection) -> None:
    reader = reader_of()
    first, second = (reader.read(SplitProgress(name)) for name in "ab")
    connection.is_away = True
    next(first)

    connection.is_away = False

    assert [next(second).records.num_rows for _ in range(2)] == [0, 1]


def test_being_away_is_counted_from_the_first_failure_and_not_from_the_last_answer(
    connection: FakeConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_reader, "AWAY_S_MAX", 0.0)
    stream = reader_of().read(SplitProgress("a"))
    next(stream)
    connection.is_away = True

    assert next(stream).records.num_rows == 0
    with pytest.raises(Retryable):
        next(stream)


def test_an_answer_ends_being_away_for_all_streams(
    connection: FakeConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_reader, "AWAY_S_MAX", 0.0)
    reader = reader_of()
    first, second = (reader.read(SplitProgress(name)) for name in "ab")
    connection.is_away = True
    assert next(first).records.num_rows == 0

    connection.is_away = False
    assert [next(each).records.num_rows for each in (first, second)] == [1, 1]

    connection.is_away = True
    assert next(first).records.num_rows == 0


def reader_of() -> StreamsReader:
    return StreamsReader("redis://nowhere", SCHEMA, None, 10)
