"""A failure is deterministic when it keeps coming back at one record, for long enough."""

import random
from dataclasses import replace

import pytest

from pipelines.domain.ids import Uid
from pipelines.domain.origins import Firing, RecordOrigin
from pipelines.domain.settings.parsing import parse_settings
from pipelines.protocol.repeated_failures import (
    HELD_MS,
    REMEMBERED,
    Deterministic,
    OperatorError,
    RepeatedFailures,
    Returning,
    skeleton_of,
)
from pipelines.protocol.restart import RestartAfter
from pipelines.runtime.master.attempt.failures import restart_backoff


def at(first: int, last: int, *, split: str = "a", subtask: int = 0) -> RecordOrigin:
    return RecordOrigin(
        source=Uid("events"), subtask=subtask, split=split, first_offset=first, last_offset=last
    )


ERROR = OperatorError(
    operator=Uid("score"),
    error_type="ValueError",
    message="7 is bad",
    origin=at(10, 19),
    is_of_the_world=False,
)


@pytest.mark.parametrize("seed", range(100))
def test_a_bad_record_is_found_at_the_first_try_after_the_required_time(seed: int) -> None:
    rng = random.Random(seed)
    tries_min, over_min_ms = rng.randint(2, 6), rng.choice([0.0, 500.0, 5_000.0])
    repeated = RepeatedFailures(tries_min=tries_min, over_min_ms=over_min_ms)
    bad, now_ms, first_ms = rng.randint(100, 200), 0.0, None

    for tries in range(1, 200):
        origin = at(bad - rng.randint(0, 50), bad + rng.randint(0, 50))
        first_ms = now_ms if first_ms is None else first_ms
        found = repeated.on_error(replace(ERROR, origin=origin), now_ms)
        repeated.on_attempt_over(1_000.0)

        if tries >= tries_min and now_ms - first_ms >= over_min_ms:
            assert isinstance(found, Deterministic)
            assert isinstance(found.place, RecordOrigin)
            assert found.place.first_offset <= bad <= found.place.last_offset
            assert (found.tries, found.over_ms) == (tries, now_ms - first_ms)
            return
        assert found is None if tries == 1 else isinstance(found, Returning)
        now_ms += rng.uniform(1, 400)
    pytest.fail("it was never found")


@pytest.mark.parametrize("seed", range(100))
def test_blames_only_a_record_that_failed_often_and_long_enough(seed: int) -> None:
    rng = random.Random(seed)
    tries_min, over_min_ms = rng.randint(2, 4), rng.choice([0.0, 2_000.0])
    repeated = RepeatedFailures(tries_min=tries_min, over_min_ms=over_min_ms)
    met: list[tuple[str, float, set[int]]] = []
    now_ms = 0.0

    for _ in range(60):
        first = rng.randint(0, 100)
        last, kind = first + rng.randint(0, 20), rng.choice("xyz")
        met.append((kind, now_ms, set(range(first, last + 1))))
        found = repeated.on_error(replace(ERROR, error_type=kind, origin=at(first, last)), now_ms)
        if isinstance(found, Deterministic) and isinstance(found.place, RecordOrigin):
            times_ms = [
                when_ms
                for known, when_ms, records in met
                if known == kind and found.place.first_offset in records
            ]
            assert len(times_ms) >= tries_min
            assert now_ms - times_ms[0] >= over_min_ms
        now_ms += rng.uniform(1, 300)


def twice() -> RepeatedFailures:
    return RepeatedFailures(tries_min=2, over_min_ms=0.0)


def test_the_second_failure_names_the_records_common_to_both() -> None:
    repeated = twice()
    repeated.on_error(ERROR, 0.0)

    found = repeated.on_error(replace(ERROR, origin=at(15, 30)), 5.0)

    assert found == Deterministic(at(15, 19), 2, 5.0)


@pytest.mark.parametrize(
    "other",
    [
        replace(ERROR, operator=Uid("other")),
        replace(ERROR, error_type="KeyError"),
        replace(ERROR, message="7 is missing"),
        replace(ERROR, origin=at(20, 29)),
        replace(ERROR, origin=at(10, 19, split="b")),
        replace(ERROR, origin=None),
        replace(ERROR, is_of_the_world=True),
    ],
)
def test_another_error_or_place_is_not_a_repetition(other: OperatorError) -> None:
    repeated = twice()
    repeated.on_error(ERROR, 0.0)

    assert repeated.on_error(other, 1.0) is None


@pytest.mark.parametrize(
    "error", [replace(ERROR, is_of_the_world=True), replace(ERROR, origin=None)]
)
def test_temporary_errors_and_errors_without_a_place_never_count(error: OperatorError) -> None:
    repeated = twice()

    assert [repeated.on_error(error, 1_000_000.0 * n) for n in range(5)] == [None] * 5


def test_an_outage_of_a_minute_ends_no_run_with_the_default_settings() -> None:
    """Only time tells an outage from a bad record.

    In both, the client raises the same error at the same record from the first call to the last.
    """
    settings = parse_settings({})
    away = replace(ERROR, error_type="redis.exceptions.ConnectionError", message="Error 111")

    for draw in (-1.0, 0.0, 1.0):
        verdicts = judged_over(60_000.0, away, draw)
        assert verdicts
        assert not any(isinstance(verdict, Deterministic) for verdict in verdicts)
    lasting = judged_over(10 * 60_000.0, away, 0.0)
    assert isinstance(lasting[-1], Deterministic)
    assert lasting[-1].over_ms >= settings.restart.repeated_failure.over_min_ms


def judged_over(outage_ms: float, error: OperatorError, draw: float) -> list[object]:
    """Returns the verdict on each try, with the default restarts; a try takes half a second."""
    settings = parse_settings({})
    backoff = restart_backoff(settings.restart)
    repeated = RepeatedFailures(
        tries_min=settings.restart.repeated_failure.tries_min,
        over_min_ms=settings.restart.repeated_failure.over_min_ms,
    )
    now_ms, verdicts = 0.0, []
    while now_ms < outage_ms:
        verdicts.append(repeated.on_error(error, now_ms))
        repeated.on_attempt_over(500.0)
        if isinstance(verdicts[-1], Deterministic):
            break
        decision = backoff.on_failure(now_ms, draw)
        assert isinstance(decision, RestartAfter)
        now_ms += decision.delay_ms + 500.0
    return verdicts


def test_a_refusal_counts_as_deterministic_without_a_minimum_time() -> None:
    repeated = RepeatedFailures(tries_min=3, over_min_ms=90_000.0)
    refused = replace(ERROR, is_refused=True)

    assert repeated.on_error(refused, 0.0) is None
    assert repeated.on_error(refused, 1.0) == Deterministic(at(10, 19), 2, 1.0)


def test_an_outage_after_an_attempt_passed_the_record_counts_as_new() -> None:
    """The record is read again, as if no checkpoint completed in between."""
    repeated = RepeatedFailures(tries_min=3, over_min_ms=1_000.0)
    for now_ms in range(0, 900, 100):
        repeated.on_error(ERROR, now_ms)
        repeated.on_attempt_over(50.0)

    repeated.on_attempt_over(HELD_MS + 101.0)  # a slot was lost

    assert repeated.on_error(ERROR, 20_000.0) is None


def test_an_attempt_that_ends_before_the_failing_record_proves_nothing() -> None:
    repeated = RepeatedFailures(tries_min=3, over_min_ms=1_000.0)
    for now_ms in (0.0, 500.0):
        repeated.on_error(ERROR, now_ms)
        repeated.on_attempt_over(50.0)

    repeated.on_attempt_over(HELD_MS + 99.0)

    assert isinstance(repeated.on_error(ERROR, 1_000.0), Deterministic)


def test_an_explained_record_is_no_evidence_against_its_neighbours() -> None:
    repeated = RepeatedFailures(tries_min=2, over_min_ms=1_000.0)
    repeated.on_error(ERROR, 0.0)
    repeated.on_error(replace(ERROR, message="another"), 0.0)
    repeated.on_error(ERROR, 1_000.0)
    repeated.on_explained(replace(ERROR, origin=at(12, 12)))

    assert repeated.on_error(replace(ERROR, origin=at(13, 13)), 1_100.0) is None
    other = replace(ERROR, message="another", origin=at(13, 13))
    assert isinstance(repeated.on_error(other, 1_100.0), Deterministic)


def test_a_repeatedly_failing_timer_is_deterministic_regardless_of_the_record() -> None:
    repeated = twice()
    timer = Firing("in a timer of key 7 at time 1970-01-01T00:00:05.000Z", is_one_timer=True)
    another = Firing("in a timer of key 8 at time 1970-01-01T00:00:05.000Z", is_one_timer=True)
    repeated.on_error(replace(ERROR, origin=None, firing=timer), 0.0)

    assert repeated.on_error(replace(ERROR, origin=None, firing=another), 1.0) is None
    assert repeated.on_error(ERROR, 1.0) is None
    found = repeated.on_error(replace(ERROR, origin=at(90, 99), firing=timer), 2.0)
    assert found == Deterministic(timer, 2, 2.0)


def test_a_split_that_another_subtask_reads_after_a_rescale_is_the_same_split() -> None:
    repeated = twice()
    repeated.on_error(ERROR, 0.0)

    found = repeated.on_error(replace(ERROR, origin=at(10, 19, subtask=1)), 1.0)

    assert found == Deterministic(at(10, 19), 2, 1.0)


def test_varying_parts_of_a_message_do_not_hide_the_same_error() -> None:
    first = skeleton_of("row 17 of 'part-1.csv' at 0x7f3a: 2026-11-21 12:00:01 \"x\" failed")
    second = skeleton_of("row 9 of 'part-22.csv' at 0x99: 2026-11-22 12:00:09 \"yy\" failed")

    assert first == second
    assert skeleton_of("no such column a") != skeleton_of("no such column b")


def test_memory_is_bounded_and_forgets_the_oldest_first() -> None:
    repeated = twice()
    for index in range(REMEMBERED + 1):
        repeated.on_error(replace(ERROR, origin=at(100 * index, 100 * index)), 0.0)

    newest = repeated.on_error(replace(ERROR, origin=at(100 * REMEMBERED, 100 * REMEMBERED)), 1.0)
    oldest = repeated.on_error(replace(ERROR, origin=at(0, 0)), 1.0)

    assert (newest is None, oldest is None) == (False, True)
