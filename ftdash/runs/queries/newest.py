"""Every pipeline with its newest run, and the token that changes whenever its pages do."""

from django.db.models import OuterRef, Subquery

from ftdash.jobs.models import Pipeline, Run
from ftdash.runs.queries.freshness import Observation, shown_state


def newest_runs() -> list[tuple[Pipeline, Run | None]]:
    """Every pipeline by name; None before its first run."""
    newest = Run.objects.filter(pipeline=OuterRef("pk")).order_by("-number").values("pk")[:1]
    pipelines = list(Pipeline.objects.annotate(newest_run=Subquery(newest)))
    runs = Run.objects.select_related("pipeline").in_bulk(
        [pipeline.newest_run for pipeline in pipelines]
    )
    return [(pipeline, runs.get(pipeline.newest_run)) for pipeline in pipelines]


def version(pipeline: Pipeline, run: Run | None, seen: Observation) -> str:
    state, _ = shown_state(run, seen)
    late = "" if seen.reconcile.is_alive else "late"
    of_run = f"{run.number}.{run.version}" if run else "0.0"
    return f"{pipeline.version}.{of_run}.{state}{late}"
