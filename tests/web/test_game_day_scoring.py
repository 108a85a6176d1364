"""The verdict of a game day, the sentences about it, and the score of many."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from ftdash.gameday.models import Fault, GameDayState, GameDayVerdict
from ftdash.gameday.queries import Scored, scoreboard
from ftdash.gameday.scoring import (
    AUDIT_WITHIN,
    EFFECT_WITHIN,
    RECOVERY_WITHIN,
    AuditFound,
    Measures,
    Seen,
    SinkProof,
    judge,
)
from ftdash.ui.gameday.page import Outcome, findings
from pipelines.domain.status import JobStatus

AT = datetime(2026, 11, 21, tzinfo=UTC)
SECOND = timedelta(seconds=1)
INJECTED = Seen(now=AT + SECOND, status=JobStatus.RUNNING, injected_at=AT)
FAILED = replace(INJECTED, failed_at=AT + SECOND, cause="Slot 1 (pid 7) is gone: killed.")
RUNNING = replace(
    FAILED,
    running_at=AT + 2 * SECOND,
    measures=Measures(
        detection_ms=12.0,
        recovery_ms=300.0,
        phases={"detect": 12.0},
        restored_checkpoint_id=4,
        records_replayed=1_234,
        checkpoints_lost=1,
        late_refused=2,
    ),
)
COMMITTED = replace(RUNNING, committed_checkpoint_id=6)
RIGHT = AuditFound(is_over=True, is_as_recorded=True, proofs=[SinkProof("counts", True, 6)])
PROVEN = replace(COMMITTED, audit=RIGHT)


@pytest.mark.parametrize(
    ("seen", "state", "verdict", "why"),
    [
        (INJECTED, GameDayState.INJECTED, None, "Nothing has failed yet."),
        (FAILED, GameDayState.RECOVERING, None, "Not all subtasks run again yet."),
        (
            RUNNING,
            GameDayState.RECOVERING,
            None,
            "No checkpoint was completed and committed since yet.",
        ),
        (
            replace(COMMITTED, still_frozen=True),
            GameDayState.RECOVERING,
            None,
            "The process that was stopped has not ended yet.",
        ),
        (COMMITTED, GameDayState.AUDITING, None, "The output is being audited."),
        (
            replace(COMMITTED, audit=AuditFound(is_over=False)),
            GameDayState.AUDITING,
            None,
            "The output is being audited.",
        ),
        (
            PROVEN,
            GameDayState.ENDED,
            GameDayVerdict.PASSED,
            "It recovered, and lost nothing and doubled nothing.",
        ),
    ],
)
def test_a_game_day_goes_from_its_fault_to_its_proof(
    seen: Seen, state: GameDayState, verdict: GameDayVerdict | None, why: str
) -> None:
    judgement = judge(seen)

    assert (judgement.state, judgement.verdict, judgement.why) == (state, verdict, why)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"refusal": "Slot 1, process 7, is gone."}, "Slot 1, process 7, is gone."),
        ({"now": AT + EFFECT_WITHIN + SECOND}, "Nothing failed within 2 min 00 s."),
        ({"status": JobStatus.FINISHED}, "The run was FINISHED before the fault took effect."),
    ],
)
def test_a_fault_without_effect_counts_as_not_happened(change: dict[str, Any], why: str) -> None:
    judgement = judge(replace(INJECTED, **change))

    assert (judgement.verdict, judgement.why) == (GameDayVerdict.NOT_HAPPENED, why)


def test_the_verdict_waits_while_the_driver_may_still_act() -> None:
    late = replace(INJECTED, now=AT + EFFECT_WITHIN + SECOND, may_still_happen=True)
    why = "Slot 1 did not come to 'aligning' within 220 s; it is not killed any more."

    assert judge(late).verdict is None
    answered = judge(replace(late, may_still_happen=False, refusal=why))
    assert (answered.verdict, answered.why) == (GameDayVerdict.NOT_HAPPENED, why)


def test_a_fault_that_takes_longer_by_design_is_given_longer() -> None:
    late = replace(INJECTED, now=AT + EFFECT_WITHIN + SECOND, effect_within=2 * EFFECT_WITHIN)

    assert judge(late).verdict is None


@pytest.mark.parametrize(
    ("seen", "why"),
    [
        (replace(FAILED, status=JobStatus.FAILED), "The run did not come back: it failed."),
        (
            replace(FAILED, now=AT + RECOVERY_WITHIN + 2 * SECOND),
            "Not all subtasks run again within 3 min 00 s of the failure.",
        ),
        (
            replace(RUNNING, now=AT + RECOVERY_WITHIN + 2 * SECOND),
            "No checkpoint was completed and committed since within 3 min 00 s of the failure.",
        ),
        (
            replace(PROVEN, audit=replace(RIGHT, is_as_recorded=False, first_difference="Two.")),
            "The output is not as recorded: Two.",
        ),
    ],
)
def test_a_run_that_does_not_recover_or_has_wrong_output_has_failed(seen: Seen, why: str) -> None:
    judgement = judge(seen)

    assert (judgement.verdict, judgement.why) == (GameDayVerdict.FAILED, why)


@pytest.mark.parametrize(
    ("seen", "why"),
    [
        (
            replace(RUNNING, status=JobStatus.CANCELED),
            "The run was CANCELED before it could be judged.",
        ),
        (
            replace(COMMITTED, now=AT + AUDIT_WITHIN + 3 * SECOND),
            "The audit of the output did not end in time.",
        ),
        (
            replace(PROVEN, audit=AuditFound(is_over=True, problem="The journal is gone.")),
            "The output could not be audited: The journal is gone.",
        ),
        (
            replace(PROVEN, audit=replace(RIGHT, proofs=[SinkProof("counts", False, None)])),
            "None of its sinks can be read again, so nothing is proven.",
        ),
        (
            replace(PROVEN, audit=replace(RIGHT, proofs=[SinkProof("counts", True, 5)])),
            "The audit of counts did not come as far as checkpoint 6.",
        ),
        (
            replace(PROVEN, audit=replace(RIGHT, proofs=[SinkProof("counts", True, None)])),
            "The audit of counts did not come as far as checkpoint 6.",
        ),
    ],
)
def test_a_recovery_without_a_proof_is_unproven(seen: Seen, why: str) -> None:
    judgement = judge(seen)

    assert (judgement.verdict, judgement.why) == (GameDayVerdict.UNPROVEN, why)


def test_a_run_that_finished_after_recovery_is_judged_like_a_running_one() -> None:
    assert judge(replace(PROVEN, status=JobStatus.FINISHED)).verdict is GameDayVerdict.PASSED


def test_the_observations_behind_a_verdict_can_be_stored_and_read_again() -> None:
    kept = msgspec.json.decode(msgspec.json.encode(msgspec.to_builtins(PROVEN)))

    assert msgspec.convert(kept, Seen) == PROVEN


def test_findings_report_what_was_measured() -> None:
    unread = SinkProof("mail", False, None)
    seen = replace(PROVEN, audit=replace(RIGHT, proofs=[*RIGHT.proofs, unread]))

    told = findings(seen)

    assert [each.text for each in told] == [
        "It took effect: Slot 1 (pid 7) is gone: killed.",
        "Detected after 12 ms.",
        "All subtasks ran again after 300 ms, from checkpoint 4, with 1,234 records to read again.",
        "Checkpoint 6 was completed and committed since.",
        "1 checkpoint under way did not complete.",
        "The attempt before spoke up late and was refused 2 ×.",
        "counts is as recorded up to checkpoint 6.",
        "mail cannot be read again and was not audited.",
    ]
    assert [each.outcome for each in told if each.outcome is not Outcome.FINE] == [
        Outcome.NOTE,
        Outcome.NOTE,
    ]


def test_a_fault_that_did_not_happen_has_no_findings() -> None:
    assert findings(INJECTED) == []
    assert findings(replace(FAILED, refusal="It is gone.")) == []


@pytest.mark.parametrize(
    ("audit", "outcome", "told"),
    [
        (
            replace(RIGHT, is_as_recorded=False, first_difference="Two.", proofs=[]),
            Outcome.BROKEN,
            "The output is not as recorded: Two.",
        ),
        (
            AuditFound(is_over=True, problem="Gone."),
            Outcome.NOTE,
            "The output could not be audited: Gone.",
        ),
    ],
)
def test_a_difference_or_an_impossible_audit_is_reported_as_such(
    audit: AuditFound, outcome: Outcome, told: str
) -> None:
    last = findings(replace(COMMITTED, audit=audit))[-1]

    assert (last.outcome, last.text) == (outcome, told)


def test_a_recovery_from_the_beginning_and_further_failures_are_reported() -> None:
    seen = replace(RUNNING, measures=Measures(recovery_ms=300.0, further_failures=2))

    texts = [each.text for each in findings(seen)]

    assert "All subtasks ran again after 300 ms, from the beginning." in texts
    assert "2 further failures in the meantime." in texts


def test_the_score_has_a_line_per_fault_with_medians_of_effective_faults() -> None:
    never = scored(GameDayVerdict.NOT_HAPPENED, recovery_ms=5_000.0, detection_ms=5_000.0)
    days = [
        scored(GameDayVerdict.PASSED, recovery_ms=100.0, detection_ms=1.0),
        scored(GameDayVerdict.FAILED, recovery_ms=900.0, detection_ms=3.0, later=3),
        scored(GameDayVerdict.UNPROVEN, recovery_ms=200.0, detection_ms=2.0),
        never,
        scored(GameDayVerdict.PASSED, fault=Fault.KILL_DRIVER, recovery_ms=None, detection_ms=None),
        scored(GameDayVerdict.PASSED, pipeline="a", recovery_ms=5.0, detection_ms=None),
    ]

    first, slot, driver = scoreboard(reversed(days))

    assert (first.pipeline, first.recovery_ms, first.detection_ms) == ("a", 5.0, None)
    assert (slot.fault, driver.fault) == (Fault.KILL_SLOT, Fault.KILL_DRIVER)
    assert (slot.runs, slot.passed, slot.failed, slot.unproven, slot.not_happened) == (
        3,
        1,
        1,
        1,
        1,
    )
    assert (slot.detection_ms, slot.recovery_ms, slot.slowest_recovery_ms) == (2.0, 200.0, 900.0)
    assert (slot.last_verdict, slot.last_at) == (GameDayVerdict.FAILED, AT + 3 * SECOND)
    assert (driver.runs, driver.recovery_ms, driver.slowest_recovery_ms) == (1, None, None)


def test_without_game_days_the_scoreboard_is_empty() -> None:
    assert scoreboard([]) == []


def scored(
    verdict: GameDayVerdict,
    *,
    recovery_ms: float | None,
    detection_ms: float | None,
    fault: Fault = Fault.KILL_SLOT,
    pipeline: str = "flights",
    later: int = 0,
) -> Scored:
    measures = Measures(recovery_ms=recovery_ms, detection_ms=detection_ms)
    return Scored(pipeline, fault, verdict, AT + later * SECOND, measures)
