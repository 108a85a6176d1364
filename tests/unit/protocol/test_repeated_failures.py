"""A failure is deterministic when its fingerprint returns at a record it was met at before."""

import random
from dataclasses import replace

import pytest

from pipelines.domain.ids import Uid
from pipelines.domain.origin import RecordOrigin
from pipelines.protocol.repeated_failures import (
    REMEMBERED,
    Deterministic,
    OperatorError,
    RepeatedFailures,
    skeleton_of,
)


def at(first: int, last: int, *, split: str = "a", subtask: int = 0) -> RecordOrigin:
    return RecordOrigin(
        source=Uid("events"), subtask=subtask, split=split, first_offset=first, last_offset=last
    )


ERROR = OperatorError(Uid("score"), "ValueError", "7 is bad", at(10, 19), is_of_the_world=False)


@pytest.mark.parametrize("seed", range(100))
def test_it_is_found_exactly_when_a_known_error_meets_a_known_place(seed: int) -> None:
    rng = random.Random(seed)
    repeated = RepeatedFailures()
    met: list[tuple[str, set[int]]] = []

    for _ in range(20):
        first = rng.randint(0, 200)
        last, kind = first + rng.randint(0, 20), rng.choice("xyz")
        records = set(range(first, last + 1))
        shared = [r for k, known in met if k == kind and (r := known & records)]
        found = repeated.on_error(replace(ERROR, error_type=kind, origin=at(first, last)))
        assert found == (Deterministic(at(min(shared[0]), max(shared[0]))) if shared else None)
        if found is None:
            met.append((kind, records))


def test_the_second_time_names_the_records_that_both_times_share() -> None:
    repeated = RepeatedFailures()
    repeated.on_error(ERROR)

    assert repeated.on_error(replace(ERROR, origin=at(15, 30))) == Deterministic(at(15, 19))


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
def test_another_error_or_another_place_is_not_the_same(other: OperatorError) -> None:
    repeated = RepeatedFailures()
    repeated.on_error(ERROR)

    assert repeated.on_error(other) is None


@pytest.mark.parametrize(
    "error", [replace(ERROR, is_of_the_world=True), replace(ERROR, origin=None)]
)
def test_what_may_pass_or_has_no_place_never_counts(error: OperatorError) -> None:
    repeated = RepeatedFailures()

    assert [repeated.on_error(error) for _ in range(5)] == [None] * 5


def test_a_split_that_another_subtask_reads_after_a_rescale_is_the_same_split() -> None:
    repeated = RepeatedFailures()
    repeated.on_error(ERROR)

    found = repeated.on_error(replace(ERROR, origin=at(10, 19, subtask=1)))

    assert found == Deterministic(at(10, 19))


def test_what_varies_in_a_message_does_not_hide_that_it_is_the_same() -> None:
    first = skeleton_of("row 17 of 'part-1.csv' at 0x7f3a: 2026-11-21 12:00:01 \"x\" failed")
    second = skeleton_of("row 9 of 'part-22.csv' at 0x99: 2026-11-22 12:00:09 \"yy\" failed")

    assert first == second
    assert skeleton_of("no such column a") != skeleton_of("no such column b")


def test_memory_is_bounded_and_forgets_the_oldest_first() -> None:
    repeated = RepeatedFailures()
    for index in range(REMEMBERED + 1):
        repeated.on_error(replace(ERROR, origin=at(100 * index, 100 * index)))

    newest = repeated.on_error(replace(ERROR, origin=at(100 * REMEMBERED, 100 * REMEMBERED)))
    oldest = repeated.on_error(replace(ERROR, origin=at(0, 0)))

    assert (newest is None, oldest is None) == (False, True)
