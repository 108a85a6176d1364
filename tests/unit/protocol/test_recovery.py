"""Recovery: only the newest whole point is restored; each phase comes once, in order."""

import random

import pytest

from pipelines.domain.errors import InvariantViolated
from pipelines.domain.ids import CheckpointId
from pipelines.domain.status import RecoveryPhase
from pipelines.protocol.restart import (
    MILESTONES,
    STEPS,
    Choice,
    NoUsablePoint,
    RecoveryProgress,
    RefusedPoint,
    choose_point,
)
from pipelines.protocol.retention import RetainedPoint


@pytest.mark.parametrize("seed", range(100))
def test_the_newest_whole_point_is_chosen_and_every_newer_one_is_named(seed: int) -> None:
    rng = random.Random(seed)
    points = newest_first(rng.randint(1, 6))
    damaged = {p for p in points if rng.random() < 0.6}
    asked: list[RetainedPoint] = []

    choice = choose_point(points, lambda p: asked.append(p) or problem_if(p in damaged))

    whole = [p for p in points if p not in damaged]
    passed_over = points[: points.index(whole[0])] if whole else points
    refused = tuple(RefusedPoint(p, "damaged") for p in passed_over)
    assert choice == (Choice(whole[0], refused) if whole else NoUsablePoint(refused))
    assert asked == passed_over + whole[:1]  # older points are not even verified


def test_without_any_point_a_run_starts_from_the_beginning() -> None:
    assert choose_point([], lambda _: "never asked") == Choice(None, ())


def test_a_run_whose_points_are_all_damaged_does_not_start_afresh() -> None:
    assert isinstance(choose_point(newest_first(2), lambda _: "damaged"), NoUsablePoint)


def test_without_fallback_a_damaged_newest_point_leaves_no_usable_one() -> None:
    newest, *older = newest_first(3)
    asked: list[RetainedPoint] = []

    choice = choose_point(
        [newest, *older],
        lambda p: asked.append(p) or problem_if(p is newest),
        may_fall_back=False,
    )

    assert choice == NoUsablePoint((RefusedPoint(newest, "damaged"),))
    assert asked == [newest]  # older points are not even verified


@pytest.mark.parametrize("seed", range(50))
def test_steps_add_up_and_milestones_count_from_the_last_step(seed: int) -> None:
    rng = random.Random(seed)
    progress = RecoveryProgress(1000.0)
    moments = sorted(rng.uniform(1000, 2000) for _ in STEPS)  # no backoff in between

    durations = [
        progress.on_reached(step, now_ms) for step, now_ms in zip(STEPS, moments, strict=True)
    ]
    milestones = rng.sample(sorted(MILESTONES), len(MILESTONES))
    waits = [progress.on_reached(phase, moments[-1] + 10 * i) for i, phase in enumerate(milestones)]

    assert sum(durations) == pytest.approx(moments[-1] - 1000)
    assert min(durations) >= 0
    assert waits == pytest.approx([0.0, 10.0, 20.0])


BACKOFF_AT = STEPS.index(RecoveryPhase.BACKOFF)


@pytest.mark.parametrize("seed", range(100))
def test_deliberate_waits_count_as_backoff_and_in_no_other_step(seed: int) -> None:
    rng = random.Random(seed)
    progress, now_ms = RecoveryProgress(0.0), 0.0
    spent, waited_ms = [], 0.0

    for step in STEPS:
        for _ in range(rng.randint(0, 2) if STEPS.index(step) <= BACKOFF_AT else 0):
            progress.on_wait(now_ms)
            progress.on_wait(now_ms + 0.1)  # already waiting
            pause_ms = rng.uniform(1, 40_000)
            now_ms, waited_ms = now_ms + pause_ms, waited_ms + pause_ms
            progress.on_waited(now_ms)
            progress.on_waited(now_ms + 5)  # already over
        if step is not RecoveryPhase.BACKOFF:
            now_ms += (worked_ms := rng.uniform(0, 100))
            spent.append((progress.on_reached(step, now_ms), worked_ms))
        else:
            spent.append((progress.on_reached(step, now_ms), waited_ms))
        progress.validate_state()

    for measured_ms, expected_ms in spent:
        assert measured_ms == pytest.approx(expected_ms)


@pytest.mark.parametrize("reached", range(len(STEPS) + 1))
def test_every_unexpected_phase_is_refused_and_changes_nothing(reached: int) -> None:
    progress = progress_after(*STEPS[:reached])
    expected = {STEPS[reached]} if reached < len(STEPS) else set(MILESTONES)

    for phase in set(RecoveryPhase) - expected:
        assert not progress.expects(phase)
        with pytest.raises(InvariantViolated):
            progress.on_reached(phase, 99.0)

    assert {phase for phase in RecoveryPhase if progress.expects(phase)} == expected
    assert progress.is_running == (reached == len(STEPS))


@pytest.mark.parametrize("milestone", sorted(MILESTONES))
def test_a_milestone_is_reached_once(milestone: RecoveryPhase) -> None:
    progress = progress_after(*STEPS, milestone)

    assert not progress.expects(milestone)
    with pytest.raises(InvariantViolated):
        progress.on_reached(milestone, 99.0)


def progress_after(*phases: RecoveryPhase) -> RecoveryProgress:
    progress = RecoveryProgress(0.0)
    for phase in phases:
        progress.on_reached(phase, 1.0)
    return progress


def newest_first(count: int) -> list[RetainedPoint]:
    return [RetainedPoint(CheckpointId(n), f"/points/{n}") for n in range(count, 0, -1)]


def problem_if(damaged: bool) -> str | None:
    return "damaged" if damaged else None
