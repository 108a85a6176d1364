"""Joins compared with nested loops, over random rows, watermarks, cuts and restore parallelisms."""

import random
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from pipelines.domain.errors import Rejected
from pipelines.domain.event_time import MAX_WATERMARK_MS
from pipelines.domain.key_groups import KeyGroupRange
from pipelines.operators.joining import join_state
from pipelines.operators.joining.stream_join import Interval, IntervalJoin, StreamJoin
from pipelines.operators.joining.window_join import JoinKind, WindowJoin
from pipelines.operators.operator import Operator
from pipelines.operators.windowing.windows import AlignedWindows, SlidingWindows, TumblingWindows
from pipelines.state.backend import BackendFactory
from pipelines.state.in_memory import batch_list
from pipelines.state.in_memory.hashmap import HashMapBackend
from tests.contracts.rocksdb_slots import TINY_BYTES, rocksdb_backends
from tests.unit.operators.joined_rows import (
    LEFT,
    ON,
    RIGHT,
    TIME,
    TIMES,
    Pair,
    Rec,
    as_pair,
    at,
    is_match,
    joined_one_by_one,
    late_of,
    maybe_restore,
    number,
    random_input,
    row,
)
from tests.unit.operators.subtasks import Subtasks

KEYED = pa.schema([("key", pa.int64()), ("time", pa.int64())])


@pytest.mark.parametrize("seed", range(10))
def test_an_index_finds_each_row_while_another_thread_merges(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Adds, drops and looks up rows while the merge is at an arbitrary stage."""
    rng = random.Random(seed)
    other_thread = OtherThread()
    monkeypatch.setattr(join_state, "MERGED_AT_ONCE", 20)
    monkeypatch.setattr(batch_list, "MERGED_BYTES", rng.choice([0, 200, 1 << 20]))
    monkeypatch.setattr(join_state, "_MERGER", other_thread)
    width = rng.choice([1, 7, 50])
    side = join_state.TimedSide(in_memory(), "rows", KEYED, ("key",), "time", width)
    kept: list[tuple[int, int]] = []
    for now in range(200):
        rows = [(rng.randrange(9), now - rng.randrange(60)) for _ in range(rng.randrange(8))]
        kept += rows
        columns = {"key": [key for key, _ in rows], "time": [time for _, time in rows]}
        batch = pa.record_batch(columns, KEYED)
        side.add(batch, batch.column("time").to_numpy())
        if rng.random() < 0.3:
            other_thread.work()
        if rng.random() < 0.1:
            kept = [row for row in kept if row[1] >= now - 30]
            side.drop_before(now - 30)

        keys = pa.record_batch({"key": list(range(9))})
        earliest = np.full(9, now - 30)
        found = [
            tuple(row.values())
            for matches in side.index.match(keys, earliest)
            for row in matches.found.to_pylist()
        ]
        assert sorted(found) == sorted(row for row in kept if row[1] >= now - 30)

    assert other_thread.merges


def test_an_index_waits_for_the_merging_thread_before_it_has_too_many_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(join_state, "MERGED_AT_ONCE", 4)
    monkeypatch.setattr(join_state, "RUNS_MAX", 12)
    monkeypatch.setattr(join_state, "_MERGER", OtherThread())
    side = join_state.TimedSide(in_memory(), "rows", KEYED, ("key",), "time", 1)
    for key in range(200):
        rows = pa.record_batch({"key": [key] * 4, "time": [0] * 4}, KEYED)
        side.add(rows, np.zeros(4, np.int64))
        assert len(side.index._runs) <= 12

    matches = list(side.index.match(pa.record_batch({"key": [7]})))
    assert sum(len(each.positions) for each in matches) == 4


def in_memory() -> HashMapBackend:
    return HashMapBackend(KeyGroupRange(0, 127), 128)


class Merge(Future[Any]):
    """Under way until a caller asks for the result."""

    def __init__(self, work: Callable[[], object]) -> None:
        super().__init__()
        self._work = work

    def result(self, timeout: float | None = None) -> Any:
        if not self.done():
            self.set_result(self._work())
        return super().result(timeout)


class OtherThread:
    """An executor that works only when the test says so, or when a caller needs a result."""

    def __init__(self) -> None:
        self.merges: list[Merge] = []

    def submit(self, function: Callable[..., object], *arguments: object) -> Merge:
        self.merges.append(Merge(lambda: function(*arguments)))
        return self.merges[-1]

    def work(self) -> None:
        for merge in self.merges:
            merge.result()


@pytest.mark.parametrize("seed", range(40))
def test_an_interval_join_emits_each_pair_when_its_later_row_arrives(seed: int) -> None:
    check_interval_join(random.Random(seed))


@pytest.mark.slow
def test_joins_are_the_same_when_state_is_in_rocksdb(tmp_path: Path) -> None:
    with rocksdb_backends(TINY_BYTES) as backends:
        check_interval_join(random.Random(1), backends)
        check_stream_join(random.Random(2), JoinKind.FULL, backends)


def check_interval_join(rng: random.Random, backends: BackendFactory = HashMapBackend) -> None:
    lower = rng.randint(-40, 30)
    interval = Interval(lower, lower + rng.choice([0, rng.randint(0, 60)]))
    joined = subtasks(lambda: IntervalJoin(ON, TIMES, interval), rng, backends)
    accepted: tuple[list[Rec], list[Rec]] = ([], [])
    watermark = -100
    joined.advance(watermark)

    for port, rows in random_input(rng):
        joined.send([row(port, each) for each in rows], port)
        in_time = [each for each in rows if each[2] >= watermark]
        late = [each for each in rows if each[2] < watermark]
        expected = Counter(pairs_of_interval(port, in_time, accepted[1 - port], interval))
        assert Counter(map(as_pair, joined.emitted.rows)) == expected
        assert sorted(number(r) for r in late_of(joined, port)) == sorted(r[3] for r in late)
        assert all(r["join_time"] == max(r["at"], r["seen"]) for r in joined.emitted.rows)
        joined.emitted.take()
        accepted[port].extend(in_time)
        watermark += rng.choice([0, rng.randint(0, 30)])
        joined.advance(watermark)
        maybe_restore(joined, rng)
    joined.advance(MAX_WATERMARK_MS)

    assert joined.emitted.rows == []
    assert joined.state_rows == 0


@pytest.mark.parametrize("kind", list(JoinKind))
@pytest.mark.parametrize("seed", range(15))
def test_a_join_without_windows_always_equals_the_join_of_all_input_so_far(
    seed: int, kind: JoinKind
) -> None:
    check_stream_join(random.Random(seed), kind)


def check_stream_join(
    rng: random.Random, kind: JoinKind, backends: BackendFactory = HashMapBackend
) -> None:
    joined = subtasks(lambda: StreamJoin(ON, kind), rng, backends)
    so_far: tuple[list[Rec], list[Rec]] = ([], [])
    table: Counter[Pair] = Counter()

    for port, rows in random_input(rng):
        joined.send([row(port, each) for each in rows], port)
        so_far[port].extend(rows)
        for out in joined.emitted.take():
            table[as_pair(out)] += -1 if out.get("row_kind") == "-D" else 1
            assert table[as_pair(out)] >= 0, "only what was added is taken away"
        assert +table == Counter(joined_one_by_one(*so_far, kind))
        keyed = [each for side in so_far for each in side if None not in each[:2]]
        assert joined.state_rows == len(keyed)
        maybe_restore(joined, rng)


@pytest.mark.parametrize("kind", list(JoinKind))
@pytest.mark.parametrize("seed", range(15))
def test_a_window_join_emits_pairs_and_unmatched_rows_once_per_window(
    seed: int, kind: JoinKind
) -> None:
    rng = random.Random(seed)
    windows = rng.choice([TumblingWindows(10), SlidingWindows(12, every_ms=5)])
    joined = subtasks(lambda: WindowJoin(ON, TIMES, windows, kind), rng)
    per_window: dict[int, tuple[list[Rec], list[Rec]]] = {}
    watermark = -100
    joined.advance(watermark)

    for port, rows in random_input(rng):
        joined.send([row(port, each) for each in rows], port)
        for each in rows:
            for start in windows_of(each[2], windows):
                if start + windows.size_ms - 1 > watermark:
                    per_window.setdefault(start, ([], []))[port].append(each)
        watermark += rng.randint(0, 12)
        joined.advance(watermark)
        due = [start for start in per_window if start + windows.size_ms - 1 <= watermark]
        expected = [
            pair for start in due for pair in joined_one_by_one(*per_window.pop(start), kind)
        ]
        assert Counter(map(as_pair, joined.emitted.take())) == Counter(expected)
        maybe_restore(joined, rng)


def test_an_outer_join_retracts_the_unmatched_row_once_before_adding_a_pair() -> None:
    joined = Subtasks(lambda: StreamJoin(ON, JoinKind.LEFT), [LEFT, RIGHT], [ON, ON])

    joined.send([row(0, ("a", 1, 0, 5))])
    joined.send([row(1, ("a", 1, 0, 7))], 1)
    joined.send([row(1, ("a", 1, 0, 8))], 1)

    found = [(r["row_kind"], r["flight"], r["wind"], r["key"]) for r in joined.emitted.rows]
    assert found == [
        ("+I", 5, None, "a"),
        ("-D", 5, None, "a"),
        ("+I", 5, 7, "a"),
        ("+I", 5, 8, "a"),
    ]


def test_an_unmatched_row_keeps_its_key_and_has_null_for_the_other_side() -> None:
    joined = Subtasks(
        lambda: WindowJoin(ON, TIMES, TumblingWindows(10), JoinKind.FULL), [LEFT, RIGHT], [ON, ON]
    )

    joined.send([row(1, ("a", 1, 3, 7))], 1)
    joined.advance(MAX_WATERMARK_MS)

    (alone,) = joined.emitted.rows
    assert (alone["key"], alone["id"], alone["wind"]) == ("a", 1, 7)
    assert (alone["at"], alone["flight"]) == (None, None)
    assert [alone[f"window_{bound}"] for bound in ("start", "end", "time")] == [
        at(0),
        at(10),
        at(9),
    ]


@pytest.mark.parametrize(("lower", "upper"), [(-5, 20), (5, 20), (-20, -5), (0, 0)])
@pytest.mark.parametrize("port", [0, 1])
def test_an_interval_join_keeps_a_row_until_its_last_possible_partner(
    port: int, lower: int, upper: int
) -> None:
    """A partner whose time equals the watermark is the latest possible one, and is not late."""
    joined = Subtasks(
        lambda: IntervalJoin(ON, TIMES, Interval(lower, upper)), [LEFT, RIGHT], [ON, ON]
    )
    latest = upper if port == 0 else -lower
    joined.send([row(port, ("a", 1, 0, 1))], port)

    joined.advance(latest)
    joined.restore(2)
    joined.send([row(1 - port, ("a", 1, latest, 2))], 1 - port)

    assert len(joined.emitted.rows) == 1


def test_an_interval_join_drops_old_rows_from_state_as_event_time_advances() -> None:
    joined = Subtasks(lambda: IntervalJoin(ON, TIMES, Interval(-8, 8)), [LEFT, RIGHT], [ON, ON])
    for now in range(0, 250, 5):
        for port in (0, 1):
            joined.send([row(port, ("a", 1, now, now))], port)
        joined.advance(now)

    assert joined.state_rows <= 2 * 5


def test_a_join_forgets_rows_after_their_time_to_live_and_not_before() -> None:
    now = [1_000_000]
    joined = Subtasks(
        lambda: StreamJoin(ON, JoinKind.INNER, 1_600),
        [LEFT, RIGHT],
        [ON, ON],
        now_ms=lambda: now[0],
    )
    joined.send([row(0, ("a", 1, 0, 1))])
    now[0] += 1_600
    joined.send([row(1, ("a", 1, 0, 2))], 1)
    assert [as_pair(out) for out in joined.emitted.take()] == [(1, 2)]

    joined.send([row(0, ("a", 2, 0, n)) for n in range(10, 15)])
    joined.restore(1)
    now[0] += 100  # a sixteenth more
    joined.send([row(1, ("a", 1, 0, 3))], 1)

    assert joined.emitted.rows == []
    assert joined.state_rows == 7


def test_rows_kept_without_a_time_to_live_age_once_one_is_set() -> None:
    now, ttl = [1_000_000], [None, 1_600]
    joined = Subtasks(
        lambda: StreamJoin(ON, JoinKind.INNER, ttl[0]),
        [LEFT, RIGHT],
        [ON, ON],
        now_ms=lambda: now[0],
    )
    joined.send([row(0, ("a", 1, 0, 1))])
    ttl.pop(0)
    joined.restore(1)

    joined.send([row(1, ("a", 1, 0, 2))], 1)
    now[0] += 1_700
    joined.send([row(1, ("a", 1, 0, 3))], 1)

    assert [as_pair(out) for out in joined.emitted.rows] == [(1, 2)]


def test_rows_in_buckets_of_another_width_are_found_after_a_restore() -> None:
    """A new version of the code may have a different interval."""
    intervals = [Interval(-8, 8), Interval(-80, 80)]
    joined = Subtasks(lambda: IntervalJoin(ON, TIMES, intervals[0]), [LEFT, RIGHT], [ON, ON])
    joined.send([row(0, ("a", 1, time, time)) for time in range(20)])
    intervals.pop(0)
    joined.restore(1)
    joined.send([row(0, ("a", 1, time, time)) for time in range(20, 40)])

    joined.send([row(1, ("a", 1, 20, 9))], 1)

    assert sorted(as_pair(out) for out in joined.emitted.rows) == [(n, 9) for n in range(40)]


def test_a_clock_set_back_hides_no_new_row_and_revives_no_dropped_one() -> None:
    now = [1_000_000]
    joined = Subtasks(
        lambda: StreamJoin(ON, JoinKind.INNER, 1_600),
        [LEFT, RIGHT],
        [ON, ON],
        now_ms=lambda: now[0],
    )
    joined.send([row(0, ("a", 1, 0, 1)), row(0, ("a", 1, 0, 2))])
    now[0] += 3_000
    joined.send([row(0, ("a", 1, 0, n)) for n in (3, 4, 5)])
    now[0] -= 3_000
    joined.send([row(0, ("a", 1, 0, 6))])

    joined.send([row(1, ("a", 1, 0, 9))], 1)

    assert sorted(as_pair(out) for out in joined.emitted.rows) == [(3, 9), (4, 9), (5, 9), (6, 9)]


def test_rows_whose_keys_share_a_hash_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        join_state, "key_hashes", lambda batch, columns: np.full(len(batch), 7, np.uint64)
    )
    joined = Subtasks(lambda: StreamJoin(ON, JoinKind.FULL), [LEFT, RIGHT], [ON, ON])

    joined.send([row(0, ("a", 1, 0, 1)), row(0, ("b", 1, 0, 2)), row(0, ("b", 2, 0, 3))])
    joined.send([row(1, ("b", 1, 0, 9)), row(1, ("b", 2, 0, 8))], 1)
    joined.send([row(1, ("b", 2, 0, 7))], 1)

    table: Counter[Pair] = Counter()
    for out in joined.emitted.rows:
        table[as_pair(out)] += 1 if out["row_kind"] == "+I" else -1
    assert {pair: n for pair, n in table.items() if n} == {
        (1, None): 1,
        (2, 9): 1,
        (3, 8): 1,
        (3, 7): 1,
    }


def test_a_key_with_very_many_partners_is_joined_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(join_state, "MAX_PAIRS", 10)
    joined = Subtasks(lambda: StreamJoin(ON, JoinKind.INNER), [LEFT, RIGHT], [ON, ON])

    joined.send([row(0, ("a", 1, 0, n)) for n in range(7)])
    joined.send([row(1, ("a", 1, 0, n)) for n in range(5)], 1)

    assert len({as_pair(out) for out in joined.emitted.rows}) == len(joined.emitted.rows) == 35


@pytest.mark.parametrize(
    ("build", "sentence"),
    [
        (lambda: Interval.of(timedelta(1), timedelta(0)), "from 86400000 ms to 0 ms holds nothing"),
        (lambda: JoinKind.of("outer"), "no 'outer' join; choose one of inner, left, right, full"),
        (
            lambda: IntervalJoin(ON, TIMES, Interval(0, 1)).output_schema(
                [LEFT.append(pa.field("join_time", TIME)), RIGHT]
            ),
            "has a column 'join_time'",
        ),
        (
            lambda: StreamJoin(ON, JoinKind.FULL).output_schema(
                [LEFT.append(pa.field("row_kind", pa.string())), RIGHT]
            ),
            "has a column 'row_kind'",
        ),
        (
            lambda: StreamJoin(ON, JoinKind.LEFT, 5).output_schema([LEFT, RIGHT]),
            "left join cannot forget rows",
        ),
        (
            lambda: StreamJoin(ON, JoinKind.INNER, 0).output_schema([LEFT, RIGHT]),
            "time-to-live of 0 ms cannot be",
        ),
        (
            lambda: WindowJoin(ON, TIMES, TumblingWindows(1), JoinKind.FULL).output_schema(
                [LEFT.append(pa.field("window_end", TIME)), RIGHT]
            ),
            "'window_end' would be produced twice",
        ),
    ],
)
def test_what_cannot_be_joined_is_refused(build: Callable[[], object], sentence: str) -> None:
    with pytest.raises(Rejected, match=sentence):
        build()


def subtasks(
    create: Callable[[], Operator],
    rng: random.Random,
    backends: BackendFactory = HashMapBackend,
) -> Subtasks:
    return Subtasks(create, [LEFT, RIGHT], [ON, ON], rng.randint(1, 3), backends=backends)


def pairs_of_interval(
    port: int, arrived: list[Rec], others: list[Rec], interval: Interval
) -> Iterator[Pair]:
    for own in arrived:
        for other in others:
            left, right = (own, other) if port == 0 else (other, own)
            apart = right[2] - left[2]
            if is_match(left, right) and interval.lower_ms <= apart <= interval.upper_ms:
                yield left[3], right[3]


def windows_of(time: int, windows: AlignedWindows) -> list[int]:
    earliest = time - windows.size_ms + 1
    return [start for start in range(earliest, time + 1) if start % windows.slide_ms == 0]
