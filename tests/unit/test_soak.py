"""The pure parts of the soak: its schedule, its checker and how it judges slopes."""

import zlib
from collections import Counter
from collections.abc import Callable
from itertools import islice, pairwise
from pathlib import Path
from random import Random

import pytest

from bench.soak import ends
from bench.soak.answers import (
    AMOUNTS,
    BATCH,
    COUNTS,
    DOCUMENT_BYTES,
    DOCUMENTS,
    KEYS,
    PAIRS,
    REPLACED,
    VISITS,
    WINDOWS,
    Answer,
    Checker,
    Row,
    amount,
    price,
)
from bench.soak.schedule import (
    LENGTHS_S,
    LONG,
    LONG_FROM_S,
    QUIET_S,
    Fault,
    lasting_at_most,
    schedule,
)
from bench.soak.slopes import BOUNDS, Sample, bound_of, percentile, slopes

HOUR_S = 3600.0
ALL = dict.fromkeys(Fault, ("orders", "visits"))
SHORT = [fault for fault in Fault if fault not in LONG]
FED = 5 * BATCH


def test_each_seed_gives_its_own_repeatable_schedule() -> None:
    assert schedule(7, HOUR_S, ALL) == schedule(7, HOUR_S, ALL)
    assert schedule(7, HOUR_S, ALL) != schedule(8, HOUR_S, ALL)


@pytest.mark.parametrize("seed", range(20))
def test_every_kind_of_fault_occurs_before_any_occurs_a_third_time(seed: int) -> None:
    counted = Counter[Fault]()

    for planned in schedule(seed, HOUR_S, dict.fromkeys(SHORT, ("orders",))):
        counted[planned.fault] += 1
        if counted[planned.fault] == 3:
            break

    assert set(counted) == set(SHORT)
    assert max(counted.values()) == 3


@pytest.mark.parametrize("seed", range(20))
def test_in_a_long_soak_a_fault_of_minutes_comes_about_every_ten_minutes(seed: int) -> None:
    planned = [each for each in schedule(seed, 3 * HOUR_S, ALL) if each.fault in LONG]

    assert {each.fault for each in planned} == set(LONG)
    assert all(60 <= each.length_s <= 180 for each in planned)
    began_s = [each.at_s for each in planned]
    assert all(600 <= later - at < 900 for at, later in pairwise([0.0, *began_s]))


def test_a_soak_of_less_than_20_minutes_has_no_fault_of_minutes() -> None:
    assert set(lasting_at_most(LONG_FROM_S - 1, Fault)) == set(SHORT)
    assert set(lasting_at_most(LONG_FROM_S, Fault)) == set(Fault)
    assert lasting_at_most(HOUR_S, ["redis-away-long", "code"]) == [
        Fault.CODE,
        Fault.REDIS_AWAY_LONG,
    ]


@pytest.mark.parametrize("seed", range(20))
def test_faults_do_not_overlap_and_end_in_time(seed: int) -> None:
    quiet_since_s = 0.0

    for planned in schedule(seed, 600.0, ALL):
        assert planned.at_s >= quiet_since_s + QUIET_S[0] - 0.2  # both are rounded
        assert (planned.length_s > 0) == (planned.fault in LENGTHS_S)
        quiet_since_s = planned.at_s + planned.length_s

    assert 300 < quiet_since_s <= 600.1


def test_the_schedule_plans_only_possible_faults_on_allowed_targets() -> None:
    planned = schedule(1, HOUR_S, {Fault.SLOT_KILLED: ("orders",), Fault.SAVEPOINT: ("visits",)})

    found = {(each.fault, each.target) for each in planned}
    assert found == {(Fault.SLOT_KILLED, "orders"), (Fault.SAVEPOINT, "visits")}
    assert schedule(1, HOUR_S, {}) == ()


def test_the_answers_equal_those_of_a_simple_loop() -> None:
    """The loop counts slowly, record by record, as a person would check the answers."""
    visits, totals = Counter[int](), dict[Row, tuple[int, int]]()
    for number in range(FED):
        visits[number // VISITS] += 1
        assert COUNTS.row_of((number,)) == (number, visits[number // VISITS])
        assert AMOUNTS.row_of((number,)) == (number, amount(number))
        assert PAIRS.row_of((number,)) == (number, amount(number), price(number))
        name = (number * 50 // 1000 * 1000, number % KEYS)
        pairs, total = totals.get(name, (0, 0))
        totals[name] = (pairs + 1, total + amount(number) + price(number))

    first, again = 3, DOCUMENTS + 3
    left = zlib.crc32(Random(first).randbytes(DOCUMENT_BYTES))
    assert [REPLACED.row_of((number,)) for number in (first, again)] == [(first, 0), (again, left)]
    assert set(WINDOWS.named(FED)) == set(totals)
    assert {WINDOWS.row_of(name) for name in totals} == {(*n, *v) for n, v in totals.items()}


def right(answer: Answer, total: int = FED) -> list[Row]:
    return [answer.row_of(name) for name in answer.named(total)]


ANSWERS = [AMOUNTS, PAIRS, COUNTS, REPLACED, WINDOWS]


@pytest.mark.parametrize("answer", ANSWERS)
def test_the_checker_accepts_correct_rows_that_arrive_gradually(answer: Answer) -> None:
    rows, checker = right(answer), Checker(answer)
    Random(1).shuffle(rows)

    for shown in range(0, len(rows) + 1, 4):
        checker.look(rows[:shown], FED)
    checker.end(FED)

    assert checker.is_right
    assert checker.samples() == []


Spoil = Callable[[list[Row]], list[Row]]

SPOILED: list[tuple[str, Spoil]] = [
    ("lost", lambda rows: rows[1:]),
    ("doubled", lambda rows: [*rows, rows[3]]),
    ("different", lambda rows: [(*rows[0][:-1], rows[0][-1] + 1), *rows[1:]]),
    ("different", lambda rows: [*rows, tuple(-1 for _ in rows[0])]),
]


@pytest.mark.parametrize(("found", "spoil"), SPOILED)
@pytest.mark.parametrize("answer", ANSWERS)
def test_a_row_that_is_lost_doubled_or_altered_is_noticed(
    answer: Answer, found: str, spoil: Spoil
) -> None:
    checker = Checker(answer)

    checker.look(spoil(right(answer)), FED)
    checker.end(FED)

    counts = {each: len(getattr(checker, each)) for each in ("lost", "doubled", "different")}
    assert counts == {"lost": 0, "doubled": 0, "different": 0, found: 1}
    assert [each.split()[0] for each in checker.samples()] == [found]


def test_a_row_that_disappears_counts_as_lost_even_if_it_returns() -> None:
    rows, checker = right(AMOUNTS), Checker(AMOUNTS)

    checker.look(rows, FED)
    checker.look(rows[:-1], FED)
    checker.look(rows, FED)
    checker.end(FED)

    assert checker.lost == {rows[-1][:1]}


def test_rows_may_disappear_while_output_is_rewound_but_must_return_once() -> None:
    rows, checker = right(AMOUNTS), Checker(AMOUNTS)

    checker.look(rows, FED)
    checker.forget()
    checker.look(rows[:-2], FED)
    checker.look([*rows[:-1], rows[0]], FED)
    checker.end(FED)

    assert checker.lost == {rows[-1][:1]}
    assert checker.doubled == {rows[0][:1]}


def test_a_row_that_appears_before_its_input_is_wrong() -> None:
    checker = Checker(WINDOWS)

    checker.look(right(WINDOWS), FED - BATCH)

    assert {row[0] for row in checker.different} == {(FED - BATCH) * 50}


def test_output_is_complete_once_all_rows_due_before_the_input_ends_are_there() -> None:
    checker = Checker(WINDOWS)

    checker.look(islice(right(WINDOWS), (FED // BATCH - 1) * KEYS), FED)

    assert checker.has_all(FED)
    assert not checker.has_all(FED + BATCH)
    checker.end(FED)
    assert len(checker.lost) == KEYS  # of the last window


def samples(per_hour: float, noise: float = 1.0, *, figure: str = "web.memory_mb") -> list[Sample]:
    """15 minutes, sampled every 5 seconds. Memory grows in the first minute, as at a start."""
    rng, found = Random(1), []
    for at_s in range(0, 900, 5):
        grown = 100 + min(at_s, 60) + per_hour * at_s / HOUR_S + rng.gauss(0, noise)
        found.append(Sample(at_s, {figure: grown, "checkpoints": at_s}))
    return found


def test_the_longest_time_without_a_new_row_counts_only_while_input_comes_and_looks_see_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s, rows = [0.0], list[Row]()
    monkeypatch.setattr(ends.time, "monotonic", lambda: now_s[0])
    line = ends.Line("a", "a", Path(), Checker(AMOUNTS), lambda first, end: None, lambda: rows)
    looks = [(5.0, True), (10.0, True), (40.0, False), (50.0, True), (60.0, False)]
    for at_s, has_row in [*looks, (200.0, True)]:  # the last look had to wait
        now_s[0] = at_s
        line.feed_next()
        if has_row:
            rows.append(AMOUNTS.row_of((len(rows),)))
        line.look()

    now_s[0] = 500.0  # the input has ended
    line.look()

    assert line.still_s == 30.0


@pytest.mark.parametrize(("per_hour", "is_flat"), [(0.0, True), (10.0, True), (100.0, False)])
def test_memory_that_grows_beyond_its_bound_is_not_flat(per_hour: float, is_flat: bool) -> None:
    found = slopes(samples(per_hour), checkpoints="checkpoints", judges=True)["web.memory_mb"]

    assert found.per_hour == pytest.approx(per_hour, abs=5)
    assert found.is_flat is is_flat
    assert found.bound == 20.0


def test_the_slope_ignores_the_warm_up() -> None:
    """The first minute alone has a slope of 3,600 an hour."""
    found = slopes(samples(0.0), checkpoints="checkpoints", judges=True)["web.memory_mb"]

    assert abs(found.per_hour) < 5


def test_a_slope_within_its_error_is_not_judged_as_growth() -> None:
    found = slopes(samples(0.0, noise=100.0), checkpoints="checkpoints", judges=True)

    assert found["web.memory_mb"].is_flat
    assert found["web.memory_mb"].error > 20


def test_the_journal_may_grow_with_each_checkpoint() -> None:
    """The bound is for 3,600 checkpoints an hour."""
    per_hour = bound_of("journal.bytes", 3600) or 0.0

    fits = slopes(
        samples(per_hour * 0.9, figure="journal.bytes"), checkpoints="checkpoints", judges=True
    )
    grows = slopes(
        samples(per_hour * 1.1, figure="journal.bytes"), checkpoints="checkpoints", judges=True
    )

    assert fits["journal.bytes"].is_flat
    assert not grows["journal.bytes"].is_flat


def test_a_short_run_reports_slopes_but_does_not_judge_them() -> None:
    found = slopes(samples(1000.0), checkpoints="checkpoints", judges=False)["web.memory_mb"]

    assert found.bound is None
    assert found.is_flat


def test_every_figure_has_one_bound_with_its_reason() -> None:
    kinds = ("web", "worker", "beat", "projector", "redis", "driver", "slot")
    used = [f"{kind}.{what}" for kind in kinds for what in ("memory_mb", "descriptors", "threads")]
    figures = [*used, "jobs.files", "jobs.bytes", "journal.bytes", "control_plane.rows"]

    assert all(bound_of(figure, 0.0) is not None for figure in [*figures, "checkpoint_ms"])
    assert all(len(bound.reason) > 20 for bound in BOUNDS)


def test_a_percentile_of_no_values_is_none() -> None:
    assert percentile([], 0.5) is None
    assert percentile([1.0, 2.0, 3.0], 0.5) == 2.0
    assert percentile([1.0, 2.0, 3.0], 1.0) == 3.0
