"""Every pipeline in one line, in the order in which a person should look at them, and why.

Each pipeline has one concern, the most pressing; pipelines are ordered by their concerns. A failed
pipeline does no work, and the state of a silent one is unknown: they come before one whose clocks
run late, and that before one that recovers by itself.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from django.conf import settings
from django.db.models import OuterRef, Subquery

from ftdash.formats import age
from ftdash.jobs.answers import ShownState
from ftdash.jobs.models import Pipeline, Run, StatusChange
from ftdash.metrics.load_rules import LoadProblem
from ftdash.runs.fleet_answers import (
    Attention,
    Concern,
    Fleet,
    NewestRun,
    PipelineSummary,
    RunPulse,
)
from ftdash.runs.queries.freshness import (
    Observation,
    checkpoint_interval_s,
    clock_off_s,
    is_lost,
    late_after_s,
    observe,
    shown_state,
)
from ftdash.runs.queries.pulses import run_pulses
from ftdash.runs.queries.runs import newest_runs_in_brief, version
from pipelines.domain.status import JobStatus

RESTARTS_OFTEN = 3
"""This many recoveries within `pulse.RECENT` are no coincidence."""

BACKPRESSURED_FROM = 0.5
"""Above this, Flink calls backpressure high."""

STUCK_AFTER_S = 60.0
"""Spark starts slots within seconds, and a cancelled run is killed after twenty."""

EXPIRES_FROM = 0.5
"""As a ratio of a transaction's timeout: the rest is left for a person to act."""

MISSED = 1.2
"""As a ratio of the checkpoint interval: by then a checkpoint should have committed."""

_ORDER = tuple(Concern)
_OF_PROBLEM = {
    LoadProblem.SOURCE_AWAY: Concern.SOURCE_AWAY,
    LoadProblem.STUCK_CODE: Concern.STUCK_CODE,
    LoadProblem.SKEWED: Concern.SKEWED,
    LoadProblem.BEHIND: Concern.BEHIND,
    LoadProblem.SLOW_CHECKPOINTS: Concern.SLOW_CHECKPOINTS,
    LoadProblem.WATERMARK_STILL: Concern.WATERMARK_STILL,
}


@dataclass(frozen=True, slots=True)
class Transaction:
    """A sink's transaction. Its target rolls it back if it is open for longer than `timeout_s`."""

    sink: str
    timeout_s: float
    interval_s: float = 0.0  # the time between commits when all is well


@dataclass(frozen=True, slots=True, kw_only=True)
class Signs:
    """Facts about a pipeline's newest run. Ages in seconds; None: it never did."""

    state: ShownState
    reason: str
    since_completed_s: float | None
    since_committed_s: float | None
    since_started_s: float | None
    in_state_s: float  # how long it has been in `state`
    late_after_s: float
    is_periodic: bool  # it should complete checkpoints by itself
    is_lost: bool = False  # the driver that spoke last is known to be gone
    is_clock_off: bool = False  # that of the driver's machine
    transaction: Transaction | None = None  # the one that expires first
    pulse: RunPulse | None


def rank(concern: Concern, name: str) -> tuple[int, str]:
    """Sorts the most pressing concern first, then by name."""
    return _ORDER.index(concern), name


def attention(signs: Signs) -> Attention:
    found = _of_state(signs)
    if found is None and signs.state is ShownState.RUNNING:
        found = _of_clocks(signs) or _of_pulse(signs.pulse)
    return found or Attention(Concern.NONE, "")


def _of_state(signs: Signs) -> Attention | None:
    match signs.state:
        case ShownState.FAILED:
            return Attention(Concern.FAILED, signs.reason or "The pipeline is FAILED.")
        case ShownState.STALE if signs.is_clock_off:
            return Attention(Concern.CLOCK_OFF, signs.reason)
        case ShownState.STALE if signs.is_lost:
            return Attention(Concern.DRIVER_LOST, signs.reason)
        case ShownState.UNKNOWN | ShownState.STALE:
            return Attention(Concern.SILENT, signs.reason or f"The pipeline is {signs.state}.")
        case ShownState.CREATED | ShownState.INITIALIZING | ShownState.CANCELLING:
            return _stuck(signs) if signs.in_state_s > STUCK_AFTER_S else None
        case ShownState.RESTARTING | ShownState.FAILING:
            why = f": {signs.reason}" if signs.reason else "."
            return Attention(Concern.RECOVERING, f"It is recovering{why}")
        case _:
            return None


def _stuck(signs: Signs) -> Attention:
    why = f": {signs.reason}" if signs.reason else "."
    since = age(1000 * signs.in_state_s)
    return Attention(Concern.STUCK, f"It has been {signs.state} for {since}{why}")


def _of_clocks(signs: Signs) -> Attention | None:
    completed_s, committed_s = signs.since_completed_s, signs.since_committed_s
    if found := _of_transaction(signs):
        return found
    if not signs.is_periodic:
        return None
    if completed_s is None:
        started_s = signs.since_started_s or 0.0
        if started_s > signs.late_after_s:
            text = f"No checkpoint has completed since it started {age(1000 * started_s)} ago."
            return Attention(Concern.NO_CHECKPOINT, text)
    if completed_s is not None and completed_s > signs.late_after_s:
        text = f"No checkpoint has completed for {age(1000 * completed_s)}."
        return Attention(Concern.NO_CHECKPOINT, text)
    if committed_s is not None and committed_s > signs.late_after_s:
        text = f"Checkpoints complete, but no output was committed for {age(1000 * committed_s)}."
        return Attention(Concern.NO_OUTPUT, text)
    return None


def _of_transaction(signs: Signs) -> Attention | None:
    """The transaction was opened with the first record after the last commit, or a little later."""
    held, open_s = signs.transaction, signs.since_committed_s or signs.since_started_s
    if held is None or open_s is None:
        return None
    if open_s < max(EXPIRES_FROM * held.timeout_s, MISSED * held.interval_s):
        return None
    text = (
        f"A transaction of {held.sink} may have been open for {age(1000 * open_s)}. Its target"
        f" gives it up after {age(1000 * held.timeout_s)}, and its output is lost then."
    )
    return Attention(Concern.TRANSACTION_EXPIRES, text)


def _of_pulse(pulse: RunPulse | None) -> Attention | None:
    if pulse is None:
        return None
    if pulse.recent_recovery_count >= RESTARTS_OFTEN:
        text = f"It recovered {pulse.recent_recovery_count} times within the last 10 minutes."
        return Attention(Concern.UNSTABLE, text)
    if pulse.failed_in_row:
        several = pulse.failed_in_row > 1
        which = f"last {pulse.failed_in_row} checkpoints" if several else "last checkpoint"
        return Attention(Concern.CHECKPOINTS_FAIL, f"The {which} failed: {pulse.failed_why}")
    if pulse.findings:
        found = pulse.findings[0]
        return Attention(_OF_PROBLEM[found.problem], found.text)
    if not pulse.is_backpressured_long:
        return None
    if pulse.backpressured_ratio is not None and pulse.backpressured_ratio >= BACKPRESSURED_FROM:
        share = f"{100 * pulse.backpressured_ratio:.0f} %"
        text = f"{pulse.backpressured_operator} is backpressured {share} of the time."
        return Attention(Concern.BACKPRESSURED, text)
    return None


def fleet() -> Fleet:
    seen, found = observe(), newest_runs_in_brief()
    pulses, changed = run_pulses([run for _, run in found if run]), _changed_at(found)
    summaries = [_summary(pipeline, run, seen, pulses, changed) for pipeline, run in found]
    summaries.sort(key=lambda summary: rank(summary.concern, summary.name))
    return Fleet(seen.now, seen.projector, seen.reconcile, summaries)


def _summary(
    pipeline: Pipeline,
    run: NewestRun | None,
    seen: Observation,
    pulses: Mapping[int, RunPulse],
    changed: Mapping[int, datetime],
) -> PipelineSummary:
    state, reason = shown_state(run, seen)
    pulse = pulses[run.pk] if run else None
    in_state_s = (seen.now - changed[run.pk]).total_seconds() if run and run.pk in changed else 0.0
    found = attention(_signs(run, state, reason, pulse, seen.now, in_state_s))
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
        labels=pipeline.labels,
        version=version(pipeline, run, seen, state),
    )


def _signs(
    run: NewestRun | None,
    state: ShownState,
    reason: str,
    pulse: RunPulse | None,
    now: datetime,
    in_state_s: float,
) -> Signs:
    interval_s = checkpoint_interval_s(run) if run else None
    return Signs(
        state=state,
        reason=reason,
        since_completed_s=_age_s(run.last_completed_at if run else None, now),
        since_committed_s=_age_s(run.last_committed_at if run else None, now),
        in_state_s=in_state_s,
        since_started_s=_age_s(run.started_at if run else None, now),
        late_after_s=late_after_s(interval_s, settings.CHECKPOINT_LATE_AFTER_S),
        is_periodic=interval_s is not None,
        is_lost=run is not None and is_lost(run),
        is_clock_off=run is not None and clock_off_s(run, now) != 0.0,
        transaction=_transaction(run, interval_s or 0.0) if run else None,
        pulse=pulse,
    )


def _transaction(run: NewestRun, interval_s: float) -> Transaction | None:
    """Returns the transaction with the shortest timeout."""
    timeouts = [(ms / 1000, sink) for sink, ms in run.transaction_timeouts_ms.items()]
    if not timeouts:
        return None
    timeout_s, sink = min(timeouts)
    return Transaction(sink, timeout_s, interval_s)


def _changed_at(found: list[tuple[Pipeline, NewestRun | None]]) -> dict[int, datetime]:
    """Maps runs that start, end or recover, by primary key, to the time since when they do.

    That is when the driver reported it or, before its first report, when a person asked for the
    run.
    """
    moving = {
        run.pk: run.created_at
        for _, run in found
        if run and not run.is_terminal and run.status != JobStatus.RUNNING.value
    }
    if not moving:
        return {}
    changes = StatusChange.objects.filter(run=OuterRef("pk")).order_by("-sequence").values("at")
    rows = Run.objects.filter(pk__in=moving).annotate(changed=Subquery(changes[:1]))
    return {pk: changed or moving[pk] for pk, changed in rows.values_list("pk", "changed")}


def _age_s(since: datetime | None, now: datetime) -> float | None:
    return None if since is None else (now - since).total_seconds()
