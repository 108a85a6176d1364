"""Exactly the records at fault are found, in few attempts."""

import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import pytest

from pipelines.domain.ids import Uid
from pipelines.domain.origins import RecordOrigin
from pipelines.domain.poison import ERROR_CHARS_MAX, TRACE_CHARS_MAX, Isolation
from pipelines.protocol.repeated_failures import (
    PARTS,
    Deterministic,
    Isolate,
    LimitReached,
    NobodysFault,
    OperatorError,
    PoisonRecords,
    Quarantine,
    RepeatedFailures,
)

TOTAL = 3_000


def at(first: int, last: int, *, split: str = "a") -> RecordOrigin:
    return RecordOrigin(
        source=Uid("events"), subtask=0, split=split, first_offset=first, last_offset=last
    )


def error_at(origin: RecordOrigin, kind: str = "ValueError", message: str = "bad") -> OperatorError:
    return OperatorError(
        operator=Uid("score"),
        error_type=kind,
        message=message,
        origin=origin,
        is_of_the_world=False,
        is_of_record=True,
    )


@pytest.mark.parametrize("seed", range(60))
def test_exactly_the_poison_is_quarantined_across_batches_and_drivers(seed: int) -> None:
    rng = random.Random(seed)
    poison = {rng.randrange(TOTAL): rng.choice(["KeyError", "ValueError"]) for _ in range(4)}
    records, repeated = PoisonRecords(limit=10), repeated_twice()

    attempts = 0
    while (error := attempt(rng, poison, records.isolation)) is not None:
        attempts += 1
        if isinstance(repeated.on_error(error, 0.0), Deterministic):
            finding = records.on_repeated(error, "trace")
            assert isinstance(finding, Isolate | Quarantine)
            if isinstance(finding, Quarantine):
                repeated.on_explained(error)
        repeated.on_attempt_over(1.0)
        if rng.random() < 0.2:  # a new driver knows only the journal
            records, repeated = PoisonRecords(10, records.isolation), repeated_twice()

    assert {record.offset for record in records.isolation.poison} == set(poison)
    assert attempts <= 12 * len(poison)


def test_a_failing_range_is_read_in_parts_and_a_failing_part_in_smaller_ones() -> None:
    records = PoisonRecords(limit=1)

    whole = records.on_repeated(error_at(at(0, 65_535)), "")
    part = records.on_repeated(error_at(at(512, 767)), "")
    record = records.on_repeated(error_at(at(700, 700)), "the trace")

    assert isinstance(whole, Isolate)
    assert whole.range.step == 65_536 // PARTS
    assert isinstance(part, Isolate)
    assert (part.range.first_offset, part.range.last_offset, part.range.step) == (512, 767, 1)
    assert isinstance(record, Quarantine)
    assert record.record.position == (Uid("events"), "a", 700)
    assert (record.record.operator, record.record.error_type) == ("score", "ValueError")
    assert (record.record.error, record.record.trace) == ("bad", "the trace")


def test_a_failure_across_parts_of_an_isolated_range_blames_no_record() -> None:
    records = PoisonRecords(limit=1)
    records.on_repeated(error_at(at(0, 99)), "")

    assert records.on_repeated(error_at(at(10, 20)), "") == NobodysFault()
    assert isinstance(records.on_repeated(error_at(at(0, 99, split="b")), ""), Isolate)


def test_a_quarantined_record_is_not_blamed_for_later_failures() -> None:
    records = PoisonRecords(limit=5)
    records.on_repeated(error_at(at(7, 7)), "")

    assert records.on_repeated(error_at(at(7, 7)), "") == NobodysFault()


def test_the_limit_counts_the_records_that_earlier_drivers_have_found() -> None:
    records = PoisonRecords(limit=2)
    records.on_repeated(error_at(at(1, 1)), "")
    records = PoisonRecords(2, records.isolation)
    records.on_repeated(error_at(at(2, 2)), "")

    assert records.on_repeated(error_at(at(3, 3)), "") == LimitReached(2)
    assert [record.offset for record in records.isolation.poison] == [1, 2]


def test_a_failure_unrelated_to_a_record_blames_no_record() -> None:
    error = replace(error_at(at(7, 7)), is_of_record=False)

    assert PoisonRecords(limit=1).on_repeated(error, "") == NobodysFault()


def test_keeps_the_beginning_of_a_long_error_and_the_end_of_its_trace() -> None:
    error = error_at(at(7, 7), message="begin" + "x" * ERROR_CHARS_MAX)

    found = PoisonRecords(limit=1).on_repeated(error, "y" * TRACE_CHARS_MAX + "bottom")

    assert isinstance(found, Quarantine)
    assert found.record.error == "begin" + "x" * (ERROR_CHARS_MAX - 5)
    assert found.record.trace == "y" * (TRACE_CHARS_MAX - 6) + "bottom"


def repeated_twice() -> RepeatedFailures:
    return RepeatedFailures(tries_min=2, over_min_ms=0.0)


def attempt(
    rng: random.Random, poison: dict[int, str], isolation: Isolation
) -> OperatorError | None:
    """Runs one attempt. Returns its error, or None if it read everything."""
    known = {record.offset for record in isolation.poison}
    for first, last in batches(rng, isolation):
        bad = sorted(n for n in range(first, last + 1) if n in poison and n not in known)
        if bad:
            return error_at(at(first, last), poison[bad[0]], f"{bad[0]} is bad")
    return None


def batches(rng: random.Random, isolation: Isolation) -> Iterator[tuple[int, int]]:
    """Yields random batches from a checkpoint before any poison, cut as the isolation says."""
    edges = {offset for record in isolation.poison for offset in (record.offset, record.offset + 1)}
    for isolated in isolation.ranges:
        edges |= set(range(isolated.first_offset, isolated.last_offset + 1, isolated.step))
        edges.add(isolated.last_offset + 1)
    start = 0
    while start < TOTAL:
        end = min(start + rng.choice([1, 100, 1_000, 2_000]), TOTAL)
        cuts = sorted({start, end, *(edge for edge in edges if start < edge < end)})
        yield from ((a, b - 1) for a, b in pairwise(cuts))
        start = end
