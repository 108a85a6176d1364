"""All rows that the projector has made from a run's journal, for comparisons."""

from django.apps import apps

from ftdash.jobs.models import Run

FOLDED_APPS = ("jobs", "checkpoints", "metrics")
NOT_FOLDED = {
    "Audit",
    "Pipeline",
    "Request",
    "PointInspection",
    "PointComparison",
    "PointLabel",
    "Heartbeat",
    "Upgrade",
}
"""Models that services and workers write."""


def rows_of(run: Run) -> dict[str, list[tuple[object, ...]]]:
    """Returns every projected row of a run, without keys and counters of changes."""
    unequal = {"id", "run", "pipeline", "checkpoint", "run_id", "version", "created_at"}
    found: dict[str, list[tuple[object, ...]]] = {}
    for app in FOLDED_APPS:
        for model in apps.get_app_config(app).get_models():
            owner = {"Run": "pk", "SubtaskPhase": "checkpoint__run"}.get(model.__name__, "run")
            if model.__name__ in NOT_FOLDED:
                continue
            columns = [f.attname for f in model._meta.fields if f.name not in unequal]
            rows = model._default_manager.filter(**{owner: run.pk}).order_by("pk")
            found[model.__name__] = sorted(rows.values_list(*columns), key=str)
    return found
