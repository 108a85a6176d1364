"""A Redis server that does not answer: which stream asks it, and for how long."""

import pyarrow as pa
import pytest

from pipelines.connectors.redis import streams as redis_reader
from pipelines.connectors.redis.connection import Found
from pipelines.connectors.redis.stream_entries import StreamExtent
from pipelines.connectors.redis.streams import StreamsReader
from pipelines.connectors.source import MalformedRecord
from pipelines.connectors.split_progress import SplitProgress
from pipelines.connectors.watermark_strategy import EVENT_TIME
from pipelines.domain.errors import Retryable

SCHEMA = pa.schema([("key", pa.int64())])


class FakeConnection:
    """Every stream has the entries in `held`."""

    def __init__(self) -> None:
        self.held = [[b"key", b"7"]]
        self.is_away = False
        self.asked: list[str] = []

    def entries(
        self, stream: str, offset: int, end_offset: int | None, count: int, marked: int | None
    ) -> Found:
        self.asked.append(stream)
        if self.is_away:
            raise Retryable("the server does not answer")
        numbered = enumerate(self.held, 1)
        entries = [(b"0-%d" % number, each) for number, each in numbered if number >= offset]
        extent = StreamExtent(
            added=len(self.held), length=len(self.held), last=len(self.held), max_deleted=0, first=1
        )
        return Found(extent, entries, None if marked is None else self.held[marked - 1])


@pytest.fixture
def connection(monkeypatch: pytest.MonkeyPatch) -> FakeConnection:
    connection = FakeConnection()
    monkeypatch.setattr(redis_reader, "RedisConnection", lambda url: connection)
    return connection


def test_a_hanging_server_is_asked_for_only_one_stream_per_turn(
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


def test_a_bounded_stream_has_nothing_pending_once_it_is_read(connection: FakeConnection) -> None:
    reader = reader_of()
    batches = reader.read(SplitProgress("a", end_offset=2))

    next(batches)
    assert reader.pending_records() is None
    assert list(batches) == []
    assert reader.pending_records() == 0


def test_a_stream_that_is_read_alone_asks_the_server_itself(connection: FakeConnection) -> None:
    reader = reader_of()
    first, second = (reader.read(SplitProgress(name)) for name in "ab")
    connection.is_away = True
    next(first)

    connection.is_away = False

    assert [next(second).records.num_rows for _ in range(2)] == [0, 1]


def test_an_outage_is_timed_from_the_first_failure_not_the_last_answer(
    connection: FakeConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_reader, "AWAY_S_MAX", 0.0)
    stream = reader_of().read(SplitProgress("a"))
    next(stream)
    connection.is_away = True

    assert next(stream).records.num_rows == 0
    with pytest.raises(Retryable):
        next(stream)


def test_an_answer_ends_the_outage_for_all_streams(
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


def test_the_earlier_of_two_faulty_entries_is_reported_and_none_before_is_lost(
    connection: FakeConnection,
) -> None:
    """The entry without a time comes first, but is found after the one that does not fit."""
    good, timeless, odd = [b"key", b"7", b"at", b"0"], [b"key", b"8"], [b"key", b"odd", b"at", b"0"]
    connection.held = [good, good, timeless, good, odd]
    schema = pa.schema([*SCHEMA, ("at", EVENT_TIME)])
    reader = StreamsReader("redis://nowhere", schema, "at", 10)
    rows: list[int] = []
    refused: list[str] = []

    at = SplitProgress("a")
    for _ in range(2):
        with pytest.raises(MalformedRecord) as malformed:
            rows.extend(batch.records.num_rows for batch in reader.read(at))
        refused.append(malformed.value.text)
        at = SplitProgress("a", malformed.value.offset + 1, 3)

    assert rows == [2, 1]
    assert refused == ['{"key":"8"}', '{"key":"odd","at":"0"}']


def reader_of() -> StreamsReader:
    return StreamsReader("redis://nowhere", SCHEMA, None, 10)
