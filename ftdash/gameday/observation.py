"""Reads what the rows say about one game day, for `scoring.judge`. Decides nothing."""

from datetime import datetime, timedelta
from typing import Any

import msgspec
from django.utils import timezone

from ftdash.checkpoints.models import COMPLETE, Audit, Checkpoint, CheckpointStatus
from ftdash.gameday.injection import effect_after
from ftdash.gameday.models import Fault, GameDay
from ftdash.gameday.scoring import EFFECT_WITHIN, AuditFound, Measures, Seen, SinkProof
from ftdash.jobs.models import Failure, Recovery, Request, RequestPhase, Run, ZombieRefusal
from ftdash.jobs.recovery_times import to_running_ms
from pipelines.bus.lease import Owner
from pipelines.domain.status import JobStatus, RecoveryPhase

REFUSED = (RequestPhase.FAILED, RequestPhase.REJECTED)
NOT_AUDITED = "not audited"
"""`pipelines.audit.output.Covers.NOTHING`, whose module loads what only an audit needs."""


def seen(day: GameDay) -> Seen:
    """Of a day whose fault was to be carried out at `injected_at`."""
    run = day.run
    injected_at = day.injected_at or day.asked_at
    failures = Failure.objects.filter(
        run=run, sequence__gt=day.before_sequence, at__gte=injected_at
    ).order_by("sequence")
    first = failures.first()
    recoveries = _recoveries(run, first)
    running = recoveries[-1] if recoveries and recoveries[-1].running_at else None
    return Seen(
        now=timezone.now(),
        status=JobStatus(run.status),
        injected_at=injected_at,
        effect_within=EFFECT_WITHIN + effect_after(Fault(day.fault), run),
        refusal=day.refusal or _refusal_of(day.request_id),
        failed_at=first.at if first else None,
        cause=first.cause if first else "",
        running_at=running.running_at if running else None,
        committed_checkpoint_id=_first_committed(run, running) if running else None,
        still_frozen=day.frozen is not None and msgspec.convert(day.frozen, Owner).is_alive,
        measures=_measures(day, recoveries, injected_at, failures.count()),
        audit=_audit(day.audit, run) if day.audit else None,
    )


def _refusal_of(request_id: str) -> str:
    request = Request.objects.filter(request_id=request_id, phase__in=REFUSED).first()
    return request.message if request else ""


def _recoveries(run: Run, failure: Failure | None) -> list[Recovery]:
    """From the first since the failure to the one that got the run back, or the newest."""
    if failure is None:
        return []
    since = Recovery.objects.filter(run=run, sequence__gt=failure.sequence).order_by("sequence")
    found: list[Recovery] = []
    for recovery in since:
        found.append(recovery)
        if recovery.running_at is not None:
            break
    return found


def _first_committed(run: Run, recovery: Recovery) -> int | None:
    since = Checkpoint.objects.filter(
        run=run,
        status__in=COMPLETE,
        attempt__gte=recovery.attempt,
        trigger_at__gte=recovery.running_at,
        committed_at__isnull=False,
    )
    return since.order_by("checkpoint_id").values_list("checkpoint_id", flat=True).first()


def _measures(
    day: GameDay, recoveries: list[Recovery], injected_at: datetime, failures: int
) -> Measures:
    lost = Checkpoint.objects.filter(
        run=day.run,
        status=CheckpointStatus.FAILED,
        attempt=day.before_attempt,
        failed_at__gte=injected_at,
    )
    late = ZombieRefusal.objects.filter(run=day.run, sequence__gt=day.before_sequence)
    phases = _phases(recoveries[-1]) if recoveries else {}
    return Measures(
        detection_ms=_phases(recoveries[0]).get(RecoveryPhase.DETECT.value) if recoveries else None,
        recovery_ms=_recovery_ms(recoveries),
        phases=phases,
        restored_checkpoint_id=recoveries[-1].restored_checkpoint_id if recoveries else None,
        records_replayed=recoveries[-1].records_to_replay if recoveries else None,
        checkpoints_lost=lost.count(),
        late_refused=late.count(),
        further_failures=max(0, failures - 1),
    )


def _phases(recovery: Recovery) -> dict[str, float]:
    return {each["phase"]: float(each["duration_ms"]) for each in recovery.phases}


def _recovery_ms(recoveries: list[Recovery]) -> float | None:
    """Of several in a row, from the beginning of the first: their phases leave gaps."""
    if not recoveries or recoveries[-1].running_at is None:
        return None
    if len(recoveries) == 1:
        return to_running_ms(recoveries[0])
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
    """What is proven of an ancestor only says nothing of what came after the fault."""
    is_own = sink["proven_run_id"] == run_id
    return SinkProof(
        sink=sink["sink"],
        is_audited=sink["covers"] != NOT_AUDITED,
        checkpoint_id=sink["proven_checkpoint_id"] if is_own else None,
    )
