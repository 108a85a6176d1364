"""Session joins compared with plain Python, which forms sessions from both sides' rows."""

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipelines.domain.event_time import MAX_WATERMARK_MS
from pipelines.operators.joining.window_join import JoinKind, SessionJoin
from pipelines.operators.windowing.windows import SessionWindows
from pipelines.state.backend import BackendFactory
from pipelines.state.in_memory.hashmap import HashMapBackend
from tests.contracts.rocksdb_slots import TINY_BYTES, rocksdb_backends
from tests.unit.operators.joined_rows import (
    KEYS,
    LEFT,
    ON,
    RIGHT,
    TIMES,
    Pair,
    Rec,
    as_pair,
    at,
    joined_one_by_one,
    late_of,
    maybe_restore,
    number,
    random_input,
    row,
)
from tests.unit.operators.subtasks import Subtasks
from tests.unit.operators.window_oracle import Result, SessionOracle

GAP_MS = 10
BY_NAME = {repr(key): key for key in KEYS}


@pytest.mark.parametrize("kind", list(JoinKind))
@pytest.mark.parametrize("seed", range(15))
def test_a_session_join_emits_each_pair_once_and_unmatched_rows_by_join_kind(
    seed: int, kind: JoinKind
) -> None:
    check(random.Random(seed), kind)


def test_session_joins_are_the_same_when_state_is_in_rocksdb(tmp_path: Path) -> None:
    with rocksdb_backends(TINY_BYTES) as backends:
        check(random.Random(7), JoinKind.FULL, backends)


def check(rng: random.Random, kind: JoinKind, backends: BackendFactory = HashMapBackend) -> None:
    gap = rng.randint(1, 25)
    joined = session_join(gap, kind, rng.randint(1, 3), backends)
    oracle = SessionOracle(gap, 0, -100)
    joined.advance(-100)

    for port, rows in random_input(rng):
        joined.send([row(port, each) for each in rows], port)
        oracle.add([(repr(each[:2]), each[2], 2 * each[3] + port) for each in rows])
        assert sorted(map(number, late_of(joined, port))) == sorted(x // 2 for *_, x in oracle.late)
        oracle.late, joined.emitted.sides = [], {}
        maybe_restore(joined, rng)
        watermark = oracle.watermark + rng.randint(0, 30)
        joined.advance(watermark)
        expected = [pair for due in oracle.advance(watermark) for pair in pairs_in(due, kind)]
        assert Counter(map(as_pair, joined.emitted.take())) == Counter(expected)
        maybe_restore(joined, rng)

    joined.advance(MAX_WATERMARK_MS)
    last = [pair for due in oracle.advance(MAX_WATERMARK_MS) for pair in pairs_in(due, kind)]
    assert Counter(map(as_pair, joined.emitted.take())) == Counter(last)
    assert joined.state_rows == 0


def test_rows_further_apart_than_the_gap_meet_if_others_lie_between_them() -> None:
    joined = session_join(GAP_MS, JoinKind.INNER)

    joined.send([row(0, ("a", 1, 0, 5)), row(0, ("a", 1, 16, 6))])
    joined.send([row(1, ("a", 1, 8, 7)), row(1, ("a", 1, 27, 8))], 1)
    joined.advance(25)
    [first, second] = joined.emitted.take()
    joined.advance(MAX_WATERMARK_MS)

    assert [as_pair(first), as_pair(second)] == [(5, 7), (6, 7)]
    bounds = [first[f"window_{bound}"] for bound in ("start", "end", "time")]
    assert bounds == [at(0), at(26), at(25)]
    assert joined.emitted.rows == []
    assert joined.counters == {}


def test_a_row_too_late_for_any_session_goes_to_the_late_output_of_its_side() -> None:
    joined = session_join(GAP_MS, JoinKind.FULL)
    joined.send([row(0, ("a", 1, 100, 1))])
    joined.advance(105)

    joined.send([row(1, ("a", 1, 95, 2)), row(1, ("b", 1, 95, 3))], 1)
    joined.advance(MAX_WATERMARK_MS)

    assert [number(each) for each in late_of(joined, 1)] == [3]
    assert [as_pair(each) for each in joined.emitted.rows] == [(1, 2)]
    assert joined.counters == {"late_records": 1}


def session_join(
    gap: int, kind: JoinKind, parallelism: int = 1, backends: BackendFactory = HashMapBackend
) -> Subtasks:
    return Subtasks(
        lambda: SessionJoin(ON, TIMES, SessionWindows(gap), kind),
        [LEFT, RIGHT],
        [ON, ON],
        parallelism,
        backends=backends,
    )


def pairs_in(session: Result, kind: JoinKind) -> Iterator[Pair]:
    """A value of the oracle is a row's number times two, plus one for a right row."""
    key, _, _, values = session
    recs: list[Rec] = [(*BY_NAME[key], 0, value // 2) for value in values]
    lefts = [rec for rec, value in zip(recs, values, strict=True) if value % 2 == 0]
    rights = [rec for rec, value in zip(recs, values, strict=True) if value % 2]
    return joined_one_by_one(lefts, rights, kind)
