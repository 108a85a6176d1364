"""A thousand simulated runs, and that their schedules have reached what they are meant to reach.

Covered are: slots and drivers that are killed at any moment; a slot that acts on after it was
replaced; a manifest that is durable when its driver dies before it hears of it; a disk that refuses
writes and manifests; savepoints in between; stopping with a savepoint and cancelling; restores at
another parallelism from any kind of point, over and over; barriers that wait, overtake, or turn;
several checkpoints at once; channels that are full after one batch; diamonds, unions and joins;
sources that end while a checkpoint is under way.
"""

import os
from collections import Counter

import pytest

from tests.simulation.campaign import Verdict, campaign, judge
from tests.simulation.simulated_run import MODES

SEEDS = 1_000
REACHED = ("slot killed", "driver killed", "zombie acted", "restored", "in-flight records kept")


@pytest.mark.slow
@pytest.mark.timeout(1_800)
def test_random_dataflows_keep_every_promise_under_random_faults() -> None:
    verdicts = list(campaign(range(SEEDS), os.cpu_count() or 1))

    bad = [verdict for verdict in verdicts if verdict.problems]
    seen = sum((verdict.seen for verdict in verdicts), Counter[str]())
    assert not bad, "\n".join(map(_told, bad))
    assert {verdict.mode for verdict in verdicts} == set(MODES)
    assert min(seen[what] for what in REACHED) > SEEDS // 50, seen


@pytest.mark.slow
def test_a_seed_replays_a_run() -> None:
    first, second = judge(7, checkers=()), judge(7, checkers=())

    assert first == second
    assert first.trace


def _told(verdict: Verdict) -> str:
    return f"{verdict.problems}\n  python -m tests.simulation --seeds 1 --first {verdict.seed}"
