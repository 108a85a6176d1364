"""The verdict holds each mode to what it promises, and to no more."""

import msgspec
import pytest

from pipelines.domain.guarantees import AT_LEAST_ONCE, AT_MOST_ONCE, EXACTLY_ONCE, NONE
from pipelines.lab.report import broken_promises, comparison, sentences
from tests.unit.lab.reports import COST, FAULTED, mode, report

LOSING = msgspec.structs.replace(FAULTED, lost=3, counted_short=3)
DOUBLING = msgspec.structs.replace(FAULTED, doubled=4, counted_over=4)
FORGETFUL = msgspec.structs.replace(FAULTED, counted_short=900)


@pytest.mark.parametrize(
    ("promise", "run", "told"),
    [
        (AT_MOST_ONCE, LOSING, []),
        (AT_MOST_ONCE, DOUBLING, ["It promises to double nothing, and 4 views came again."]),
        (AT_LEAST_ONCE, LOSING, ["It promises to lose nothing, and 3 views are lost."]),
        (AT_LEAST_ONCE, DOUBLING, []),
        (AT_LEAST_ONCE, FORGETFUL, []),
        (EXACTLY_ONCE, FAULTED, []),
        (
            EXACTLY_ONCE,
            LOSING,
            [
                "It promises to lose nothing, and 3 views are lost.",
                "Its totals are 3 views short and 0 over.",
            ],
        ),
        (EXACTLY_ONCE, FORGETFUL, ["Its totals are 900 views short and 0 over."]),
        (NONE, LOSING, []),
    ],
)
def test_a_mode_breaks_exactly_the_promises_that_it_did_not_keep(promise, run, told) -> None:
    assert broken_promises(promise, run, COST) == told


@pytest.mark.parametrize("change", [{"lost": 1}, {"doubled": 1}])
def test_without_a_fault_no_mode_may_lose_or_double(change: dict[str, int]) -> None:
    spoilt = msgspec.structs.replace(COST, **change)

    assert len(broken_promises(AT_MOST_ONCE, FAULTED, spoilt)) == 1


def test_one_broken_promise_breaks_the_lab() -> None:
    assert report(mode("exactly-once"), mode("acked")).is_kept
    assert not report(mode("exactly-once"), mode("acked", broken=["It lost some."])).is_kept


def test_the_comparison_shows_counts_next_to_the_expected_ones() -> None:
    told = comparison(report(mode("exactly-once"), mode("acked", acker_ids=30_000)))

    assert told.startswith("Following every record through 2 steps took 3.000 acks a record")
    assert "(expected: 1 + 2)" in told
    assert "a checkpoint took 8 barriers (expected: 2 x 2² channels)" in told
    assert "0.004000 a record" in told


@pytest.mark.parametrize("left", ["acked", "exactly-once"])
def test_the_comparison_is_empty_unless_both_modes_ran(left: str) -> None:
    assert comparison(report(mode(left))) == ""


def test_the_text_report_has_a_line_and_a_verdict_for_each_mode() -> None:
    told = sentences(report(mode("exactly-once"), mode("acked", broken=["It lost 3."])))

    assert told[0].split()[:3] == ["mode", "lost", "doubled"]
    assert told[1].startswith("exactly-once ")
    assert len({len(line) for line in told[:3]}) == 1, "columns stand below each other"
    assert "exactly-once promises exactly-once: kept." in told
    assert "acked promises exactly-once: It lost 3." in told


def test_a_report_without_costs_shows_dashes() -> None:
    without = msgspec.structs.replace(mode("exactly-once"), cost=None)

    assert sentences(report(without))[1].split()[-4:] == ["-"] * 4
