"""Reads runs of all pipelines, for programs that list them: each with its shape and its times.

Every pipeline with its newest run, and the token that changes whenever its pages do.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from django.db.models import Max, OuterRef, Subquery

from ftdash.jobs.answers import ShownState, SubtaskView, VertexView
from ftdash.jobs.directories import run_directory
from ftdash.jobs.models import TERMINAL_STATUSES, Pipeline, Run, StatusChange
from ftdash.metrics.models import Sample
from ftdash.runs.queries.freshness import Observation, observe, shown_state
from ftdash.runs.queries.run_view import subtasks_of
from pipelines.domain.places import SnapshotPlaces
from pipelines.domain.settings.parsing import parse_settings

ENDED_MAX = 50
"""How many ended runs are listed, the newest; you can still ask for any run by its id."""


@dataclass(frozen=True, slots=True)
class RunFacts:
    """One run without the values that change every second."""

    now: datetime  # when this was read
    run_id: str
    pipeline: str
    state: ShownState
    reason: str
    attempt: int
    restart_count: int
    parallelism: int
    max_parallelism: int
    settings: dict[str, str]  # in force now
    parameters: dict[str, str]
    restored_from: str | None
    first_checkpoint_id: int
    created_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    last_event_at: datetime | None  # when its driver last reported
    status_times: dict[str, datetime]  # JobStatus to when it was last entered
    vertices: list[VertexView]
    slots: dict[int, str]  # slot to host, the connected ones


@dataclass(frozen=True, slots=True)
class SubtaskSamples:
    """The newest sample of a run's subtasks; empty before the first."""

    at: datetime | None
    subtasks: list[SubtaskView]


def runs() -> list[RunFacts]:
    """All living runs and the newest that have ended; newest first."""
    all_runs = Run.objects.select_related("pipeline").order_by("-id")
    living = list(all_runs.exclude(status__in=TERMINAL_STATUSES))
    ended = list(all_runs.filter(status__in=TERMINAL_STATUSES)[:ENDED_MAX])
    return _facts(sorted([*living, *ended], key=lambda run: -run.pk))


def run(run_id: str) -> RunFacts | None:
    found = _facts(Run.objects.filter(run_id=run_id).select_related("pipeline"))
    return found[0] if found else None


def run_ids() -> list[str]:
    return list(Run.objects.values_list("run_id", flat=True))


def savepoint_directory(run_id: str) -> str | None:
    """The directory for savepoints of the run. None: no such run."""
    found = Run.objects.filter(run_id=run_id).select_related("pipeline").first()
    if found is None:
        return None
    return SnapshotPlaces.of(run_directory(found), parse_settings(found.settings_now)).savepoints


def newest_samples(run_id: str) -> SubtaskSamples:
    sample = Sample.objects.filter(run__run_id=run_id).order_by("-sequence").first()
    return SubtaskSamples(sample.at if sample else None, subtasks_of(sample))


def _facts(rows: Iterable[Run]) -> list[RunFacts]:
    seen, found = observe(), list(rows)
    times: dict[int, dict[str, datetime]] = {run.pk: {} for run in found}
    changes = StatusChange.objects.filter(run__in=found).order_by()
    for key, status, at in changes.values_list("run", "status").annotate(Max("at")):
        times[key][status] = at
    result = []
    for run in found:
        state, reason = shown_state(run, seen)
        result.append(
            RunFacts(
                now=seen.now,
                run_id=run.run_id,
                pipeline=run.pipeline.name,
                state=state,
                reason=reason,
                attempt=run.attempt,
                restart_count=run.restart_count,
                parallelism=run.parallelism,
                max_parallelism=run.max_parallelism,
                settings=run.settings_now,
                parameters=run.parameters,
                restored_from=run.restored_from,
                first_checkpoint_id=run.first_checkpoint_id,
                created_at=run.created_at,
                started_at=run.started_at,
                ended_at=run.ended_at,
                last_event_at=run.last_event_at,
                status_times=times[run.pk],
                vertices=[VertexView(**vertex) for vertex in run.vertices],
                slots={int(slot): entry["host"] for slot, entry in run.slots.items()},
            )
        )
    return result


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
