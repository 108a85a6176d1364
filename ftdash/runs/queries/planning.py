"""Measurements of a pipeline for planning: costs, failures, speeds, recoveries.

Reads rows only. What was never measured is None; nothing is guessed here. The preflight estimates
from the same measurements.
"""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import timedelta
from statistics import fmean, median, quantiles

from django.db.models import F, QuerySet, Window
from django.db.models.functions import RowNumber
from django.utils import timezone

from ftdash.checkpoints.models import COMPLETE, Checkpoint, SubtaskPhase
from ftdash.history.limits import kept_for
from ftdash.history.models import Kind
from ftdash.jobs.models import Pipeline, Recovery, Run
from ftdash.metrics.models import Sample
from ftdash.runs.queries.freshness import UP_TO_RUNNING, to_running_ms, without_backoff
from pipelines.domain.planning import Costs, FailureRate, advice, lost_ratio
from pipelines.domain.settings.parsing import parse_settings
from pipelines.domain.status import CheckpointKind, RecoveryPhase
from pipelines.points.verdict import Measured

CHECKPOINTS_MAX = 50
"""The newest ones best predict the next ones."""

RECOVERIES_MAX = 20
MILLISECOND = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True)
class MeasuredRecovery:
    """Durations in ms. None: not reached, or not known."""

    run_id: str
    attempt: int
    restart_ms: float  # detect, decide, stop and start
    restore_ms: float
    catch_up_ms: float | None  # after all subtasks ran again
    state_bytes: int | None  # of the restored point

    @property
    def to_running_ms(self) -> float:
        return self.restart_ms + self.restore_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointCosts:
    """Costs over the newest completed periodic checkpoints of the newest run."""

    checkpoint_count: int
    duration_p99_ms: float
    standstill_ms: float | None  # mean of their slowest subtask's alignment and cut
    state_bytes: float  # of the newest
    uploaded_bytes: float  # mean
    upload_bytes_per_s: float | None  # of all subtasks together, over the slowest's time
    written_bytes_per_s: float | None  # their uploads over the time they span


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanningFacts:
    interval_ms: int | None  # None: nothing is periodic
    retained: int
    costs: CheckpointCosts | None
    failures: FailureRate | None  # None: it never ran
    recoveries: list[MeasuredRecovery]  # newest first
    restore_bytes_per_s: float | None
    arriving_per_s: float | None
    reading_per_s: float | None  # the most that a sample has seen


def planning_facts(pipeline_name: str) -> PlanningFacts | None:
    """Returns None if there is no such pipeline, or it never had a run."""
    pipeline = Pipeline.objects.filter(name=pipeline_name).first()
    newest = pipeline.runs.order_by("-number").first() if pipeline else None
    if pipeline is None or newest is None:
        return None
    settings = parse_settings(newest.settings_now)
    recoveries = _recoveries(pipeline)
    rates = list(_rates(newest))
    return PlanningFacts(
        interval_ms=settings.checkpointing.interval_ms,
        retained=settings.checkpointing.retained_count,
        costs=_costs(newest),
        failures=_failures(pipeline),
        recoveries=recoveries,
        restore_bytes_per_s=_restore_bytes_per_s(recoveries),
        arriving_per_s=median(rates) if rates else None,
        reading_per_s=max(rates, default=None),
    )


@dataclass(frozen=True, slots=True)
class MeasuredPlan:
    """A plan from measurements alone. None: there were too few."""

    facts: PlanningFacts
    advised_ms: float | None
    why: str
    lost_ratio_advised: float | None  # of all the time
    lost_ratio_now: float | None


def measured_plan(pipeline_name: str) -> MeasuredPlan | None:
    """Returns None if there is no such pipeline, or it never had a run."""
    facts = planning_facts(pipeline_name)
    if facts is None:
        return None
    standstill_ms = facts.costs.standstill_ms if facts.costs else None
    if facts.costs is None or not standstill_ms or not facts.failures or not facts.failures.mean_ms:
        return MeasuredPlan(facts, None, "", None, None)
    costs = Costs(standstill_ms, facts.failures.mean_ms, mean_recovery_ms(facts))
    found = advice(costs, facts.costs.duration_p99_ms)
    return MeasuredPlan(
        facts=facts,
        advised_ms=found.interval_ms,
        why=found.why,
        lost_ratio_advised=lost_ratio(found.interval_ms, costs),
        lost_ratio_now=lost_ratio(facts.interval_ms, costs) if facts.interval_ms else None,
    )


def mean_recovery_ms(facts: PlanningFacts) -> float:
    """Returns the mean time until all subtasks ran again; 0 if it never recovered."""
    recoveries = [each.to_running_ms for each in facts.recoveries]
    return fmean(recoveries) if recoveries else 0.0


def _costs(run: Run) -> CheckpointCosts | None:
    completed = Checkpoint.objects.filter(
        run=run,
        status__in=COMPLETE,
        kind=CheckpointKind.CHECKPOINT.value,
        end_to_end_ms__isnull=False,
        completed_at__isnull=False,
    )
    rows = list(completed.order_by("-sequence")[:CHECKPOINTS_MAX])
    if not rows:
        return None
    parts = _parts(rows)
    uploaded = [row.uploaded_bytes or 0 for row in rows]
    return CheckpointCosts(
        checkpoint_count=len(rows),
        duration_p99_ms=_p99([row.end_to_end_ms or 0.0 for row in rows]),
        standstill_ms=fmean(map(_standstill_ms, parts)) if parts else None,
        state_bytes=rows[0].state_bytes or 0,
        uploaded_bytes=fmean(uploaded),
        upload_bytes_per_s=_median_known([_upload_bytes_per_s(part) for part in parts]),
        written_bytes_per_s=_written_bytes_per_s(rows),
    )


def _parts(rows: list[Checkpoint]) -> list[list[SubtaskPhase]]:
    """Returns the phases of subtasks, one list for each checkpoint whose phases are still kept."""
    found: dict[int, list[SubtaskPhase]] = {}
    for phase in SubtaskPhase.objects.filter(checkpoint__in=rows).defer("channels"):
        found.setdefault(phase.checkpoint_id, []).append(phase)
    return list(found.values())


def _standstill_ms(part: list[SubtaskPhase]) -> float:
    return max(
        phase.sync_ms + (0.0 if phase.is_unaligned else phase.alignment_ms) for phase in part
    )


def _upload_bytes_per_s(part: list[SubtaskPhase]) -> float | None:
    slowest_ms = max(phase.async_ms for phase in part)
    uploaded = sum(phase.uploaded_bytes for phase in part)
    return uploaded * 1000 / slowest_ms if slowest_ms > 0 and uploaded else None


def _written_bytes_per_s(rows: list[Checkpoint]) -> float | None:
    """The oldest only marks the beginning of the time span. `rows` are newest first."""
    newest, oldest = rows[0].completed_at, rows[-1].completed_at
    if newest is None or oldest is None or newest <= oldest:
        return None
    return sum(row.uploaded_bytes or 0 for row in rows[:-1]) / (newest - oldest).total_seconds()


def _failures(pipeline: Pipeline) -> FailureRate | None:
    """Counts each recovery as one costly failure.

    The time is the life of all runs, for as long as recoveries are kept: deleted ones must not make
    the rest look rarer.
    """
    since = timezone.now() - kept_for(Kind.EVENTS)
    lives = pipeline.runs.filter(started_at__isnull=False)
    observed_ms = sum(
        max(0.0, (end - max(begin, since)) / MILLISECOND)
        for begin, ended, heard in lives.values_list("started_at", "ended_at", "last_event_at")
        if begin is not None and (end := ended or heard) is not None
    )
    if observed_ms <= 0:
        return None
    kept = Recovery.objects.filter(run__pipeline=pipeline, at__gte=since)
    return FailureRate(observed_ms, kept.count())


def _recoveries(pipeline: Pipeline) -> list[MeasuredRecovery]:
    rows = Recovery.objects.filter(run__pipeline=pipeline, running_at__isnull=False)
    newest = list(rows.select_related("run").order_by("-pk")[:RECOVERIES_MAX])
    return [_recovery(row) for row in newest]


def _recovery(row: Recovery) -> MeasuredRecovery:
    spent = {phase["phase"]: phase["duration_ms"] for phase in row.phases}
    restore = RecoveryPhase.RESTORE.value
    others = UP_TO_RUNNING - {restore, RecoveryPhase.BACKOFF.value}
    restart = [spent[name] for name in others if name in spent]
    point = Checkpoint.objects.filter(run=row.run, checkpoint_id=row.restored_checkpoint_id)
    return MeasuredRecovery(
        run_id=row.run.run_id,
        attempt=row.attempt,
        restart_ms=sum(restart),
        restore_ms=spent.get(restore, 0.0),
        catch_up_ms=spent.get(RecoveryPhase.CAUGHT_UP.value),
        state_bytes=point.values_list("state_bytes", flat=True).first(),
    )


def _restore_bytes_per_s(recoveries: list[MeasuredRecovery]) -> float | None:
    """Counts the whole phase as reading, so the estimate is too slow rather than too fast."""
    return _median_known(
        [
            each.state_bytes * 1000 / each.restore_ms
            for each in recoveries
            if each.state_bytes and each.restore_ms > 0
        ]
    )


def _rates(run: Run) -> QuerySet[Sample, float]:
    samples = Sample.objects.filter(run=run, records_per_s__gt=0)
    return samples.values_list("records_per_s", flat=True)


def _p99(values: list[float]) -> float:
    if len(values) < 2:
        return values[0]
    return quantiles(values, n=100, method="inclusive")[98]


def _median_known(values: list[float | None] | list[float]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


SAMPLES_MAX = 60


def measured(pipeline: Pipeline, *, with_source_records: bool = False) -> Measured:
    """Measures the newest recoveries of all the pipeline's runs, and the rate of the newest run.

    If asked for, also returns how far the sources of that run have read.
    """
    newest = pipeline.runs.order_by("-number").first()
    if newest is None:
        return Measured()
    rates = Sample.objects.filter(run=newest, records_per_s__gt=0).order_by("-sequence")
    ordered = sorted(rates.values_list("records_per_s", flat=True)[:SAMPLES_MAX])
    return Measured(
        source_records=_read_by(newest) if with_source_records else None,
        recoveries_ms=_recoveries_ms(pipeline),
        records_per_s=ordered[len(ordered) // 2] if ordered else None,
    )


def _read_by(run: Run) -> int | None:
    """Returns how far its sources have come, in any attempt, as of the last report."""
    completed = Checkpoint.objects.filter(run=run, source_records__isnull=False)
    newest = completed.order_by("-sequence").first()
    positions = (run.reached_records, newest.source_records if newest else None)
    return max((position for position in positions if position is not None), default=None)


def recoveries_ms_of(pipelines: Collection[int]) -> dict[int, tuple[float, ...]]:
    """Returns the newest times from failure to all subtasks running, by key of the pipeline."""
    ranked = (
        Recovery.objects.filter(run__pipeline__in=pipelines, running_at__isnull=False)
        .annotate(rank=Window(RowNumber(), F("run__pipeline"), F("pk").desc()))
        .filter(rank__lte=RECOVERIES_MAX)
    )
    found: dict[int, list[float]] = {}
    rows = ranked.order_by("rank").values_list("run__pipeline", "running_at", "phases")
    for pipeline, running_at, phases in rows:
        took_ms = to_running_ms(running_at, phases)
        if took_ms is not None:
            found.setdefault(pipeline, []).append(took_ms)
    return {pipeline: tuple(times_ms) for pipeline, times_ms in found.items()}


def _recoveries_ms(pipeline: Pipeline) -> tuple[float, ...]:
    """Returns the times from the failure to all subtasks running, without the backoff.

    The backoff of a failure now is known, and a restore by a person has none.
    """
    rows = Recovery.objects.filter(run__pipeline=pipeline, running_at__isnull=False)
    newest = rows.order_by("-pk").values_list("running_at", "phases")[:RECOVERIES_MAX]
    times_ms = (to_running_ms(at, without_backoff(phases)) for at, phases in newest)
    return tuple(each for each in times_ms if each is not None)
