"""Distributions of measured values: Flink's quantiles, within the values."""

import random
import statistics as library

import pytest

from ftdash.checkpoints.answers import QUANTILES, distribution


@pytest.mark.parametrize("seed", range(20))
def test_quantiles_lie_within_the_values_and_the_middle_is_the_median(seed: int) -> None:
    rng = random.Random(seed)
    values = [rng.uniform(0, 1000) for _ in range(rng.randint(1, 40))]

    found = distribution(values)

    assert found.minimum == min(values)
    assert found.maximum == max(values)
    assert found.average == pytest.approx(library.fmean(values))
    assert found.quantiles[0] == pytest.approx(library.median(values))
    assert list(found.quantiles) == sorted(found.quantiles)
    assert found.quantiles[-1] <= max(values)


def test_quantiles_are_those_that_flink_reports() -> None:
    # Eighteen values: p90 is between the 17th and the 18th, and p95 is already the greatest.
    found = distribution(float(value) for value in range(1, 19))

    assert dict(zip(QUANTILES, found.quantiles, strict=True)) == {
        0.5: 9.5,
        0.9: pytest.approx(17.1),
        0.95: 18,
        0.99: 18,
        0.999: 18,
    }
