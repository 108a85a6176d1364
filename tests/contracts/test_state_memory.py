"""A snapshot and a restore take at most twice the memory of the state itself."""

import pytest

from bench.recovery.state_memory import measure

pytestmark = pytest.mark.slow

STATE_BYTES = 24 << 20  # in rows; large enough that the memory any process needs does not count


def test_a_snapshot_and_a_restore_stay_within_twice_the_state() -> None:
    found = measure("hashmap", STATE_BYTES)

    assert 0 < found["hashmap_snapshot_ratio"] <= 2
    assert 0 < found["hashmap_restore_ratio"] <= 2
