"""Pairs against a limit: a steady drift cancels out, and a disturbed pair is repeated."""

from collections.abc import Callable, Iterator

import pytest

from bench.pairs import TRIES_MAX, described, mean_rate, median_interval, run_pairs


def test_the_limit_runs_first_and_last_so_that_a_drift_cancels_out() -> None:
    order: list[str] = []
    speeds: Iterator[float] = iter([100.0, 99.0, 98.0, 97.0, 96.0, 95.0])

    [pair] = run_pairs(1, *logged(order, speeds, "one", "other"), rate=float)

    assert order == ["limit", "one", "other", "other", "one", "limit"]
    ratios = [mean_rate(pair.ours[name]) / mean_rate(pair.limits) for name in ("one", "other")]
    assert ratios == pytest.approx([1.0, 1.0], abs=0.001)
    assert described([pair]) == {
        "limit_spreads": [0.053],
        "repeated_pairs": 0,
        "unsteady_pairs": [],
    }


def test_a_pair_whose_limits_differ_by_over_a_fifth_is_repeated_and_reported(
    capsys: pytest.CaptureFixture[str],
) -> None:
    speeds = iter([100.0, 150.0, 150.0, 130.0, 100.0, 80.0, 80.0, 120.0])

    [pair] = run_pairs(1, *logged([], speeds, "ours"), rate=float)

    assert (pair.limits, pair.ours) == ((100.0, 120.0), {"ours": (80.0, 80.0)})
    assert described([pair]) == {"limit_spreads": [0.2], "repeated_pairs": 1, "unsteady_pairs": []}
    assert capsys.readouterr().err == "pair 0: its two limits differ by 30%; again\n"


def test_without_a_steady_try_the_steadiest_counts_and_is_reported() -> None:
    limits = [(100.0, 200.0), (100.0, 140.0), *[(100.0, 300.0)] * (TRIES_MAX - 2)]
    speeds = iter([speed for before, after in limits for speed in (before, 70.0, 70.0, after)])

    [pair] = run_pairs(1, *logged([], speeds, "ours"), rate=float)

    assert pair.limits == (100.0, 140.0)
    assert described([pair])["unsteady_pairs"] == [0]
    assert described([pair])["repeated_pairs"] == TRIES_MAX - 1


@pytest.mark.parametrize(
    ("values", "low", "high", "confidence"),
    [
        ([0.5], 0.5, 0.5, 0.0),
        ([3.0, 1.0, 2.0], 1.0, 3.0, 0.75),
        ([5.0, 1.0, 2.0, 4.0, 3.0, 6.0], 1.0, 6.0, 0.969),
        ([float(value) for value in range(10)], 1.0, 8.0, 0.979),
    ],
)
def test_the_interval_of_a_median_reports_its_confidence(
    values: list[float], low: float, high: float, confidence: float
) -> None:
    assert median_interval(values) == {"low": low, "high": high, "confidence": confidence}


def logged(
    order: list[str], speeds: Iterator[float], *names: str
) -> tuple[Callable[[], float], dict[str, Callable[[], float]]]:
    def run(name: str) -> Callable[[], float]:
        def once() -> float:
            order.append(name)
            return next(speeds)

        return once

    return run("limit"), {name: run(name) for name in names}
