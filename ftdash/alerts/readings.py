"""The readings of all rules, for every pipeline at once, with a fixed number of queries.

A pipeline that was stopped on purpose, or has not run yet, has nothing to alert about. One that
failed goes on being late. Readings that only a living driver reports are unknown while it is
silent. The pages decide in the same way which checkpoints failed, and when one is late (`pulse`,
`lateness`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db.models import Count, F, OuterRef, Q, QuerySet, Subquery
from django.db.models.functions import Coalesce

from ftdash.alerts.hysteresis import Absent, Reading
from ftdash.alerts.models import Watched
from ftdash.checkpoints.models import Checkpoint, CheckpointStatus
from ftdash.checkpoints.queries.counts import waiting_since
from ftdash.jobs.models import Pipeline, Recovery, Run
from ftdash.metrics.models import Sample
from ftdash.runs.queries.run_view import WITH_THE_ATTEMPT
from ftdash.runs.queries.runs import newest_runs
from ftdash.runs.timeliness import checkpoint_interval_s
from pipelines.domain.status import JobStatus

LATELY = timedelta(minutes=10)
ONCE_AN_INTERVAL = (Watched.SINCE_CHECKPOINT, Watched.SINCE_OUTPUT)
_OVER = (JobStatus.FINISHED.value, JobStatus.CANCELED.value)


@dataclass(frozen=True, slots=True)
class PipelineReadings:
    """`interval_s` is from one periodic checkpoint to the next; None: there are none."""

    pipeline: Pipeline
    values: Mapping[Watched, Reading]
    interval_s: float | None


@dataclass(frozen=True, slots=True)
class _Counts:
    failed_in_row: int
    failed_lately: int
    restarts_lately: int


def readings(now: datetime) -> list[PipelineReadings]:
    """As of `now`, by name of the pipeline."""
    found = newest_runs()
    live = [run.pk for _, run in found if run is not None and run.status not in _OVER]
    counts, samples, waits = _counts(live, now), _newest_samples(live), waiting_since(live)
    return [
        _readings(pipeline, run, counts[run.pk], samples.get(run.pk), waits.get(run.pk, now), now)
        if run is not None and run.pk in counts
        else PipelineReadings(pipeline, dict.fromkeys(Watched, Absent.OVER), None)
        for pipeline, run in found
    ]


def _readings(
    pipeline: Pipeline,
    run: Run,
    counts: _Counts,
    sample: Sample | None,
    waits_since: datetime,
    now: datetime,
) -> PipelineReadings:
    interval_s = checkpoint_interval_s(run)
    values = _values(run, counts, sample, now)
    values[Watched.COMMIT_WAIT] = _seconds(now, waits_since)
    if interval_s is None:
        values |= dict.fromkeys(ONCE_AN_INTERVAL, Absent.UNASKED)
    return PipelineReadings(pipeline, values, interval_s)


def _values(
    run: Run, counts: _Counts, sample: Sample | None, now: datetime
) -> dict[Watched, Reading]:
    began_at = run.started_at or run.created_at
    return {
        Watched.SINCE_CHECKPOINT: _seconds(now, run.last_completed_at or began_at),
        Watched.SINCE_OUTPUT: _seconds(now, run.last_committed_at or began_at),
        Watched.FAILED_IN_ROW: float(counts.failed_in_row),
        Watched.FAILED_LATELY: float(counts.failed_lately),
        Watched.RESTARTS_LATELY: float(counts.restarts_lately),
        Watched.BUFFERED_BYTES: _buffered_bytes(run, sample, now),
        Watched.EVENT_TIME_LAG: _event_time_lag(run, now),
        Watched.RECORDS_BEHIND: _records_behind(run, sample, now),
    }


def _seconds(now: datetime, since: datetime) -> float:
    return max(0.0, (now - since).total_seconds())


def _buffered_bytes(run: Run, sample: Sample | None, now: datetime) -> Reading:
    told = _told(run, sample, now)
    if isinstance(told, Absent):
        return told
    return float(sum(subtask["queued_bytes"] for subtask in told.subtasks))


def _records_behind(run: Run, sample: Sample | None, now: datetime) -> Reading:
    """Of the sources that know it; what the others have not read is unknown."""
    told = _told(run, sample, now)
    if isinstance(told, Absent):
        return told
    pending = [each.get("pending_records") for each in told.subtasks]
    known = [each for each in pending if each is not None]
    return float(sum(known)) if known else Absent.UNKNOWN


def _told(run: Run, sample: Sample | None, now: datetime) -> Sample | Absent:
    if run.status == JobStatus.FAILED.value:
        return Absent.OVER
    if sample is None or _seconds(now, sample.at) > settings.STALE_AFTER_S:
        return Absent.UNKNOWN
    return sample


def _event_time_lag(run: Run, now: datetime) -> Reading:
    if run.watermark_ms is None:
        return Absent.UNKNOWN
    return max(0.0, now.timestamp() - run.watermark_ms / 1000)


def _counts(runs: list[int], now: datetime) -> dict[int, _Counts]:
    failed = Checkpoint.objects.filter(run=OuterRef("pk"), status=CheckpointStatus.FAILED).exclude(
        reason_name__in=WITH_THE_ATTEMPT
    )
    in_row = failed.filter(
        Q(run__last_completed_at=None) | Q(failed_at__gt=F("run__last_completed_at"))
    )
    lately = failed.filter(failed_at__gt=now - LATELY)
    restarts = Recovery.objects.filter(run=OuterRef("pk"), at__gt=now - LATELY)
    rows = Run.objects.filter(pk__in=runs).annotate(
        in_row=_count_of(in_row), lately=_count_of(lately), restarts=_count_of(restarts)
    )
    found = rows.values_list("pk", "in_row", "lately", "restarts")
    return {key: _Counts(in_row, lately, restarts) for key, in_row, lately, restarts in found}


def _count_of(rows: QuerySet[Any]) -> Coalesce:
    counted = rows.order_by().values("run").annotate(count=Count("pk")).values("count")
    return Coalesce(Subquery(counted), 0)


def _newest_samples(runs: list[int]) -> dict[int, Sample]:
    newest = Sample.objects.filter(run=OuterRef("pk")).order_by("-sequence").values("pk")[:1]
    keys = Run.objects.filter(pk__in=runs).annotate(newest=Subquery(newest)).values("newest")
    return {sample.run_id: sample for sample in Sample.objects.filter(pk__in=keys)}
