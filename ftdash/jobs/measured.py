"""What is known of a pipeline from before, for the preflight's estimates."""

from datetime import datetime, timedelta

from ftdash.checkpoints.models import Checkpoint
from ftdash.jobs.models import Pipeline, Recovery, Run
from ftdash.jobs.recovery_times import to_running_ms
from ftdash.metrics.models import Sample
from pipelines.domain.preflight_verdict import Measured
from pipelines.domain.status import JobStatus

RECOVERIES_MAX = 20
SAMPLES_MAX = 60
SAMPLE_PERIOD_MAX = timedelta(seconds=5)
"""Between two samples further apart than this nothing is known to have been read."""


def measured(pipeline: Pipeline, *, with_source_records: bool = False) -> Measured:
    """Of all its runs: the newest recoveries; of the newest: its rate and, if asked for, how far
    its sources have read."""
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


def read_since(run: Run, since: datetime) -> int:
    """About: sampled rates times the time between samples, and the last rate since the last one.

    Up to the last report: whether a driver that is silent reads on nobody knows.
    """
    samples = Sample.objects.filter(run=run, at__gt=since).order_by("sequence")
    reported = (run.last_event_at or since, run.records_per_s)
    points = [*samples.values_list("at", "records_per_s"), reported]
    total, before = 0.0, since
    for at, records_per_s in points:
        period = max(timedelta(0), min(at - before, SAMPLE_PERIOD_MAX))
        total += period.total_seconds() * records_per_s
        before = at
    return round(total)


def _read_by(run: Run) -> int | None:
    """What its newest checkpoint says, and about what came after it."""
    completed = Checkpoint.objects.filter(run=run, source_records__isnull=False)
    newest = completed.order_by("-sequence").first()
    if newest is None or newest.source_records is None:
        return None
    if run.status == JobStatus.FINISHED:
        return newest.source_records  # nothing is read behind the point that a run finishes with
    return newest.source_records + read_since(run, newest.trigger_at)


def _recoveries_ms(pipeline: Pipeline) -> tuple[float, ...]:
    """From the failure to all subtasks running."""
    rows = Recovery.objects.filter(run__pipeline=pipeline, running_at__isnull=False)
    newest = rows.order_by("-pk").values_list("running_at", "phases")[:RECOVERIES_MAX]
    times_ms = (to_running_ms(*each) for each in newest)
    return tuple(each for each in times_ms if each is not None)
