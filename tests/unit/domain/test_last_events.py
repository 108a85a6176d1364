"""The last events before a violated invariant: bounded, and from the host that met it first."""

import pytest

from pipelines.domain.errors import (
    EVENT_CHARS_MAX,
    LAST_EVENTS_MAX,
    InvariantViolated,
    LastEvents,
    check,
)


def test_a_violated_invariant_carries_a_bounded_number_of_events() -> None:
    last = LastEvents()
    for number in range(LAST_EVENTS_MAX):
        with last.during(f"event {number}"):
            pass

    with pytest.raises(InvariantViolated) as violated, last.during("the culprit"):
        check(holds=False, claim="it holds")

    expected = [*(f"event {number}" for number in range(1, LAST_EVENTS_MAX)), "the culprit"]
    assert list(violated.value.last_events) == expected


def test_the_events_of_the_innermost_host_stay() -> None:
    with (
        pytest.raises(InvariantViolated) as violated,
        LastEvents().during("outer"),
        LastEvents().during("inner"),
    ):
        check(holds=False, claim="it holds")

    assert violated.value.last_events == ("inner",)


def test_a_long_event_is_cut_off_and_work_may_note_its_own_events() -> None:
    last = LastEvents()
    last.note("x" * 1_000)

    with pytest.raises(InvariantViolated) as violated, last.taken_along():
        check(holds=False, claim="it holds")

    assert violated.value.last_events == ("x" * EVENT_CHARS_MAX,)
