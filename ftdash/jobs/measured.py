"""What is known of a pipeline from before, for the preflight's estimates."""

from ftdash.checkpoints.models import Checkpoint
from ftdash.jobs.models import Pipeline, Recovery
from ftdash.jobs.recovery_times import to_running_ms
from ftdash.metrics.models import Sample
from pipelines.domain.preflight_verdict import Measured

RECOVERIES_MAX = 20
SAMPLES_MAX = 60


def measured(pipeline: Pipeline) -> Measured:
    """Of its newest run: how far the sources came; of all runs: the newest recoveries."""
    newest = pipeline.runs.order_by("-number").values_list("pk", flat=True).first()
    if newest is None:
        return Measured()
    completed = Checkpoint.objects.filter(run=newest, source_records__isnull=False)
    read = completed.order_by("-sequence").values_list("source_records", flat=True).first()
    rates = Sample.objects.filter(run=newest, records_per_s__gt=0).order_by("-sequence")
    ordered = sorted(rates.values_list("records_per_s", flat=True)[:SAMPLES_MAX])
    return Measured(
        source_records=read,
        recoveries_ms=_recoveries_ms(pipeline),
        records_per_s=ordered[len(ordered) // 2] if ordered else None,
    )


def _recoveries_ms(pipeline: Pipeline) -> tuple[float, ...]:
    """From the failure to all subtasks running."""
    rows = Recovery.objects.filter(run__pipeline=pipeline, running_at__isnull=False)
    newest = rows.order_by("-pk").values_list("running_at", "phases")[:RECOVERIES_MAX]
    times_ms = (to_running_ms(*each) for each in newest)
    return tuple(each for each in times_ms if each is not None)
