"""The first thing an operator should look at: the most pressing concern of each pipeline."""

import random
from typing import Any

import pytest

from ftdash.jobs.answers import ShownState
from ftdash.runs.fleet_answers import Concern, RunPulse
from ftdash.runs.queries.fleet import Signs, Transaction, attention, rank


@pytest.mark.parametrize(
    ("signs", "concern", "text"),
    [
        ({"state": ShownState.FAILED, "reason": "Broken."}, Concern.FAILED, "Broken."),
        ({"state": ShownState.FAILED}, Concern.FAILED, "The pipeline is FAILED."),
        ({"state": ShownState.STALE, "reason": "Silent."}, Concern.SILENT, "Silent."),
        ({"state": ShownState.UNKNOWN}, Concern.SILENT, "The pipeline is UNKNOWN."),
        (
            {"state": ShownState.STALE, "reason": "It is an hour ahead.", "is_clock_off": True},
            Concern.CLOCK_OFF,
            "It is an hour ahead.",
        ),
        (
            {"state": ShownState.STALE, "reason": "It is gone.", "is_lost": True},
            Concern.DRIVER_LOST,
            "It is gone.",
        ),
        (
            {"since_committed_s": 31.0, "transaction": Transaction("orders", 60.0)},
            Concern.TRANSACTION_EXPIRES,
            "A transaction of orders may have been open for 31 s. Its target gives it up after"
            " 1 min 00 s, and its output is lost then.",
        ),
        (
            {"since_committed_s": None, "transaction": Transaction("orders", 60.0)},
            Concern.TRANSACTION_EXPIRES,
            "A transaction of orders may have been open for 15 min 00 s. Its target gives it up"
            " after 1 min 00 s, and its output is lost then.",
        ),
        ({"since_committed_s": 29.0, "transaction": Transaction("a", 60.0)}, Concern.NONE, ""),
        (
            {"since_committed_s": 53.0, "transaction": Transaction("a", 60.0, 45.0)},
            Concern.NONE,
            "",
        ),
        (
            {"state": ShownState.RESTARTING, "reason": "Slot 1 died."},
            Concern.RECOVERING,
            "It is recovering: Slot 1 died.",
        ),
        (
            {"state": ShownState.INITIALIZING, "reason": "2 of 4 slots.", "in_state_s": 61.0},
            Concern.STUCK,
            "It has been INITIALIZING for 1 min 01 s: 2 of 4 slots.",
        ),
        (
            {"state": ShownState.CANCELLING, "in_state_s": 90.0},
            Concern.STUCK,
            "It has been CANCELLING for 1 min 30 s.",
        ),
        ({"state": ShownState.FAILING}, Concern.RECOVERING, "It is recovering."),
        (
            {"since_completed_s": 61.0},
            Concern.NO_CHECKPOINT,
            "No checkpoint has completed for 1 min 01 s.",
        ),
        (
            {"since_completed_s": None, "since_started_s": 70.0},
            Concern.NO_CHECKPOINT,
            "No checkpoint has completed since it started 1 min 10 s ago.",
        ),
        (
            {"since_committed_s": 75.0},
            Concern.NO_OUTPUT,
            "Checkpoints complete, but no output was committed for 1 min 15 s.",
        ),
        (
            {"pulse": {"recent_recovery_count": 3}},
            Concern.UNSTABLE,
            "It recovered 3 times within the last 10 minutes.",
        ),
        (
            {"pulse": {"failed_in_row": 2, "failed_why": "Checkpoint was declined."}},
            Concern.CHECKPOINTS_FAIL,
            "The last 2 checkpoints failed: Checkpoint was declined.",
        ),
        (
            {"pulse": {"failed_in_row": 1, "failed_why": "Checkpoint was declined."}},
            Concern.CHECKPOINTS_FAIL,
            "The last checkpoint failed: Checkpoint was declined.",
        ),
        (
            {"pulse": {"backpressured_operator": "join", "backpressured_ratio": 0.5}},
            Concern.BACKPRESSURED,
            "join is backpressured 50 % of the time.",
        ),
    ],
)
def test_each_concern_is_explained_in_a_sentence(
    signs: dict[str, Any], concern: Concern, text: str
) -> None:
    found = attention(signs_with(**signs))

    assert (found.concern, found.text) == (concern, text)


@pytest.mark.parametrize(
    "signs",
    [
        {},
        {"pulse": None},
        {"since_completed_s": 60.0, "since_committed_s": 60.0},
        {"since_completed_s": None, "since_started_s": 60.0},
        {"since_completed_s": None, "since_started_s": 900.0, "is_periodic": False},
        {"since_completed_s": 900.0, "since_committed_s": 900.0, "is_periodic": False},
        {"since_completed_s": None, "since_started_s": None},
        {"since_completed_s": 99.0, "late_after_s": 100.0},
        {"pulse": {"recent_recovery_count": 2}},
        {"pulse": {"backpressured_operator": "join", "backpressured_ratio": 0.49}},
        {"state": ShownState.FINISHED, "since_completed_s": 900.0},
        {"state": ShownState.CANCELED, "pulse": {"failed_in_row": 9}},
        {"state": ShownState.NEVER_STARTED},
        {"state": ShownState.CREATED, "in_state_s": 60.0},
        {"state": ShownState.FINISHED, "in_state_s": 900.0},
    ],
)
def test_a_healthy_pipeline_needs_no_attention(signs: dict[str, Any]) -> None:
    found = attention(signs_with(**signs))

    assert (found.concern, found.text) == (Concern.NONE, "")


@pytest.mark.parametrize("seed", range(50))
def test_the_most_pressing_of_several_concerns_is_named(seed: int) -> None:
    draws = random.Random(seed)
    alone: list[dict[str, Any]] = [
        {"since_completed_s": 61.0},
        {"since_committed_s": 75.0},
        {"pulse": {"recent_recovery_count": 3}},
        {"pulse": {"failed_in_row": 2}},
        {"pulse": {"backpressured_operator": "join", "backpressured_ratio": 0.9}},
    ]
    chosen = draws.sample(alone, draws.randint(2, 5))
    pulse: dict[str, Any] = {}
    together: dict[str, Any] = {}
    for each in chosen:
        pulse |= each.get("pulse", {})
        together |= each

    found = attention(signs_with(**{**together, "pulse": pulse}))

    concerns = [attention(signs_with(**each)).concern for each in chosen]
    assert found.concern == min(concerns, key=lambda concern: rank(concern, ""))


def test_pipelines_are_ordered_by_concern_and_then_by_name() -> None:
    ranked = sorted(
        [(Concern.NONE, "a"), (Concern.SILENT, "z"), (Concern.SILENT, "b")], key=by_rank
    )

    assert ranked == [(Concern.SILENT, "b"), (Concern.SILENT, "z"), (Concern.NONE, "a")]


def by_rank(each: tuple[Concern, str]) -> tuple[int, str]:
    return rank(*each)


def signs_with(pulse: dict[str, Any] | None = {}, **signs: Any) -> Signs:  # noqa: B006
    values: dict[str, Any] = {
        "state": ShownState.RUNNING,
        "reason": "",
        "since_completed_s": 1.0,
        "since_committed_s": 1.0,
        "since_started_s": 900.0,
        "in_state_s": 0.0,
        "late_after_s": 60.0,
        "is_periodic": True,
        **signs,
    }
    return Signs(**values, pulse=None if pulse is None else pulse_with(**pulse))


def pulse_with(**columns: Any) -> RunPulse:
    values: dict[str, Any] = {
        "durations_ms": [80.0],
        "failed_in_row": 0,
        "failed_why": "",
        "backpressured_operator": None,
        "backpressured_ratio": None,
        "recent_recovery_count": 0,
        "records_to_replay": 0,
        "to_recover_ms": None,
        "recovery_count": 0,
    }
    return RunPulse(**{**values, **columns})
