"""The names that an author's tests import: runs with kills, and one operator by itself.

    def test_totals_survive_kills() -> None:
        assert_exactly_once(shop, {"orders": ORDERS}, kills=7)

Everything runs in the process of the test, in simulated time, so a seed gives the same run each
time.
"""

from pipelines.testing.exactly_once import Kill, KilledRun, assert_exactly_once, run_with_kills
from pipelines.testing.operators import OperatorHarness, OperatorSnapshot

__all__ = [
    "Kill",
    "KilledRun",
    "OperatorHarness",
    "OperatorSnapshot",
    "assert_exactly_once",
    "run_with_kills",
]
