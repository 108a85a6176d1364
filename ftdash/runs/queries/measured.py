"""Earlier measurements of a pipeline, for the preflight's estimates."""

from ftdash.checkpoints.models import Checkpoint
from ftdash.jobs.models import Pipeline, Recovery, Run
from ftdash.metrics.models import Sample
from ftdash.runs.recovery_times import to_running_ms
from pipelines.domain.point_fitness import Measured

RECOVERIES_MAX = 20
SAMPLES_MAX = 60


def measured(pipeline: Pipeline, *, with_source_records: bool = False) -> Measured:
    """The newest recoveries of all its runs; the rate of the newest run and, if asked for, how far
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


def _read_by(run: Run) -> int | None:
    """How far its sources have come, in any attempt, as of the last report."""
    completed = Checkpoint.objects.filter(run=run, source_records__isnull=False)
    newest = completed.order_by("-sequence").first()
    positions = (run.reached_records, newest.source_records if newest else None)
    return max((position for position in positions if position is not None), default=None)


def _recoveries_ms(pipeline: Pipeline) -> tuple[float, ...]:
    """From the failure to all subtasks running."""
    rows = Recovery.objects.filter(run__pipeline=pipeline, running_at__isnull=False)
    newest = rows.order_by("-pk").values_list("running_at", "phases")[:RECOVERIES_MAX]
    times_ms = (to_running_ms(*each) for each in newest)
    return tuple(each for each in times_ms if each is not None)
