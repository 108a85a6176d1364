"""The alarm by itself: its timer, its state, and its state after a restore."""

from datetime import timedelta

import pytest
from pipelines.stream import Pipeline
from pipelines.testing import OperatorHarness

from rows import BEGIN, after
from shop.flow import shop


@pytest.fixture
def pipeline(parameters: dict[str, str]) -> Pipeline:
    return shop.build(parameters | {"fraud_limit": "100"})


def spending(cents: int, seconds: float) -> dict[str, object]:
    at = after(seconds=seconds)
    return {"order": 1, "customer": "ann", "product": "tea", "euro_cents": cents, "at": at,
            "country": "DE"}  # fmt: skip


def test_an_alarm_is_raised_at_the_end_of_the_minute(pipeline: Pipeline) -> None:
    harness = OperatorHarness(pipeline, "fraud")
    harness.push([spending(60, 1), spending(41, 59), spending(100, 60)])
    harness.watermark(BEGIN + timedelta(seconds=59))
    assert harness.output() == []
    harness.watermark(BEGIN + timedelta(minutes=2))

    expected = {"customer": "ann", "minute": BEGIN, "orders": 2, "euro_cents": 101, "largest": 60}
    assert harness.output() == [expected]
    assert harness.state("minutes.keys") == harness.state("timers.event") == []


def test_a_minute_continues_after_a_restore_at_another_parallelism(pipeline: Pipeline) -> None:
    before = OperatorHarness(pipeline, "fraud")
    before.push([spending(60, 1)])
    harness = OperatorHarness(pipeline, "fraud", restore=before.snapshot(), parallelism=3)
    harness.push([spending(41, 2)])
    harness.watermark(BEGIN + timedelta(minutes=1))

    assert [row["euro_cents"] for row in harness.output()] == [101]
