"""The only readers of the rows of jobs, for pages, API and command line."""

import msgspec
from django.db.models import QuerySet

from ftdash.formats import plural
from ftdash.jobs.answers import (
    Mark,
    PipelinePage,
    QuarantinedView,
    QuarantineView,
    ReplayView,
    RequestView,
    RunBrief,
)
from ftdash.jobs.models import (
    OPEN_PHASES,
    Pipeline,
    QuarantinedRecord,
    Request,
    RequestPhase,
    Run,
)
from ftdash.requests.storing import offers
from ftdash.runs.queries.fleet import fleet
from ftdash.runs.queries.freshness import Observation, observe, shown_state
from ftdash.runs.queries.recovery_axis import recovery_axis
from ftdash.runs.queries.runs import newest_runs, newest_runs_in_brief, run_view, version
from pipelines.domain.commands import ChangeSettings

__all__ = [
    "fleet",
    "newest_runs",
    "observe",
    "pipeline_labels",
    "pipeline_names",
    "pipeline_page",
    "quarantine",
    "recovery_axis",
    "request",
    "requests",
    "versions",
]

RUNS_MAX = 50
OPEN_REQUESTS_MAX = 20
MARKS_MAX = 30
"""How many marks the time axes have; the pages name the newest and fold up the others."""

DELIVERY_LATE_AFTER_S = 3.0
RECORDS_REPLAYED = "records_replayed"
"""A source's counter; its value is for the whole lineage."""


def pipeline_page(name: str) -> PipelinePage | None:
    """Everything but history about one pipeline; None if no pipeline has that name."""
    pipeline = Pipeline.objects.filter(name=name).first()
    if pipeline is None:
        return None
    seen = observe()
    runs = list(pipeline.runs.select_related("parent").order_by("-number")[:RUNS_MAX])
    newest = runs[0] if runs else None
    view = run_view(newest, seen) if newest else None
    waiting = Request.objects.filter(pipeline=pipeline, phase__in=OPEN_PHASES)
    return PipelinePage(
        now=seen.now,
        name=pipeline.name,
        flow=pipeline.flow,
        parallelism=pipeline.parallelism,
        max_parallelism=pipeline.max_parallelism,
        parameters=pipeline.parameters,
        settings=pipeline.settings,
        allows_faults=pipeline.allows_faults,
        labels=pipeline.labels,
        version=version(pipeline, newest, seen, shown_state(newest, seen)[0]),
        run=view,
        runs=[_brief(run, seen) for run in runs],
        actions=offers(pipeline, newest, view),
        open_requests=_request_views(waiting, seen, OPEN_REQUESTS_MAX),
        marks=_marks(pipeline, runs),
        projector=seen.projector,
        reconcile=seen.reconcile,
    )


def _marks(pipeline: Pipeline, runs: list[Run]) -> list[Mark]:
    changes = Request.objects.filter(
        pipeline=pipeline, kind=ChangeSettings.kind, phase=RequestPhase.SUCCEEDED
    )
    found = [
        Mark(each.ended_at, f"{each.requester} changed {_settings_of(each)}")
        for each in changes.order_by("-id")[:MARKS_MAX]
        if each.ended_at
    ]
    for run in runs[:MARKS_MAX]:
        if run.started_at is not None:
            code = f" with {run.code_described}" if run.code_described else ""
            found.append(Mark(run.started_at, f"run {run.number} started{code}"))
    return sorted(found, key=lambda mark: mark.at)[-MARKS_MAX:]


def _settings_of(change: Request) -> str:
    """Returns `execution.checkpointing.interval to 7 s`; of many settings, only the first."""
    command = change.command
    changed = command.settings if isinstance(command, ChangeSettings) else {}
    if not changed:
        return "settings"
    key, value = next(iter(changed.items()))
    more = f" and {plural(len(changed) - 1, 'more setting')}" if len(changed) > 1 else ""
    return f"{key} to {value}{more}"


def requests(pipeline: str | None = None, limit: int = 50) -> list[RequestView]:
    """Returns the audit log, newest first."""
    found = Request.objects.all()
    if pipeline is not None:
        found = found.filter(pipeline__name=pipeline)
    return _request_views(found, observe(), limit)


def request(request_id: str) -> RequestView | None:
    found = _request_views(Request.objects.filter(request_id=request_id), observe(), 1)
    return found[0] if found else None


def quarantine(run_id: str, limit: int) -> QuarantineView | None:
    """Returns the newest `limit` records that one run has set aside, and the replays.

    The replays are runs, this one or later ones, that read a quarantine again. None means that
    there are neither records nor replays.
    """
    rows = QuarantinedRecord.objects.filter(run__run_id=run_id).order_by("-sequence")
    newest, replays = list(rows[:limit]), _replays_since(run_id)
    if not newest and not replays:
        return None
    most = newest[0].limit if newest else 0
    return QuarantineView(rows.count(), most, [_quarantined(row) for row in newest], replays)


def pipeline_labels(name: str) -> list[str] | None:
    """Returns the labels by which people group it, or None if there is no such pipeline."""
    found = Pipeline.objects.filter(name=name).values_list("labels", flat=True).first()
    return None if found is None else list(found)


def pipeline_names() -> list[str]:
    return list(Pipeline.objects.values_list("name", flat=True))


def versions() -> dict[str, str]:
    """Returns a token for each pipeline by name, which changes whenever its pages do. Cheap."""
    seen = observe()
    return {
        pipeline.name: version(pipeline, run, seen, shown_state(run, seen)[0])
        for pipeline, run in newest_runs_in_brief()
    }


def _brief(run: Run, seen: Observation) -> RunBrief:
    state, reason = shown_state(run, seen)
    return RunBrief(
        run_id=run.run_id,
        number=run.number,
        state=state,
        parallelism=run.parallelism,
        restored_from=run.restored_from,
        parent_run_id=run.parent.run_id if run.parent else None,
        started_at=run.started_at,
        ended_at=run.ended_at,
        reason=reason,
    )


def _quarantined(row: QuarantinedRecord) -> QuarantinedView:
    found = {**vars(row), "error_type": row.error_type.rpartition(".")[2]}
    return msgspec.convert(found, QuarantinedView)


def _replays_since(run_id: str) -> list[ReplayView]:
    run = Run.objects.filter(run_id=run_id).first()
    if run is None:
        return []
    later = Run.objects.filter(pipeline=run.pipeline_id, number__gte=run.number)
    return [_replay(each) for each in later.exclude(replayed_sources=[]).order_by("-number")]


def _replay(run: Run) -> ReplayView:
    sources = [str(uid) for uid in run.replayed_sources]
    records = sum(run.counters.get(f"{uid}.{RECORDS_REPLAYED}", 0) for uid in sources)
    return ReplayView(run.run_id, run.number, sources, records)


def _request_views(found: QuerySet[Request], seen: Observation, limit: int) -> list[RequestView]:
    rows = found.prefetch_related("pipeline", "run").order_by("-id")[:limit]
    return [_request_view(row, seen) for row in rows]


def _request_view(row: Request, seen: Observation) -> RequestView:
    phase, command = RequestPhase(row.phase), row.command
    age_s = (seen.now - row.created_at).total_seconds()
    waits = phase is RequestPhase.PENDING and age_s > DELIVERY_LATE_AFTER_S
    return RequestView(
        request_id=row.request_id,
        kind=command.kind,
        label=command.action,
        pipeline=row.pipeline.name,
        run_id=row.run.run_id if row.run else None,
        parameters=command.parameters,
        requester=row.requester,
        reason=row.reason,
        phase=phase,
        phase_label=str(phase.label),
        is_open=phase in OPEN_PHASES,
        waits_for_delivery=waits,
        message=row.message,
        path=row.path,
        checkpoint_id=row.checkpoint_id,
        created_at=row.created_at,
        ended_at=row.ended_at,
        deadline_at=row.deadline_at,
    )
