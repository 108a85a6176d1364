"""The only reader of game days: their rows, the score over all, and what one has shown so far.

The score has one line for each fault in each pipeline. `scoring.judge` decides about what one game
day has shown; this module decides nothing.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from statistics import median
from typing import Any

import msgspec
from django.db.models import QuerySet
from django.utils import timezone

from ftdash.checkpoints.models import COMPLETE, Audit, Checkpoint, CheckpointStatus, SubtaskPhase
from ftdash.formats import duration
from ftdash.gameday.injection import KILLED_TWICE, RECOVERY_MOMENTS, SLOW_BY, effect_within
from ftdash.gameday.models import Fault, GameDay, GameDayState, GameDayVerdict
from ftdash.gameday.scoring import EFFECT_WITHIN, AuditFound, Measures, Seen, SinkProof
from ftdash.jobs.models import (
    OPEN_PHASES,
    Failure,
    Recovery,
    Request,
    RequestPhase,
    Run,
    ZombieRefusal,
)
from ftdash.requests.storing import problem_with
from ftdash.runs.queries.freshness import to_running_ms
from ftdash.runs.queries.pipelines import newest_runs
from pipelines.bus.lease import Owner
from pipelines.domain.commands import KillSlot
from pipelines.domain.status import JobStatus, RecoveryPhase


@dataclass(frozen=True, slots=True)
class Scored:
    """One game day that has ended."""

    pipeline: str
    fault: Fault
    verdict: GameDayVerdict
    ended_at: datetime
    measures: Measures


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """Medians are over the game days whose fault took effect; None: there are none."""

    pipeline: str
    fault: Fault
    passed: int
    failed: int
    unproven: int
    not_happened: int
    detection_ms: float | None
    recovery_ms: float | None
    slowest_recovery_ms: float | None
    last_at: datetime
    last_verdict: GameDayVerdict

    @property
    def runs(self) -> int:
        """The number of game days whose fault took effect."""
        return self.passed + self.failed + self.unproven


def scoreboard(days: Iterable[Scored]) -> list[Score]:
    """Returns the scores by pipeline, then in the order in which the faults are declared."""
    groups: dict[tuple[str, Fault], list[Scored]] = {}
    for day in days:
        groups.setdefault((day.pipeline, day.fault), []).append(day)
    order = list(Fault)
    keys = sorted(groups, key=lambda key: (key[0], order.index(key[1])))
    return [_score(*key, groups[key]) for key in keys]


def _score(pipeline: str, fault: Fault, days: list[Scored]) -> Score:
    counts = {verdict: sum(day.verdict is verdict for day in days) for verdict in GameDayVerdict}
    took_effect = [day.measures for day in days if day.verdict is not GameDayVerdict.NOT_HAPPENED]
    detections = [each.detection_ms for each in took_effect if each.detection_ms is not None]
    recoveries = [each.recovery_ms for each in took_effect if each.recovery_ms is not None]
    last = max(days, key=lambda day: day.ended_at)
    return Score(
        pipeline=pipeline,
        fault=fault,
        passed=counts[GameDayVerdict.PASSED],
        failed=counts[GameDayVerdict.FAILED],
        unproven=counts[GameDayVerdict.UNPROVEN],
        not_happened=counts[GameDayVerdict.NOT_HAPPENED],
        detection_ms=median(detections) if detections else None,
        recovery_ms=median(recoveries) if recoveries else None,
        slowest_recovery_ms=max(recoveries, default=None),
        last_at=last.ended_at,
        last_verdict=last.verdict,
    )


DAYS_MAX = 30
SCORED_MAX = 2_000
"""The score counts this many game days: the newest that have ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GameDayView:
    key: int
    pipeline: str
    run_id: str
    fault: Fault
    fault_label: str
    slot: int | None
    requester: str
    reason: str
    state: GameDayState
    state_label: str
    why: str
    verdict: GameDayVerdict | None
    verdict_label: str
    asked_at: datetime
    injected_at: datetime | None
    ended_at: datetime | None
    audit_key: int | None
    seen: Seen | None  # None: the fault has not been carried out yet

    @property
    def is_under_way(self) -> bool:
        return self.verdict is None

    @property
    def measures(self) -> Measures:
        return self.seen.measures if self.seen else Measures()


@dataclass(frozen=True, slots=True)
class Candidate:
    """A pipeline, and why it cannot be hit now; empty means that it can."""

    name: str
    why_not: str


@dataclass(frozen=True, slots=True)
class GameDays:
    """`days`: newest first."""

    now: datetime
    days: list[GameDayView]
    scores: list[Score]

    @property
    def under_way(self) -> list[GameDayView]:
        return [day for day in self.days if day.is_under_way]


def game_days(pipeline: str | None = None, limit: int = DAYS_MAX) -> GameDays:
    rows = GameDay.objects.select_related("pipeline", "run__pipeline", "audit")
    if pipeline is not None:
        rows = rows.filter(pipeline__name=pipeline)
    newest = rows.order_by("-pk")
    return GameDays(
        now=timezone.now(),
        days=[_view(row) for row in newest[:limit]],
        scores=scoreboard(_scored(newest)),
    )


def candidates() -> list[Candidate]:
    """Returns every pipeline by name, with as many queries for a thousand as for one."""
    problems = ((row, problem_with(KillSlot, row, run)) for row, run in newest_runs())
    return [Candidate(row.name, problem) for row, problem in problems]


def game_day(key: int) -> GameDayView | None:
    rows = GameDay.objects.select_related("pipeline", "run__pipeline", "audit")
    row = rows.filter(pk=key).first()
    return _view(row) if row else None


def _scored(newest: QuerySet[GameDay]) -> list[Scored]:
    over = newest.filter(state=GameDayState.ENDED)[:SCORED_MAX]
    return [
        Scored(
            pipeline=row.pipeline.name,
            fault=Fault(row.fault),
            verdict=GameDayVerdict(row.verdict),
            ended_at=row.ended_at or row.asked_at,
            measures=msgspec.convert(row.seen, Seen).measures,
        )
        for row in over
    ]


def _view(row: GameDay) -> GameDayView:
    return GameDayView(
        key=row.pk,
        pipeline=row.pipeline.name,
        run_id=row.run.run_id,
        fault=Fault(row.fault),
        fault_label=str(Fault(row.fault).label),
        slot=row.slot,
        requester=row.requester,
        reason=row.reason,
        state=GameDayState(row.state),
        state_label=str(GameDayState(row.state).label),
        why=row.why,
        verdict=GameDayVerdict(row.verdict) if row.verdict else None,
        verdict_label=str(GameDayVerdict(row.verdict).label) if row.verdict else "",
        asked_at=row.asked_at,
        injected_at=row.injected_at,
        ended_at=row.ended_at,
        audit_key=row.audit_id,
        seen=_seen(row),
    )


def _seen(row: GameDay) -> Seen | None:
    if row.seen is not None:
        return msgspec.convert(row.seen, Seen)
    return seen(row) if row.injected_at is not None else None


REFUSED = (RequestPhase.FAILED, RequestPhase.REJECTED)
NOT_AUDITED = "not audited"
"""The value of `pipelines.audit.report.Covers.NOTHING`; that module loads what only audits need."""


@dataclass(frozen=True, slots=True)
class _Survived:
    """The effect of a fault on a run that continued."""

    at: datetime
    cause: str


def seen(day: GameDay) -> Seen:
    """Reads the facts about a game day whose fault was due at `injected_at`."""
    if day.fault == Fault.KILL_WORKER:
        return _seen_of_worker(day)
    run = day.run
    injected_at = day.injected_at or day.asked_at
    failures = Failure.objects.filter(
        run=run, sequence__gt=day.before_sequence, at__gte=injected_at
    ).order_by("sequence")
    lost = Checkpoint.objects.filter(
        run=run,
        status=CheckpointStatus.FAILED,
        attempt=day.before_attempt,
        failed_at__gte=injected_at,
    ).order_by("failed_at")
    first = failures.first()
    survived = _survived(day, lost) if first is None else None
    recoveries = _recoveries(run, first)
    running_at = _running_at(recoveries, survived)
    has_second = day.fault in (*KILLED_TWICE, *RECOVERY_MOMENTS)
    return Seen(
        now=timezone.now(),
        status=JobStatus(run.status),
        injected_at=injected_at,
        effect_within=effect_within(day),
        refusal=day.refusal or _refusal_of(day.request_id),
        may_still_happen=_is_open(day.request_id),
        failed_at=first.at if first else survived.at if survived else None,
        cause=first.cause if first else survived.cause if survived else "",
        running_at=running_at,
        committed_checkpoint_id=_first_committed(run, running_at) if running_at else None,
        still_frozen=_is_frozen(day),
        awaits_second_kill=has_second and _is_open(day.request_id),
        measures=replace(
            _measures(recoveries, survived, injected_at),
            checkpoints_lost=lost.count(),
            late_refused=ZombieRefusal.objects.filter(
                run=run, sequence__gt=day.before_sequence
            ).count(),
            further_failures=max(0, failures.count() - (2 if day.fault in KILLED_TWICE else 1)),
        ),
        audit=_audit(day.audit, run) if day.audit else None,
        successor=_successor(run),
    )


def _successor(run: Run) -> str:
    newer = Run.objects.filter(pipeline=run.pipeline_id, number__gt=run.number).order_by("-number")
    return newer.values_list("run_id", flat=True).first() or ""


def _seen_of_worker(day: GameDay) -> Seen:
    """The fault does not hit the run, which must continue as if nothing had happened."""
    run, injected_at, killed = day.run, day.injected_at or day.asked_at, _killed_worker(day)
    harmed = Failure.objects.filter(run=run, sequence__gt=day.before_sequence, at__gte=injected_at)
    first = harmed.order_by("sequence").first()
    watched_again = (day.watched_at - injected_at) if day.watched_at else None
    return Seen(
        now=timezone.now(),
        status=JobStatus(run.status),
        injected_at=injected_at,
        effect_within=EFFECT_WITHIN,
        refusal=day.refusal,
        failed_at=injected_at if killed else None,
        cause=killed,
        running_at=day.watched_at,
        committed_checkpoint_id=_first_committed(run, day.watched_at) if day.watched_at else None,
        hits_worker=True,
        harm=first.cause if first else "",
        measures=Measures(
            watched_again_ms=watched_again / timedelta(milliseconds=1) if watched_again else None
        ),
        audit=_audit(day.audit, run) if day.audit else None,
        successor=_successor(run),
    )


def _killed_worker(day: GameDay) -> str:
    """Returns why the worker counts as killed, or an empty string while it lives."""
    if day.held is None:
        return ""
    worker = msgspec.convert(day.held, Owner)
    return "" if worker.is_alive else f"Worker process {worker.pid} is gone."


def _survived(day: GameDay, lost: QuerySet[Checkpoint]) -> _Survived | None:
    """Returns the effect of a storage fault that shows although the run has not failed."""
    if day.fault not in (Fault.FULL_DISK, Fault.SLOW_STORAGE):
        return None
    failed = lost.first()
    if failed is not None and failed.failed_at is not None:
        why = failed.message or failed.reason_text
        cause = f"Checkpoint {failed.checkpoint_id} failed, and the run went on: {why}"
        return _Survived(failed.failed_at, cause)
    return _slowed(day) if day.fault == Fault.SLOW_STORAGE else None


def _slowed(day: GameDay) -> _Survived | None:
    phases = SubtaskPhase.objects.filter(
        checkpoint__run=day.run,
        checkpoint__trigger_at__gte=day.injected_at or day.asked_at,
        subtask=day.slot or 0,
        async_ms__gte=SLOW_BY / timedelta(milliseconds=1),
    )
    part = phases.select_related("checkpoint").order_by("checkpoint__trigger_at", "pk").first()
    if part is None:
        return None
    point = part.checkpoint
    took = timedelta(milliseconds=part.acknowledged_ms)
    return _Survived(
        point.trigger_at + took,
        f"Slot {day.slot} took {duration(part.async_ms)} to upload {part.vertex} for checkpoint"
        f" {point.checkpoint_id}, and the run went on.",
    )


def _running_at(recoveries: list[Recovery], survived: _Survived | None) -> datetime | None:
    """A run that has lost at most a checkpoint has never stopped running."""
    if survived is not None:
        return survived.at
    return recoveries[-1].running_at if recoveries else None


def _is_frozen(day: GameDay) -> bool:
    """A stopped process has to end; one that could not write may live on."""
    if day.held is None or day.fault != Fault.FREEZE_SLOT:
        return False
    return msgspec.convert(day.held, Owner).is_alive


def _refusal_of(request_id: str) -> str:
    request = Request.objects.filter(request_id=request_id, phase__in=REFUSED).first()
    return request.message if request else ""


def _is_open(request_id: str) -> bool:
    """Without an answer, the driver may still act on the request: no game day ends before that."""
    return Request.objects.filter(request_id=request_id, phase__in=OPEN_PHASES).exists()


def _recoveries(run: Run, failure: Failure | None) -> list[Recovery]:
    """Lists the recoveries since the failure, up to the one that restored the run or the newest."""
    if failure is None:
        return []
    since = Recovery.objects.filter(run=run, sequence__gt=failure.sequence).order_by("sequence")
    found: list[Recovery] = []
    for recovery in since:
        found.append(recovery)
        if recovery.running_at is not None:
            break
    return found


def _first_committed(run: Run, running_at: datetime) -> int | None:
    since = Checkpoint.objects.filter(
        run=run, status__in=COMPLETE, trigger_at__gte=running_at, committed_at__isnull=False
    )
    return since.order_by("checkpoint_id").values_list("checkpoint_id", flat=True).first()


def _measures(
    recoveries: list[Recovery], survived: _Survived | None, injected_at: datetime
) -> Measures:
    if survived is not None:
        took = survived.at - injected_at
        return Measures(detection_ms=took / timedelta(milliseconds=1))
    if not recoveries:
        return Measures()
    first, last = recoveries[0], recoveries[-1]
    return Measures(
        detection_ms=_phases(first).get(RecoveryPhase.DETECT.value),
        recovery_ms=_recovery_ms(recoveries),
        phases=_phases(last),
        restored_checkpoint_id=last.restored_checkpoint_id,
        records_replayed=last.records_to_replay,
    )


def _phases(recovery: Recovery) -> dict[str, float]:
    return {each["phase"]: float(each["duration_ms"]) for each in recovery.phases}


def _recovery_ms(recoveries: list[Recovery]) -> float | None:
    """Measures several in a row from the beginning of the first, as their phases leave gaps."""
    if recoveries[-1].running_at is None:
        return None
    if len(recoveries) == 1:
        return to_running_ms(recoveries[0].running_at, recoveries[0].phases)
    took = recoveries[-1].running_at - recoveries[0].started_at
    return took / timedelta(milliseconds=1)


def _audit(audit: Audit, run: Run) -> AuditFound:
    if audit.ended_at is None:
        return AuditFound(is_over=False)
    if audit.report is None:
        return AuditFound(is_over=True, problem=audit.problem)
    report = audit.report
    differences = [
        each["difference"]["what"]
        for each in (*report["sources"], *report["sinks"])
        if each["difference"] is not None
    ]
    return AuditFound(
        is_over=True,
        is_as_recorded=report["is_as_recorded"],
        proofs=[_proof(each, run.run_id) for each in report["sinks"]],
        first_difference=differences[0] if differences else "",
    )


def _proof(sink: dict[str, Any], run_id: str) -> SinkProof:
    """A proof that covers only an ancestor says nothing about output after the fault."""
    is_own = sink["proven_run_id"] == run_id
    return SinkProof(
        sink=sink["sink"],
        is_audited=sink["covers"] != NOT_AUDITED,
        checkpoint_id=sink["proven_checkpoint_id"] if is_own else None,
    )
