"""Judges a game day by what the rows say at one moment. Pure.

It has passed if the fault took effect, the run recovered in time and has committed since, and an
audit that began after that found the output as recorded up to there. A fault without an effect in
time did not happen, which is no pass. What could not be proven is not called proven.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from ftdash.formats import age
from ftdash.gameday.models import GameDayState, GameDayVerdict
from pipelines.domain.status import JobStatus

EFFECT_WITHIN = timedelta(seconds=120)
RECOVERY_WITHIN = timedelta(seconds=180)
AUDIT_WITHIN = timedelta(seconds=600)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measures:
    """None: not reached, or not known."""

    detection_ms: float | None = None  # last sign of life to failure known
    recovery_ms: float | None = None  # last sign of life to all subtasks running
    phases: dict[str, float] = field(default_factory=dict)  # domain.status.RecoveryPhase to ms
    restored_checkpoint_id: int | None = None
    records_replayed: int | None = None
    checkpoints_lost: int = 0
    late_refused: int = 0  # messages of older attempts that were refused
    further_failures: int = 0
    watched_again_ms: float | None = None  # from the kill of a worker to the next one's round


@dataclass(frozen=True, slots=True)
class SinkProof:
    sink: str
    is_audited: bool
    checkpoint_id: int | None  # proven up to there, in this run


@dataclass(frozen=True, slots=True)
class AuditFound:
    """An audit begun after the recovery. `is_as_recorded` None: it found nothing, see `problem`."""

    is_over: bool
    is_as_recorded: bool | None = None
    problem: str = ""
    proofs: list[SinkProof] = field(default_factory=list)
    first_difference: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """The facts in the rows. Times are by this machine's clock."""

    now: datetime
    status: JobStatus
    injected_at: datetime
    effect_within: timedelta = EFFECT_WITHIN
    refusal: str = ""  # why the fault was not carried out
    may_still_happen: bool = False  # the driver has the request and has not answered
    failed_at: datetime | None = None  # the first failure since
    cause: str = ""
    running_at: datetime | None = None  # all subtasks ran again, or a worker watched again
    committed_checkpoint_id: int | None = None  # the first completed and committed since
    still_frozen: bool = False  # the stopped process has not ended yet
    awaits_second_kill: bool = False  # a slot was killed; its replacement or the driver follows
    hits_worker: bool = False  # the run is not hit, and must not fail
    harm: str = ""  # what failed although it must not
    measures: Measures = field(default_factory=Measures)
    audit: AuditFound | None = None
    successor: str = ""  # the newer run of the pipeline, which audits now read


@dataclass(frozen=True, slots=True)
class Judgement:
    """`verdict` None: not over yet; `why` then says what it waits for."""

    state: GameDayState
    why: str
    verdict: GameDayVerdict | None = None


def judge(seen: Seen) -> Judgement:
    """1. Did it take effect? 2. Has the run recovered and committed? 3. Is the output right?"""
    if seen.refusal:
        return _ended(GameDayVerdict.NOT_HAPPENED, seen.refusal)
    if seen.failed_at is None:
        return _before_the_effect(seen)
    if seen.harm:
        return _ended(
            GameDayVerdict.FAILED, f"The run failed, which it must not for this: {seen.harm}"
        )
    if not _has_recovered(seen):
        return _before_the_recovery(seen, seen.failed_at)
    return _before_the_proof(seen)


def _before_the_effect(seen: Seen) -> Judgement:
    if seen.status.is_terminal:
        why = f"The run was {seen.status} before the fault took effect."
        return _ended(GameDayVerdict.NOT_HAPPENED, why)
    if seen.now > seen.injected_at + seen.effect_within and not seen.may_still_happen:
        within = age(seen.effect_within / timedelta(milliseconds=1))
        return _ended(GameDayVerdict.NOT_HAPPENED, f"Nothing failed within {within}.")
    return Judgement(GameDayState.INJECTED, "Nothing has failed yet.")


def _has_recovered(seen: Seen) -> bool:
    is_back = seen.running_at is not None and seen.committed_checkpoint_id is not None
    return is_back and not seen.still_frozen and not seen.awaits_second_kill


def _before_the_recovery(seen: Seen, failed_at: datetime) -> Judgement:
    if seen.status is JobStatus.FAILED:
        return _ended(GameDayVerdict.FAILED, "The run did not come back: it failed.")
    if seen.status.is_terminal:
        return _ended(
            GameDayVerdict.UNPROVEN, f"The run was {seen.status} before it could be judged."
        )
    missing = _missing(seen)
    if seen.now > failed_at + RECOVERY_WITHIN:
        within = age(RECOVERY_WITHIN / timedelta(milliseconds=1))
        return _ended(GameDayVerdict.FAILED, f"{missing} within {within} of the failure.")
    return Judgement(GameDayState.RECOVERING, f"{missing} yet.")


def _missing(seen: Seen) -> str:
    if seen.running_at is None:
        return "No worker watches" if seen.hits_worker else "Not all subtasks run again"
    if seen.committed_checkpoint_id is None:
        return "No checkpoint was completed and committed since"
    if seen.awaits_second_kill:
        return "The second kill has not been confirmed"
    return "The process that was stopped has not ended"


def _before_the_proof(seen: Seen) -> Judgement:
    audit = seen.audit
    if audit is None and seen.successor:
        why = f"Run {seen.successor} took its place before its output was audited."
        return _ended(GameDayVerdict.UNPROVEN, why)
    if audit is None or not audit.is_over:
        if seen.running_at is not None and seen.now > seen.running_at + AUDIT_WITHIN:
            return _ended(GameDayVerdict.UNPROVEN, "The audit of the output did not end in time.")
        return Judgement(GameDayState.AUDITING, "The output is being audited.")
    if audit.is_as_recorded is None:
        return _ended(GameDayVerdict.UNPROVEN, f"The output could not be audited: {audit.problem}")
    if not audit.is_as_recorded:
        return _ended(
            GameDayVerdict.FAILED, f"The output is not as recorded: {audit.first_difference}"
        )
    return _proven(audit.proofs, seen.committed_checkpoint_id or 0)


def _proven(proofs: Iterable[SinkProof], needed: int) -> Judgement:
    """Every readable sink must be proven as far as the run has come since the fault."""
    audited = [each for each in proofs if each.is_audited]
    behind = [each.sink for each in audited if (each.checkpoint_id or 0) < needed]
    if not audited:
        return _ended(
            GameDayVerdict.UNPROVEN, "None of its sinks can be read again, so nothing is proven."
        )
    if behind:
        why = f"The audit of {', '.join(behind)} did not come as far as checkpoint {needed}."
        return _ended(GameDayVerdict.UNPROVEN, why)
    return _ended(GameDayVerdict.PASSED, "It recovered, and lost nothing and doubled nothing.")


def _ended(verdict: GameDayVerdict, why: str) -> Judgement:
    return Judgement(GameDayState.ENDED, why, verdict)
