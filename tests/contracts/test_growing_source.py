"""The contract of growing sources: a name and an offset always mean the same record, or nothing.

The sources are files, streams and topics; the brokers are real.
"""

import re
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from pipelines.connectors.positions import check_still_there
from pipelines.connectors.redis.streams import RedisStreams
from pipelines.connectors.source import (
    GrowingSource,
    KnowsPending,
    LoggedRecords,
    ReadsPastGaps,
)
from pipelines.connectors.split_progress import SplitProgress
from pipelines.domain.errors import Rejected
from tests.contracts.growing_places import (
    SCHEMA,
    DirectoryPlace,
    KafkaPlace,
    MemoryPlace,
    Place,
    RedisPlace,
    behind,
    rows_of,
)

PLACES = ["memory", "parquet", "csv", "jsonl", "redis", "kafka"]
KEYS = list(range(10, 17))


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "memory":
        return MemoryPlace()
    if request.param == "kafka":
        test = re.sub(r"\W+", "-", request.node.name)
        return KafkaPlace(request.getfixturevalue("kafka_server"), test)
    if request.param == "redis":
        return RedisPlace(request.getfixturevalue("redis_server"), request.node.name)
    return DirectoryPlace(tmp_path, f".{request.param}")


def test_each_split_is_found_once(place: Place) -> None:
    place.write("a", [1])
    place.write("b", [2])
    source = place.source()

    first = source.find(set(), is_start=True)
    place.write("c", [3])
    source = place.source()
    second = source.find({split.name for split in first}, is_start=False)

    assert len(first) == 2
    assert len(second) == 1
    assert source.find({split.name for split in [*first, *second]}, is_start=False) == []


def test_every_process_agrees_on_the_owner_of_each_split(place: Place) -> None:
    for name in "abcdefgh":
        place.write(name, [1])
    source, other = place.source(), place.source()
    names = [split.name for split in source.find(set(), is_start=True)]

    assert len(names) == 8
    for parallelism in (1, 2, 3, 7):
        owners = [source.owner(name, parallelism) for name in names]
        assert owners == [other.owner(name, parallelism) for name in names]
        assert set(owners) <= set(range(parallelism))


def test_reading_from_any_position_gives_exactly_the_rest(place: Place) -> None:
    place.write("a", KEYS)
    source = place.source()
    (split,) = source.find(set(), is_start=True)
    whole = read(source, split, len(KEYS))

    assert [key for key, _ in whole] == KEYS
    for passed in range(len(KEYS)):
        rest = read(source, behind(split, whole[:passed]), len(KEYS) - passed)
        assert rest == whole[passed:]


def test_batches_have_the_declared_schema(place: Place) -> None:
    place.write("a", KEYS)
    source = place.source()
    (split,) = source.find(set(), is_start=True)

    with closing(source.open()) as reader:
        for batch in reader.read(split):
            records = batch.records if isinstance(batch, LoggedRecords) else batch
            assert records.schema.equals(source.schema, check_metadata=True)
            if records.num_rows:
                break


def test_one_reader_reads_several_splits_side_by_side(place: Place) -> None:
    place.write("a", [1, 2, 3])
    place.write("b", [4, 5, 6])
    source = place.source()
    splits = source.find(set(), is_start=True)

    with closing(source.open()) as reader:
        batches = [reader.read(split) for split in splits]
        read = [[key for key, _ in rows_of(each, 3)] for each in batches]

    assert sorted(read) == [[1, 2, 3], [4, 5, 6]]


def test_a_bounded_split_ends_where_it_ended_at_discovery(place: Place) -> None:
    place.write("a", [1, 2])
    source = place.source(is_bounded=True)
    (split,) = source.find(set(), is_start=True)
    if place.is_log:
        place.write("a", [3])

    assert source.discovery_interval_ms is None
    assert [key for key, _ in read(source, split, 100)] == [1, 2]


def test_records_that_come_later_are_read_from_the_same_position(place: Place) -> None:
    if not place.is_log:
        return
    place.write("a", [1, 2])
    source = place.source()
    (split,) = source.find(set(), is_start=True)

    with closing(source.open()) as reader:
        batches = reader.read(split)
        first = rows_of(batches, 2)
        place.write("a", [3])
        assert [key for key, _ in rows_of(batches, 1)] == [3]
    assert [key for key, _ in read(source, behind(split, first), 1)] == [3]


def test_a_server_reports_how_much_is_left_to_read(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kafka counts in offsets, and a marker between two records has an offset too."""
    if not isinstance(place, RedisPlace | KafkaPlace):
        return
    step = 2 if isinstance(place, KafkaPlace) else 1
    monkeypatch.setattr("pipelines.connectors.kafka.reader.BATCH_ROWS", 3)
    place.write("a", KEYS)
    source = place.source()
    (split,) = source.find(set(), is_start=True)
    if isinstance(source, RedisStreams):
        source = replace(source, batch_rows=3)

    with closing(source.open()) as reader:
        assert isinstance(reader, KnowsPending)
        assert reader.pending_records() == 0
        batches, left = reader.read(split), len(KEYS)
        seen: list[bool] = []
        while left:
            batch = next(batches)
            assert isinstance(batch, LoggedRecords)
            left -= batch.records.num_rows
            if batch.records.num_rows:
                seen.append(reader.pending_records() == step * left + step - 1)
        while reader.pending_records():
            next(batches)

    assert len(seen) > 1
    assert all(seen)


def test_existing_records_are_not_reported_as_lost(place: Place) -> None:
    place.write("a", KEYS)
    source = place.source()
    (split,) = source.find(set(), is_start=True)
    whole = read(source, split, len(KEYS))
    position = behind(split, whole[:3])

    check_still_there(source, split)
    check_still_there(source, position)

    assert read(source, position, len(KEYS) - 3) == whole[3:]


def test_lost_records_are_reported_and_not_skipped(place: Place) -> None:
    place.write("a", KEYS)
    source = place.source()
    (split,) = source.find(set(), is_start=True)
    position = behind(split, read(source, split, 3))
    place.lose("a", 5)

    with pytest.raises(Rejected, match=r"\ba\b.* gone"):
        check_still_there(source, position)


def test_reading_past_a_gap_gives_everything_that_is_left(place: Place) -> None:
    """Only for sources that can continue there; files vanish in no particular order."""
    place.write("a", KEYS)
    source = place.source()
    (split,) = source.find(set(), is_start=True)
    position = behind(split, read(source, split, 1))
    if not isinstance(source, ReadsPastGaps):
        return
    assert source.past_gap(position) is None  # nothing is gone

    place.lose("a", 3)
    past = place.source().past_gap(position)

    assert past is not None
    assert [key for key, _ in read(place.source(), past.at, len(KEYS) - 3)] == KEYS[3:]
    is_counted = isinstance(source, RedisStreams)  # in Kafka, markers count too
    assert past.records == 2 if is_counted else past.records >= 2
    assert place.source().past_gap(past.at) is None


def test_records_that_were_read_before_their_loss_are_not_missed(place: Place) -> None:
    if not place.is_log:
        return
    place.write("a", KEYS)
    source = place.source()
    (split,) = source.find(set(), is_start=True)
    whole = read(source, split, len(KEYS))
    place.lose("a", 3)

    check_still_there(source, behind(split, whole[:3]))
    assert read(source, behind(split, whole[:3]), 4) == whole[3:]


def test_a_complete_source_validates(place: Place) -> None:
    place.write("a", KEYS)
    source = place.source()

    source.validate()

    (split,) = source.find(set(), is_start=True)
    assert [key for key, _ in read(source, split, len(KEYS))] == KEYS


def read(source: GrowingSource, split: SplitProgress, wanted: int) -> list[tuple[int, int | None]]:
    with closing(source.open()) as reader:
        return rows_of(reader.read(split), wanted)


def test_the_schema_is_the_declared_one(place: Place) -> None:
    place.write("a", KEYS)

    assert place.source().schema.field("key") == SCHEMA.field("key")
