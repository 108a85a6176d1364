"""Reads runs: those of all pipelines, for programs, and one run with what its page shows.

A listed run has its shape and its times. A pipeline's newest run comes with the token that changes
whenever its pages do.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models import F, Max, OuterRef, QuerySet, Subquery

from ftdash.among import among
from ftdash.checkpoints.models import Checkpoint
from ftdash.jobs.answers import RunView, ShownState, SlotView, SubtaskView, VertexView
from ftdash.jobs.directories import run_directory
from ftdash.jobs.models import TERMINAL_STATUSES, Pipeline, Run, StatusChange
from ftdash.metrics.models import Sample
from ftdash.runs.fleet_answers import NewestRun
from ftdash.runs.queries.freshness import (
    AnyRun,
    Observation,
    fresh_driver_note,
    observe,
    shown_state,
)
from ftdash.runs.queries.planning import measured
from ftdash.times import watermark_moment
from pipelines.domain.gaps import Gap
from pipelines.domain.run import SnapshotPlaces
from pipelines.domain.settings import CheckpointingMode
from pipelines.domain.settings.parsing import parse_settings
from pipelines.points.verdict import Measured


def run_view(run: Run, seen: Observation) -> RunView:
    state, reason = shown_state(run, seen)
    sample = Sample.objects.filter(run=run).order_by("-sequence").first()
    directory = run_directory(run)
    known, to_replay = measured(run.pipeline), records_to_replay(run)
    return RunView(
        run_id=run.run_id,
        number=run.number,
        attempt=run.attempt,
        state=state,
        state_reason=reason,
        last_reported_state=run.status,
        as_of=run.last_event_at,
        driver_note=fresh_driver_note(run),
        projection_error=run.projection_error,
        guarantee=run.guarantee,
        guarantee_reason=run.guarantee_reason,
        parallelism=run.parallelism,
        max_parallelism=run.max_parallelism,
        master=run.master,
        code=run.code_described,
        parameters=run.parameters,
        settings=run.settings_now,
        restored_from=run.restored_from,
        parent_run_id=run.parent.run_id if run.parent else None,
        input_gaps=[Gap(**gap) for gap in run.input_gaps],
        created_at=run.created_at,
        started_at=run.started_at,
        ended_at=run.ended_at,
        driver_pid=run.driver_pid,
        records_per_s=run.records_per_s,
        watermark_at=watermark_moment(run.watermark_ms),
        last_checkpoint_id=run.last_checkpoint_id,
        last_completed_at=run.last_completed_at,
        last_committed_at=run.last_committed_at,
        restart_count=run.restart_count,
        counters=run.counters,
        vertices=[VertexView(**vertex) for vertex in run.vertices],
        slots=_slots(run, sample),
        subtasks=subtasks_of(sample),
        records_to_replay=to_replay,
        to_recover_ms=to_recover_ms(run, known, to_replay),
        restart_at=run.goes_on_at,
        next_restart_delay_ms=run.next_restart_delay_ms,
        recovery_count=len(known.recoveries_ms),
        journal_path=str(directory.journal_file),
        journal_gap=run.journal_gap,
        driver_log_path=str(directory.driver_log),
    )


def to_recover_ms(run: AnyRun, known: Measured, to_replay: int | None) -> float | None:
    """Returns the time from a failure now until all is read again, with the restart delay."""
    working_ms = known.until_caught_up_ms(to_replay)
    return None if working_ms is None else working_ms + (run.next_restart_delay_ms or 0.0)


def records_to_replay(run: Run) -> int | None:
    """Returns how much the sources have read past the point that a failure now would restore.

    It is as of the last report, and the difference of two positions, so repeated reads do not
    count. None means that nothing would be replayed because the run is over, or that nothing is
    known.
    """
    return records_to_replay_of_each([run])[run.pk]


def records_to_replay_of_each(runs: Collection[Run]) -> dict[int, int | None]:
    """Returns `records_to_replay` by primary key of the run, with one query for any number."""
    living = [run for run in runs if not run.is_terminal]
    newest = Checkpoint.objects.filter(
        run__in=living, checkpoint_id=F("run__last_checkpoint_id")
    ).order_by()
    known = {run.pk: run.restored_records for run in living}
    known |= dict(newest.values_list("run_id", "source_records"))
    return dict.fromkeys(run.pk for run in runs) | {
        run.pk: behind(run, known[run.pk]) for run in living
    }


def behind(run: AnyRun, since: int | None) -> int | None:
    """`since` is what the sources of a living run had read at the point to go back to."""
    mode = run.settings_now.get("execution.checkpointing.mode", "")
    if mode.strip().upper().replace("-", "_") == CheckpointingMode.AT_MOST_ONCE:
        return 0  # records that were read are lost, and not read again
    if run.reached_records is None or since is None:
        return None
    return max(0, run.reached_records - since)


def _slots(run: Run, sample: Sample | None) -> list[SlotView]:
    resident = sample.resident_bytes if sample else {}
    return [
        SlotView(int(slot), entry["pid"], entry["host"], resident.get(slot))
        for slot, entry in sorted(run.slots.items(), key=lambda item: int(item[0]))
    ]


def subtasks_of(sample: Sample | None) -> list[SubtaskView]:
    """Without metrics of functions and hottest keys, which `metrics.queries.loads` reads."""
    entries = [dict(entry) for entry in sample.subtasks] if sample else []
    for entry in entries:
        entry.pop("metrics", None)
        entry.pop("hot_keys", None)
    return [
        SubtaskView(watermark_at=watermark_moment(entry.pop("watermark_ms")), **entry)
        for entry in entries
    ]


ENDED_MAX = 50
"""How many ended runs are listed, the newest; you can still ask for any run by its id."""


@dataclass(frozen=True, slots=True, kw_only=True)
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
    """Returns all living runs and the newest that have ended; newest first."""
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
    """Returns the run's directory for savepoints, or None if there is no such run."""
    found = Run.objects.filter(run_id=run_id).select_related("pipeline").first()
    if found is None:
        return None
    return SnapshotPlaces.of(
        run_directory(found), parse_settings(found.settings_now).storage
    ).savepoints


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


_IN_BRIEF = NewestRun._fields
_PIPELINE_IN_BRIEF = ("name", "flow", "parallelism", "labels", "version")


def newest_runs(pipelines: Collection[int] | None = None) -> list[tuple[Pipeline, Run | None]]:
    """Returns every pipeline by name, or those with the keys; None before its first run."""
    chosen = _with_newest_run()
    found = list(chosen if pipelines is None else chosen.filter(pk__in=pipelines))
    runs = Run.objects.in_bulk([each.newest_run for each in found if each.newest_run is not None])
    for each in found:
        if each.newest_run in runs:
            runs[each.newest_run].pipeline = each
    return [(each, runs.get(each.newest_run)) for each in found]


def newest_runs_in_brief() -> list[tuple[Pipeline, NewestRun | None]]:
    """Returns `newest_runs` of all pipelines, for lists of them.

    Any other column of a pipeline costs a query of its own.
    """
    found = list(_with_newest_run().only(*_PIPELINE_IN_BRIEF))
    keys = [each.newest_run for each in found if each.newest_run is not None]
    rows = Run.objects.filter(among("pk", keys)).order_by()
    runs = {row[0]: NewestRun._make(row) for row in rows.values_list(*_IN_BRIEF)}
    return [(each, runs.get(each.newest_run)) for each in found]


def _with_newest_run() -> QuerySet[Any]:
    newest = Run.objects.filter(pipeline=OuterRef("pk")).order_by("-number").values("pk")[:1]
    return Pipeline.objects.annotate(newest_run=Subquery(newest))


def version(pipeline: Pipeline, run: AnyRun | None, seen: Observation, state: ShownState) -> str:
    late = "" if seen.reconcile.is_alive else "late"
    of_run = f"{run.number}.{run.version}" if run else "0.0"
    return f"{pipeline.version}.{of_run}.{state}{late}"
