"""The metrics page: what each operator of the newest run does now, and did recently."""

from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache

from csp.constants import SELF, UNSAFE_INLINE
from csp.decorators import csp_update
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET

from ftdash.formats import plural
from ftdash.jobs.answers import PipelinePage
from ftdash.metrics.queries.loads import RunLoads, VertexMoment, run_loads, trends
from ftdash.runs.queries import pipelines as job_queries
from ftdash.ui.events import shared
from ftdash.ui.figures.style import Chart
from ftdash.ui.metrics import operators, user_metrics
from ftdash.ui.metrics.operators import (
    OperatorRow,
    SubtaskRow,
    is_past,
    operator_rows,
    sentence,
)
from ftdash.ui.metrics.user_metrics import MetricRow, MetricTrendRow, metric_rows, past_metrics
from ftdash.ui.pipelines.page import data_at

TREND_ROWS_MAX = 30
SUBTASKS_LISTED = 80
PASTS_MAX = 16
"""The number of runs whose charts are kept, each until the run's next sample."""


@dataclass(frozen=True, slots=True)
class TrendRow:
    at: datetime
    moments: list[VertexMoment | None]  # in the order of the operators


@dataclass(frozen=True, slots=True)
class Past:
    names: list[str]
    rows: list[TrendRow]  # newest first
    charts: list[tuple[str, Chart]]  # heading and chart
    user_rows: list[MetricTrendRow]  # newest first
    user_chart: Chart


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsView:
    page: PipelinePage
    data_at: datetime | None
    loads: RunLoads | None
    sentence: str
    rows: list[OperatorRow]
    user_metrics: list[MetricRow]
    past: Past

    @property
    def subtask_count(self) -> int:
        return sum(len(row.subtasks) for row in self.rows)

    @property
    def subtasks_listed(self) -> list[SubtaskRow]:
        """All subtasks in their order, or the busiest; the pipeline's page has a map of all."""
        found = [subtask for row in self.rows for subtask in row.subtasks]
        if len(found) <= SUBTASKS_LISTED:
            return found
        return sorted(found, key=lambda each: -each.load.busy_ratio)[:SUBTASKS_LISTED]

    @property
    def is_past(self) -> bool:
        return is_past(self.page.run, self.loads)


# Plotly fills style elements and sets style attributes, and accepts no nonce.
@csp_update({"style-src": [SELF, UNSAFE_INLINE]})  # type: ignore[untyped-decorator]
@require_GET
@never_cache
def metrics(request: HttpRequest, name: str) -> HttpResponse:
    return render(request, "metrics/page.html", {"view": metrics_view(name)})


@require_GET
@never_cache
@shared
def metrics_regions(request: HttpRequest, name: str) -> HttpResponse:
    return render(request, "metrics/regions.html", {"view": metrics_view(name), "is_refresh": True})


def metrics_view(name: str) -> MetricsView:
    """Raises Http404 if the pipeline does not exist."""
    page = job_queries.pipeline_page(name)
    if page is None:
        raise Http404(f"There is no pipeline named {name}.")
    run = page.run
    loads = run_loads(run.run_id) if run else None
    vertices = run.vertices if run else []
    rows = operator_rows(vertices, loads)
    uids = tuple(vertex.uid for vertex in vertices)
    return MetricsView(
        page=page,
        data_at=data_at(page),
        loads=loads,
        sentence=sentence(rows, vertices),
        rows=rows,
        user_metrics=metric_rows(loads),
        past=past_of(run.run_id, loads.at, loads.attempt, uids) if run and loads else _past({}),
    )


@lru_cache(maxsize=PASTS_MAX)
def past_of(run_id: str, newest_at: datetime, attempt: int, uids: tuple[str, ...]) -> Past:
    """Draws the past once per sample for all viewers, because it is most of the page's cost.

    `newest_at` and `attempt` are those of the newest sample, and identify the past.
    """
    found = trends(run_id)
    ordered = {uid: found[uid] for uid in uids if uid in found}
    return _past(ordered)


def _past(found: dict[str, list[VertexMoment]]) -> Past:
    metrics = past_metrics(found)
    return Past(
        names=list(found),
        rows=trend_rows(found),
        charts=charts(found),
        user_rows=user_metrics.trend_rows(metrics, TREND_ROWS_MAX),
        user_chart=Chart("user-metrics", _user_sentence(metrics), user_metrics.figure(metrics)),
    )


def _user_sentence(metrics: user_metrics.Past) -> str:
    if not metrics:
        return "The functions of this pipeline have reported no metrics of their own."
    shown = min(len(metrics), user_metrics.PANELS_MAX)
    kept = "" if shown == len(metrics) else f"the first {shown} of "
    return (
        f"How {kept}{plural(len(metrics), 'metric')} changed in the last half hour; the tables"
        " below have the newest values. Counters and histograms begin at zero with each attempt."
    )


def charts(found: dict[str, list[VertexMoment]]) -> list[tuple[str, Chart]]:
    drawn = {
        "Throughput": (
            "records-in",
            operators.records_in,
            "Records that each operator takes in",
        ),
        "Busy": ("busy", operators.busy, "How much of the time each operator works"),
        "Backpressured": (
            "backpressured",
            operators.backpressured,
            "How much of the time each operator waits for those that it sends to",
        ),
        "Idle": ("idle", operators.idle, "How much of the time each operator has no input"),
        "Watermark": ("watermarks", operators.watermarks, "How far event time has come"),
    }
    points = max((len(moments) for moments in found.values()), default=0)
    span = f"at {plural(points, 'moment')} of the last half hour; the table below has the newest."
    return [
        (heading, Chart(name, f"{said}, {span}", draw(found)))
        for heading, (name, draw, said) in drawn.items()
    ]


def trend_rows(found: dict[str, list[VertexMoment]]) -> list[TrendRow]:
    by_time: dict[datetime, dict[str, VertexMoment]] = {}
    for name, moments in found.items():
        for each in moments[-TREND_ROWS_MAX:]:
            by_time.setdefault(each.at, {})[name] = each
    newest = sorted(by_time, reverse=True)[:TREND_ROWS_MAX]
    return [TrendRow(at, [by_time[at].get(name) for name in found]) for at in newest]
