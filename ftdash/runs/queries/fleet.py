"""Every pipeline in one line, those that need attention first."""

from datetime import datetime

from django.conf import settings

from ftdash.jobs.answers import ShownState
from ftdash.jobs.models import Pipeline, Run, StatusChange
from ftdash.runs.attention import Signs, attention, rank
from ftdash.runs.fleet_answers import Fleet, PipelineSummary, RunPulse
from ftdash.runs.lateness import checkpoint_interval_s, late_after_s
from ftdash.runs.queries.freshness import Observation, observe, shown_state
from ftdash.runs.queries.newest import newest_runs, version
from ftdash.runs.queries.pulse import run_pulse
from pipelines.domain.status import JobStatus


def fleet() -> Fleet:
    seen = observe()
    summaries = [_summary(pipeline, run, seen) for pipeline, run in newest_runs()]
    summaries.sort(key=lambda summary: rank(summary.concern, summary.name))
    return Fleet(seen.now, seen.projector, seen.reconcile, summaries)


def _summary(pipeline: Pipeline, run: Run | None, seen: Observation) -> PipelineSummary:
    state, reason = shown_state(run, seen)
    pulse = run_pulse(run) if run else None
    found = attention(_signs(run, state, reason, pulse, seen.now))
    return PipelineSummary(
        name=pipeline.name,
        flow=pipeline.flow,
        run_id=run.run_id if run else None,
        run_number=run.number if run else None,
        state=state,
        state_reason=reason,
        last_reported_state=run.status if run else None,
        as_of=run.last_event_at if run else None,
        guarantee=run.guarantee if run else "",
        parallelism=run.parallelism if run else pipeline.parallelism,
        records_per_s=run.records_per_s if run else 0.0,
        restart_count=run.restart_count if run else 0,
        last_completed_at=run.last_completed_at if run else None,
        last_committed_at=run.last_committed_at if run else None,
        last_checkpoint_id=run.last_checkpoint_id if run else None,
        concern=found.concern,
        attention=found.text,
        pulse=pulse,
        version=version(pipeline, run, seen),
    )


def _signs(
    run: Run | None, state: ShownState, reason: str, pulse: RunPulse | None, now: datetime
) -> Signs:
    interval_s = checkpoint_interval_s(run) if run else None
    return Signs(
        state=state,
        reason=reason,
        since_completed_s=_age_s(run.last_completed_at if run else None, now),
        since_committed_s=_age_s(run.last_committed_at if run else None, now),
        in_state_s=_in_state_s(run, now),
        since_started_s=_age_s(run.started_at if run else None, now),
        late_after_s=late_after_s(interval_s, settings.CHECKPOINT_LATE_AFTER_S),
        is_periodic=interval_s is not None,
        pulse=pulse,
    )


def _in_state_s(run: Run | None, now: datetime) -> float:
    """Since its driver reported it; before its first report, since a person asked for the run."""
    if run is None or run.is_terminal or run.status == JobStatus.RUNNING.value:
        return 0.0
    changed = StatusChange.objects.filter(run=run).order_by("-sequence").first()
    return (now - (changed.at if changed else run.created_at)).total_seconds()


def _age_s(since: datetime | None, now: datetime) -> float | None:
    return None if since is None else (now - since).total_seconds()
