"""Splits found while running: some subtask reads each once, and gaps move no position."""

import random
from collections.abc import Iterator
from dataclasses import replace

import msgspec
import pytest

from pipelines.connectors import split_progress
from pipelines.connectors.contract import LoggedRecords
from pipelines.connectors.positions import named_problems_of
from pipelines.connectors.split_progress import NamedPositions, SplitProgress
from pipelines.domain.elements import Watermark, WatermarkStatus
from pipelines.domain.errors import Rejected, Retryable
from pipelines.domain.event_time import MAX_WATERMARK_MS
from pipelines.domain.ids import Uid
from pipelines.domain.snapshots import Json
from pipelines.runtime.control import MAX_FRAME_BYTES
from pipelines.runtime.subtask.sources import found_splits
from pipelines.runtime.subtask.sources.direct_reader import DirectReader
from tests.unit.runtime.fakes import ManualClock, keys_of
from tests.unit.runtime.growing_log import AtOnce, GrowingLog, NamedAgainLog

UID = Uid("clicks")


@pytest.fixture(autouse=True)
def look_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(found_splits, "ThreadPoolExecutor", lambda *_, **__: AtOnce())


@pytest.mark.parametrize("seed", range(60))
def test_every_record_is_read_once_while_splits_appear_and_the_parallelism_changes(
    seed: int,
) -> None:
    chance = random.Random(seed)
    clock, keys = ManualClock(), iter(range(1_000_000))
    source = GrowingLog({}, batch_rows=chance.randint(1, 4))
    source.concurrent_splits = chance.randint(1, 4)
    restored: tuple[Json, ...] = ()
    read: list[int] = []

    for parallelism in [chance.randint(1, 4) for _ in range(4)]:
        readers = [reader_of(source, clock, restored, i, parallelism) for i in range(parallelism)]
        for _ in range(chance.randint(0, 12)):
            grow(chance, source, keys)
            clock.now_ms += chance.choice([0.0, 400.0, 1_100.0])
            batch = chance.choice(readers).next()
            read += [] if batch is None else keys_of(batch)
        restored = tuple(reader.positions() for reader in readers)
    source.ended = set(source.logs)
    for subtask in range(3):
        read += drained(reader_of(source, clock, restored, subtask, 3))

    assert sorted(read) == sorted(key for log in source.logs.values() for _, key, _ in log)


def test_the_position_is_just_after_the_last_record_of_a_log_with_gaps() -> None:
    source = GrowingLog({"a": [(3, 0, 0), (4, 1, 1), (9, 2, 2), (50, 3, 3)]})
    reader = reader_of(source, ManualClock())

    reader.next()
    assert split_of(reader) == SplitProgress("a", offset=10, passed=3)
    assert reader.split is not None
    assert (reader.split.first_offset, reader.split.next_offset) == (3, 10)

    reader.next()
    assert split_of(reader) == SplitProgress("a", offset=51, passed=4)


def test_the_version_of_a_split_advances_with_the_records_handed_out() -> None:
    class Remembering(GrowingLog):
        def read(self, split: SplitProgress) -> Iterator[LoggedRecords]:
            for batch in super().read(split):
                behind = f"behind {batch.offsets[-1]}" if len(batch.offsets) else None
                yield replace(batch, version=behind)

    source = Remembering({"a": [(n, n, n) for n in range(4)]}, ended={"a"}, batch_rows=2)
    reader = reader_of(source, ManualClock())
    versions = [split_of(reader).version for _ in range(3) if reader.next() is not None]

    assert versions == ["behind 1", "behind 3"]


def test_a_new_split_is_found_after_the_interval_and_not_before() -> None:
    source, clock = GrowingLog({"a": [(0, 0, 0)]}), ManualClock()
    reader = reader_of(source, clock)
    assert drained(reader) == [0]
    source.logs["b"] = [(0, 7, 7)]

    clock.now_ms += 999.0
    assert drained(reader) == []
    clock.now_ms += 1.0
    assert drained(reader) == []  # it looks for splits now, while it reads
    assert drained(reader) == [7]


def test_an_unreachable_log_stops_the_start_but_no_later_discovery() -> None:
    source, clock = GrowingLog({"a": [(0, 0, 0)]}, is_away=True), ManualClock()
    reader = reader_of(source, clock)
    with pytest.raises(Retryable):
        reader.next()

    source.is_away = False
    assert drained(reader) == [0]
    source.is_away = True
    for _ in range(5):
        clock.now_ms += 1_000.0
        assert drained(reader) == []

    source.is_away = False
    source.logs["b"] = [(0, 7, 7)]
    for _ in range(3):
        clock.now_ms += 1_000.0
        if drained(reader) == [7]:
            break
    else:
        pytest.fail("the split was never found")


def test_a_bounded_source_keeps_its_original_end_after_a_restore() -> None:
    source = GrowingLog({"a": [(0, 0, 0), (1, 1, 1)]}, discovery_interval_ms=None, batch_rows=1)
    reader = reader_of(source, ManualClock())
    reader.next()
    source.logs["a"].append((2, 2, 2))
    source.logs["b"] = [(0, 9, 9)]

    after = reader_of(source, ManualClock(), (reader.positions(),))

    assert drained(after) == [1]
    assert after.is_exhausted
    assert after.watermark_ms() == MAX_WATERMARK_MS


def test_the_chosen_start_position_applies_to_the_first_splits_only() -> None:
    source, clock = GrowingLog({"a": [(0, 0, 0)]}, starts_at_the_end=True), ManualClock()
    reader = reader_of(source, clock)
    assert drained(reader) == []
    source.logs["b"] = [(0, 7, 7)]

    after = reader_of(source, clock, (reader.positions(),))

    assert drained(after) == [7]


def test_a_cut_before_discovery_leaves_the_chosen_start_position_open() -> None:
    source = GrowingLog({"a": [(0, 0, 0)]}, starts_at_the_end=True)
    untouched = reader_of(source, ManualClock()).positions()

    assert drained(reader_of(source, ManualClock(), (untouched,))) == []


def test_a_split_that_appears_during_discovery_is_read_from_its_beginning() -> None:
    """Only the splits of the subtask that has not looked yet begin at their newest record."""
    source = GrowingLog({"a": [(0, 1, 1)], "b": [(0, 2, 2)]}, starts_at_the_end=True)
    has_not, has_looked = (reader_of(source, ManualClock(), (), i, 2) for i in range(2))
    assert drained(has_looked) == []
    source.logs["c"] = [(0, 3, 3)]
    restored = (has_not.positions(), has_looked.positions())

    after = [reader_of(source, ManualClock(), restored, i, 3) for i in range(3)]

    assert [source.owner(name, 2) for name in "abc"] == [1, 0, 1]
    assert [key for reader in after for key in drained(reader)] == [3]


def test_all_subtasks_start_at_the_offsets_that_the_driver_found() -> None:
    """They do so whenever they look, and again after a failure before the first checkpoint."""
    logs = {name: [(0, ord(name), 0)] for name in "abcd"}
    source = GrowingLog(logs, starts_at_the_end=True, concurrent_splits=9)
    beginning = source.find(frozenset(), is_start=True)
    for log in logs.values():
        log.append((1, log[0][1] + 100, 1))
    logs["e"] = [(0, ord("e") + 100, 1)]

    for _ in range(2):
        clock = ManualClock()
        readers = [
            DirectReader(
                source=source,
                restored=(),
                subtask=i,
                parallelism=2,
                clock=clock,
                event_hours_per_s=None,
                beginning=beginning,
            )
            for i in range(2)
        ]
        read = [key for reader in readers for key in drained(reader)]
        clock.now_ms += 1_000.0
        read += [key for _ in range(2) for reader in readers for key in drained(reader)]

        assert sorted(read) == [ord(name) + 100 for name in "abcde"]


def test_a_subtask_that_waits_for_splits_is_idle_but_never_ends_event_time() -> None:
    source, clock = GrowingLog({"a": [(0, 0, 5)]}, ended={"a"}), ManualClock()
    reader = reader_of(source, clock)

    assert drained(reader) == [0]
    marks = reader.take_marks()

    assert not reader.is_exhausted
    assert marks[-1] == WatermarkStatus(is_idle=True)
    assert Watermark(MAX_WATERMARK_MS) not in marks


def test_a_missing_range_of_offsets_is_named_and_never_skipped() -> None:
    source = GrowingLog({"a": [(5, 0, 0), (6, 1, 1)]}, batch_rows=1)
    reader = reader_of(source, ManualClock())
    reader.next()
    source.oldest_offset["a"] = 9

    with pytest.raises(Rejected, match=r"^a: offsets 6 to 8 are gone\.$"):
        reader_of(source, ManualClock(), (reader.positions(),)).next()
    stored = [NamedPositions.from_json(reader.positions())]
    assert named_problems_of(UID, source, stored, ahead=False) == [
        "The source 'clicks' cannot go back: a: offsets 6 to 8 are gone."
    ]


@pytest.mark.parametrize(("ahead", "problems"), [(True, 1), (False, 0)])
def test_an_unreachable_source_does_not_refuse_a_point_but_is_reported_ahead(
    ahead: bool, problems: int
) -> None:
    source = GrowingLog({}, is_away=True)
    stored = [NamedPositions((SplitProgress("a", 3),), has_looked=True)]

    assert len(named_problems_of(UID, source, stored, ahead=ahead)) == problems


def test_a_finished_split_is_not_read_again_and_may_be_deleted() -> None:
    source, clock = GrowingLog({"a": [(0, 0, 0)]}, ended={"a"}), ManualClock()
    reader = reader_of(source, clock)
    assert drained(reader) == [0]
    source.oldest_offset["a"] = 100

    assert drained(reader_of(source, clock, (reader.positions(),))) == []


def test_a_name_that_now_means_another_split_is_refused_at_the_next_cut() -> None:
    source = NamedAgainLog({"a": [(0, 0, 0)]}, versions={"a": "first"})
    reader = reader_of(source, ManualClock())
    assert drained(reader) == [0]
    assert split_of(reader).version is None  # as in a point without versions

    reader.confirm()
    assert split_of(reader).version == "first"
    source.versions["a"] = "second"

    with pytest.raises(Rejected, match="a is second and was first"):
        reader.confirm()


def test_a_cut_asks_again_for_a_missing_version_even_of_an_ended_split() -> None:
    log = {"a": [(0, 0, 0)], "b": [(0, 1, 1)]}
    source = NamedAgainLog(log, ended={"a"})
    reader = reader_of(source, ManualClock())
    assert sorted(drained(reader)) == [0, 1]

    reader.confirm()
    source.versions = {"a": "first", "b": "first"}
    reader.confirm()
    reader.confirm()

    assert source.asked == [["a", "b"], ["a", "b"], ["b"]]


@pytest.mark.parametrize("seed", range(40))
def test_a_late_file_is_read_once_even_though_finished_files_are_packed(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every record is read once, although names are random and appear in any order."""
    monkeypatch.setattr(found_splits, "PACK_NAMES", 3)
    monkeypatch.setattr(split_progress, "PACK_NAMES", 3)
    chance = random.Random(seed)
    monkeypatch.setattr(found_splits, "UNREAD_MAX", chance.choice([2, 3, 10_000]))
    clock, keys = ManualClock(), iter(range(1_000_000))
    source = GrowingLog({}, batch_rows=chance.randint(1, 3))
    source.concurrent_splits = chance.randint(1, 3)
    restored: tuple[Json, ...] = ()
    read: list[int] = []

    for parallelism in [chance.randint(1, 3) for _ in range(5)]:
        readers = [reader_of(source, clock, restored, i, parallelism) for i in range(parallelism)]
        for _ in range(chance.randint(0, 30)):
            if chance.random() < 0.5:
                name = f"{chance.randrange(10**9)}-{len(source.logs)}"
                source.logs[name] = [(n, next(keys), n) for n in range(chance.randint(0, 4))]
                source.ended.add(name)
            clock.now_ms += 1_100.0
            reader = chance.choice(readers)
            batch = reader.next()
            read += [] if batch is None else keys_of(batch)
            if chance.random() < 0.3:
                reader.positions()
        restored = tuple(reader.positions() for reader in readers)
        known = [name for one in restored for name in NamedPositions.from_json(one).names()]
        assert len(known) == len(set(known))
    for subtask in range(2):
        reader = reader_of(source, clock, restored, subtask, 2)
        for _ in range(len(source.logs) + 1):  # an empty file ends a round early
            read += drained(reader)

    assert sorted(read) == sorted(key for log in source.logs.values() for _, key, _ in log)


@pytest.mark.slow
def test_a_million_finished_files_fit_into_a_message_and_are_packed_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Names with a random part, like those of Spark, pack the worst."""
    chance = random.Random(7)
    names = (f"part-{n:08}-{chance.randbytes(16).hex()}.parquet" for n in range(1_000_000))
    stored = NamedPositions((), True, tuple(split_progress.packs_of(list(names)))).to_json()
    source = GrowingLog({"late": [(0, 7, 7)], "open": []}, ended={"late"})
    reader = reader_of(source, ManualClock(), (stored,))
    assert drained(reader) == [7]
    packed: list[object] = []
    monkeypatch.setattr(found_splits, "pack_of", packed.append)

    positions = NamedPositions.from_json(reader.positions())

    assert packed == []  # a pack is made once
    assert [split.name for split in positions.splits] == ["late", "open"]
    assert len(positions.finished) == 1_000
    assert len(msgspec.json.encode(positions)) < MAX_FRAME_BYTES / 2


def test_positions_hold_few_unread_splits_yet_all_are_read_in_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(found_splits, "UNREAD_MAX", 4)
    logs = {f"{n:02}": [(0, n, n)] for n in range(20)}
    growing = GrowingLog(logs, ended=set(logs), concurrent_splits=1)
    bounded = GrowingLog(logs, ended=set(logs), concurrent_splits=1, discovery_interval_ms=None)
    reader, whole = reader_of(growing, ManualClock()), reader_of(bounded, ManualClock())
    first, _ = reader.next(), whole.next()

    unread = [s for s in NamedPositions.from_json(reader.positions()).splits if not s.is_finished]
    after = drained(reader_of(growing, ManualClock(), (reader.positions(),)))

    assert len(unread) == 4
    assert keys_of(first) + after == keys_of(first) + drained(reader) == list(range(20))
    assert len(NamedPositions.from_json(whole.positions()).splits) == 20  # it finds no more later


def test_a_split_whose_end_the_source_must_know_is_not_packed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(found_splits, "PACK_NAMES", 2)
    logs = {name: [(0, 7, 7)] for name in "abcd"}
    bounded = reader_of(GrowingLog(logs, discovery_interval_ms=None), ManualClock())
    growing = reader_of(GrowingLog(logs, ended=set("abc")), ManualClock())
    drained(bounded), drained(growing)

    assert NamedPositions.from_json(bounded.positions()).finished == ()
    open_, kept = NamedPositions.from_json(growing.positions()), "cd"
    assert [split_progress.names_in(pack) for pack in open_.finished] == [["a", "b"]]
    assert "".join(split.name for split in open_.splits) == kept


def reader_of(
    source: GrowingLog,
    clock: ManualClock,
    restored: tuple[Json, ...] = (),
    subtask: int = 0,
    parallelism: int = 1,
) -> DirectReader:
    return DirectReader(
        source=source,
        restored=restored,
        subtask=subtask,
        parallelism=parallelism,
        clock=clock,
        event_hours_per_s=None,
    )


def grow(chance: random.Random, source: GrowingLog, keys: Iterator[int]) -> None:
    if chance.random() < 0.4:
        source.logs[f"split-{len(source.logs)}"] = []
    for name, log in source.logs.items():
        if name not in source.ended and chance.random() < 0.6:
            offset = (log[-1][0] if log else -1) + chance.choice([1, 1, 2, 9])
            log.append((offset, next(keys), offset))
        elif log and chance.random() < 0.1:
            source.ended.add(name)


def split_of(reader: DirectReader) -> SplitProgress:
    (split,) = NamedPositions.from_json(reader.positions()).splits
    return split


def drained(reader: DirectReader) -> list[int]:
    read: list[int] = []
    while (batch := reader.next()) is not None:
        read += keys_of(batch)
    return read
