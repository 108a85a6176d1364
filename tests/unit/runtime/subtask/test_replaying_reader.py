"""What was set aside comes before what is new, once, and has no part in event time."""

import json
import random
from pathlib import Path

import pytest

from pipelines.connectors.files.replayed_quarantine import ReplayedQuarantine
from pipelines.domain.elements import Watermark
from pipelines.domain.ids import RunId, Uid
from pipelines.domain.snapshots import Json
from pipelines.runtime.subtask.replaying_reader import ReplayingReader
from pipelines.runtime.subtask.reserving_reader import ReservingReader
from pipelines.runtime.subtask.source_feed import SourceFeed
from pipelines.runtime.subtask.source_reader import SourceReader
from tests.unit.runtime.fakes import ListSource, ManualClock, keys_of

NUMBERS = Uid("numbers")
AGAIN = [901, 902, 903, 904, 905]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Two files of another run, the records of which are old."""
    directory = tmp_path / NUMBERS
    directory.mkdir()
    for number, keys in enumerate((AGAIN[:3], AGAIN[3:])):
        records = [{"key": key, "at": "1970-01-01T00:00:00Z"} for key in keys]
        lines = [json.dumps({"record": json.dumps(record)}) + "\n" for record in records]
        (directory / f"part-run-1-0000000{number + 1}-0-0.jsonl").write_text("".join(lines))
    return tmp_path


def test_the_quarantine_comes_first_and_event_time_is_the_sources(home: Path) -> None:
    reader = replaying(home)

    replayed = reader.next()

    assert replayed is not None
    assert keys_of(replayed) == AGAIN[:3]
    assert reader.is_replaying
    assert reader.split is not None
    assert reader.split.name == "quarantine/part-run-1-00000001-0-0.jsonl"
    assert reader.take_marks() == []
    assert reader.watermark_ms() is None
    assert not reader.is_exhausted
    assert keys_of(reader.next() or pytest.fail("there is a second file")) == AGAIN[3:]
    assert keys_of(reader.next() or pytest.fail("then the source")) == [1, 2]
    assert not reader.is_replaying
    assert Watermark(10_000) in reader.take_marks()
    assert reader.watermark_ms() == 10_000
    while reader.next() is not None:
        pass
    assert reader.is_exhausted


def test_a_source_that_has_ended_waits_for_its_quarantine() -> None:
    """Which may have nothing to hand out at the moment, as where a record is set aside again."""
    silent = ListSource([[(9, 0)]], silent={0})
    quarantine = SourceReader(silent, (), 0, 1, ManualClock(), None)
    reader = ReplayingReader(source_reader(()), quarantine)

    read = [keys_of(batch) for batch in iter(reader.next, None)]

    assert read == [[9], [1, 2], [3, 4]]
    assert not reader.is_exhausted


@pytest.mark.parametrize("seed", range(20))
def test_each_record_comes_once_whatever_it_goes_on_from_at_whatever_parallelism(
    home: Path, seed: int
) -> None:
    chance = random.Random(seed)
    read: list[int] = []
    cuts: list[tuple[Json, Json]] = []

    for parallelism in [chance.randint(1, 3) for _ in range(3)]:
        feeds = [feed_of(home, cuts, i, parallelism) for i in range(parallelism)]
        for _ in range(chance.randint(0, 4)):
            batch = chance.choice(feeds)[0].next()
            read += [] if batch is None else keys_of(batch)
        cuts = [(feed.positions(), feed.replayed()) for _, feed in feeds]
    for reader, _ in [feed_of(home, cuts, i, 2) for i in range(2)]:
        while (batch := reader.next()) is not None:
            read += keys_of(batch)

    assert sorted(read) == [1, 2, 3, 4, *AGAIN]


def test_a_mode_that_does_not_go_back_keeps_how_far_it_was_read_and_reads_none(home: Path) -> None:
    cut = reader_of_quarantine(home, ())
    cut.next()
    kept = reader_of_quarantine(home, (cut.positions(),))
    feed = SourceFeed(ReservingReader(source_reader(()), 1), None, kept)

    assert feed.replayed() == cut.positions()
    assert SourceFeed(source_reader(())).replayed() is None


def feed_of(
    home: Path, cuts: list[tuple[Json, Json]], subtask: int, parallelism: int
) -> tuple[ReplayingReader, SourceFeed]:
    source = source_reader(tuple(positions for positions, _ in cuts), subtask, parallelism)
    replayed = tuple(each for _, each in cuts)
    quarantine = reader_of_quarantine(home, replayed, subtask, parallelism)
    reader = ReplayingReader(source, quarantine)
    return reader, SourceFeed(reader, None, quarantine)


def replaying(home: Path) -> ReplayingReader:
    return ReplayingReader(source_reader(()), reader_of_quarantine(home, ()))


def source_of() -> ListSource:
    return ListSource([[(1, 5_000), (2, 10_001)], [(3, 20_000), (4, 30_000)]])


def source_reader(
    restored: tuple[Json, ...], subtask: int = 0, parallelism: int = 1
) -> SourceReader:
    return SourceReader(source_of(), restored, subtask, parallelism, ManualClock(), None)


def reader_of_quarantine(
    home: Path, restored: tuple[Json, ...], subtask: int = 0, parallelism: int = 1
) -> SourceReader:
    source = ReplayedQuarantine.of(home, NUMBERS, source_of(), RunId("run-2"), looks=True)
    return SourceReader(source, restored, subtask, parallelism, ManualClock(), None)
