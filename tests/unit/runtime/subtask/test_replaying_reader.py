"""Quarantined records come once, before new ones, and do not affect event time."""

import json
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from pipelines.connectors.files.quarantine import ReplayedQuarantine
from pipelines.domain.elements import Watermark
from pipelines.domain.event_time import MAX_WATERMARK_MS
from pipelines.domain.ids import CheckpointId, RunId, Uid
from pipelines.domain.poison import REPLAYED_PREFIX, IsolatedRange, Isolation, PoisonRecord
from pipelines.domain.snapshots import Json
from pipelines.runtime.subtask.feed import Emit
from pipelines.runtime.subtask.sources.direct_reader import DirectReader
from pipelines.runtime.subtask.sources.reserving_reader import ReplayingReader, ReservingReader
from pipelines.runtime.subtask.sources.source_feed import SourceFeed
from pipelines.runtime.subtask.sources.source_reader import SourceReader
from pipelines.runtime.subtask.sources.split_screen import SplitScreen
from tests.unit.runtime.fakes import ListSource, ManualClock, keys_of
from tests.unit.runtime.hosted import LEFT, MemorySink, joining_pipeline, place_of

if TYPE_CHECKING:
    from pipelines.protocol.watermarks import EventTimeMark

NUMBERS = Uid("numbers")
AGAIN = [901, 902, 903, 904, 905]


SUSPECTED = f"{REPLAYED_PREFIX}part-run-1-00000001-0-0.jsonl"


def poison_at(offset: int) -> PoisonRecord:
    return PoisonRecord(
        source=NUMBERS,
        split=SUSPECTED,
        offset=offset,
        operator=Uid("f"),
        error_type="builtins.ValueError",
        error="bad",
        trace="",
    )


def isolated(first: int, last: int) -> IsolatedRange:
    return IsolatedRange(
        source=NUMBERS, split=SUSPECTED, first_offset=first, last_offset=last, step=1
    )


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A quarantine with two files of another run, whose records are old."""
    directory = tmp_path / NUMBERS
    directory.mkdir()
    for number, keys in enumerate((AGAIN[:3], AGAIN[3:])):
        records = [{"key": key, "at": "1970-01-01T00:00:00Z"} for key in keys]
        lines = [json.dumps({"record": json.dumps(record)}) + "\n" for record in records]
        (directory / f"part-run-1-0000000{number + 1}-0-0.jsonl").write_text("".join(lines))
    return tmp_path


def test_the_quarantine_is_read_first_but_only_the_source_sets_event_time(home: Path) -> None:
    reader = replaying(home)

    replayed = reader.next()

    assert replayed is not None
    assert keys_of(replayed) == AGAIN[:3]
    assert reader.take_counts() == {"records_replayed": 3}
    assert reader.split is not None
    assert reader.split.name == "quarantine/part-run-1-00000001-0-0.jsonl"
    assert reader.take_marks() == []
    assert reader.watermark_ms() is None
    assert not reader.is_exhausted
    assert keys_of(reader.next() or pytest.fail("there is a second file")) == AGAIN[3:]
    assert reader.take_counts() == {"records_replayed": len(AGAIN) - 3}
    assert keys_of(reader.next() or pytest.fail("then the source")) == [1, 2]
    assert reader.take_counts() == {"records_read": 2}
    assert Watermark(10_000) in reader.take_marks()
    assert reader.watermark_ms() == 10_000
    while reader.next() is not None:
        pass
    assert reader.is_exhausted


def test_the_source_waits_while_its_quarantine_is_temporarily_empty() -> None:
    """Otherwise the source would end event time before the rest of the quarantine arrives."""
    silent = ListSource([[(9, 0)]], silent={0})
    quarantine = DirectReader(
        source=silent,
        restored=(),
        subtask=0,
        parallelism=1,
        clock=ManualClock(),
        event_hours_per_s=None,
    )
    reader = ReplayingReader(source_reader(()), quarantine)

    read = [reader.next() for _ in range(5)]

    assert [keys_of(batch) for batch in read if batch is not None] == [[9]]
    assert reader.take_marks() == []
    assert reader.positions() == source_reader(()).positions()
    assert not reader.is_exhausted


@pytest.mark.parametrize(
    "isolation",
    [
        Isolation(poison=[poison_at(0), poison_at(2)]),
        Isolation(ranges=[isolated(0, 2)]),
        Isolation(poison=[poison_at(1)], ranges=[isolated(0, 1)]),
    ],
)
def test_the_source_never_overtakes_records_set_aside_or_isolated_again(
    home: Path, isolation: Isolation
) -> None:
    kept = KeptKeys()
    screen = SplitScreen(NUMBERS, source_of().schema, isolation, kept)
    reader = ReplayingReader(source_reader(()), reader_of_quarantine(home, (), screen=screen))

    given: list[int | EventTimeMark] = []
    while not reader.is_exhausted:
        batch = reader.next()
        given += [] if batch is None else keys_of(batch)
        given += reader.take_marks()

    replayed = [key for key in AGAIN if key not in kept.keys]
    assert kept.keys == [AGAIN[each.offset] for each in isolation.poison]
    assert given[: len(replayed)] == replayed
    assert given[-1] == Watermark(MAX_WATERMARK_MS)
    assert [key for key in given if isinstance(key, int)] == [*replayed, 1, 2, 3, 4]


@pytest.mark.parametrize("seed", range(20))
def test_each_record_comes_once_from_any_cut_at_any_parallelism(home: Path, seed: int) -> None:
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


def test_a_mode_without_replay_keeps_its_place_in_the_quarantine_but_reads_none(home: Path) -> None:
    cut = reader_of_quarantine(home, ())
    cut.next()
    kept = reader_of_quarantine(home, (cut.positions(),))
    feed = feed_over(ReservingReader(source_reader(()), 1 << 20), kept)
    feed.advance()
    feed.reserved(CheckpointId(1))
    feed.on_completed(CheckpointId(1))

    effects = [effect for _ in range(3) for effect in feed.advance() or []]

    emitted = [effect.batch for effect in effects if isinstance(effect, Emit)]
    assert [key for batch in emitted for key in keys_of(batch)] == [1, 2, 3, 4]
    assert feed.replayed() == cut.positions()
    assert feed_over(source_reader(())).replayed() is None


def feed_of(
    home: Path, cuts: list[tuple[Json, Json]], subtask: int, parallelism: int
) -> tuple[ReplayingReader, SourceFeed]:
    source = source_reader(tuple(positions for positions, _ in cuts), subtask, parallelism)
    replayed = tuple(each for _, each in cuts)
    quarantine = reader_of_quarantine(home, replayed, subtask, parallelism)
    reader = ReplayingReader(source, quarantine)
    return reader, feed_over(reader, quarantine)


def feed_over(reader: SourceReader, quarantine: DirectReader | None = None) -> SourceFeed:
    place = place_of(joining_pipeline(source_of(), MemorySink()), Uid(LEFT))
    return SourceFeed(place, reader, ManualClock(), None, quarantine)


def replaying(home: Path) -> ReplayingReader:
    return ReplayingReader(source_reader(()), reader_of_quarantine(home, ()))


@dataclass(slots=True)
class KeptKeys:
    """Implements `Kept`."""

    keys: list[int] = field(default_factory=list)

    def add_row(self, poison: PoisonRecord, row: pa.RecordBatch) -> None:
        self.keys += keys_of(row)

    def add_text(self, poison: PoisonRecord, text: str) -> None:
        raise NotImplementedError


def source_of() -> ListSource:
    return ListSource([[(1, 5_000), (2, 10_001)], [(3, 20_000), (4, 30_000)]])


def source_reader(
    restored: tuple[Json, ...], subtask: int = 0, parallelism: int = 1
) -> DirectReader:
    return DirectReader(
        source=source_of(),
        restored=restored,
        subtask=subtask,
        parallelism=parallelism,
        clock=ManualClock(),
        event_hours_per_s=None,
    )


def reader_of_quarantine(
    home: Path,
    restored: tuple[Json, ...],
    subtask: int = 0,
    parallelism: int = 1,
    screen: SplitScreen | None = None,
) -> DirectReader:
    source = ReplayedQuarantine.of(home, NUMBERS, source_of(), RunId("run-2"), looks=True)
    clock = ManualClock()
    return DirectReader(
        source=source,
        restored=restored,
        subtask=subtask,
        parallelism=parallelism,
        clock=clock,
        event_hours_per_s=None,
        screen=screen,
    )
