"""How often to checkpoint: the two published formulas, and the advice based on them."""

import random

import pytest

from pipelines.domain.errors import InvariantViolated
from pipelines.domain.planning import (
    Costs,
    FailureRate,
    advice,
    daly_ms,
    lost_ratio,
    young_ms,
)

HOUR = 3_600_000.0


def test_youngs_interval_is_the_root_of_twice_cost_times_time_between_failures() -> None:
    assert young_ms(costs(checkpoint=100, between=2 * HOUR)) == pytest.approx(37_947.3, abs=0.1)


@pytest.mark.parametrize(
    ("cost", "between", "expected"),
    [
        # sqrt(2 d M) (1 + sqrt(d / 2M) / 3 + (d / 2M) / 9) - d, worked out by hand
        (2.0, 100.0, 18.6889),
        (100.0, 200.0, 138.8889),
        (400.0, 200.0, 200.0),
        (500.0, 200.0, 200.0),
    ],
)
def test_dalys_interval_matches_the_paper(cost: float, between: float, expected: float) -> None:
    assert daly_ms(costs(cost, between)) == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize("seed", range(30))
def test_no_other_interval_loses_less_than_youngs(seed: int) -> None:
    rng = random.Random(seed)
    given = costs(rng.uniform(1, 5_000), rng.uniform(0.1, 100) * HOUR, rng.uniform(0, 60_000))
    best = lost_ratio(young_ms(given), given)

    for factor in (0.2, 0.5, 0.9, 1.1, 2.0, 5.0):
        assert lost_ratio(factor * young_ms(given), given) > best


@pytest.mark.parametrize("seed", range(10))
def test_both_formulas_agree_when_failures_are_rare(seed: int) -> None:
    given = costs(random.Random(seed).uniform(1, 100), 1_000 * HOUR)

    assert daly_ms(given) == pytest.approx(young_ms(given), rel=0.01)


def test_the_loss_counts_checkpoints_half_an_interval_and_the_recovery() -> None:
    given = costs(checkpoint=10, between=10_000, recovery=500)

    assert lost_ratio(1_000, given) == pytest.approx(10 / 1_000 + (500 + 500) / 10_000)


def test_the_advice_is_rounded_up_to_the_precision_of_the_measurements() -> None:
    assert advice(costs(100, 2 * HOUR), None).interval_ms == 38_000


def test_the_advised_interval_is_never_shorter_than_a_checkpoint() -> None:
    found = advice(costs(checkpoint=1, between=10_000), duration_ms=4_321)

    assert found.interval_ms == 4_400
    assert "lasts that long" in found.why


def test_a_period_without_failures_bounds_the_failure_rate() -> None:
    never, twice = FailureRate(3 * HOUR, 0), FailureRate(3 * HOUR, 2)

    assert (never.is_bound, never.mean_ms) == (True, HOUR)
    assert (twice.is_bound, twice.mean_ms) == (False, 1.5 * HOUR)


def test_the_advised_interval_for_free_checkpoints_is_their_duration() -> None:
    assert advice(costs(0, HOUR), 80.0).interval_ms == 80
    assert advice(costs(0, HOUR), None).interval_ms == 0


@pytest.mark.parametrize("given", [Costs(-1, HOUR, 0), Costs(1, 0, 0)])
def test_impossible_measurements_are_reported_not_absorbed(given: Costs) -> None:
    with pytest.raises(InvariantViolated):
        young_ms(given)
    with pytest.raises(InvariantViolated):
        daly_ms(given)
    with pytest.raises(InvariantViolated):
        lost_ratio(1, given)


def costs(checkpoint: float, between: float, recovery: float = 0.0) -> Costs:
    return Costs(checkpoint, between, recovery)
