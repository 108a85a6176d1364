"""The planner: how often to checkpoint, how much that writes, and how long a recovery takes.

A chart shows the share of time lost to checkpoints and to failures, by interval.
"""

from dataclasses import dataclass
from datetime import datetime

from csp.constants import SELF, UNSAFE_INLINE
from csp.decorators import csp_update
from django.http import Http404, HttpRequest, HttpResponse, QueryDict
from django.shortcuts import render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET

from ftdash.formats import duration, percent
from ftdash.jobs.answers import PipelinePage
from ftdash.runs.queries import pipelines as job_queries
from ftdash.runs.queries.planning import MeasuredRecovery, PlanningFacts, planning_facts
from ftdash.ui.events import shared
from ftdash.ui.figures.style import Chart, Figure, Json, axis, layout
from ftdash.ui.pipelines.page import data_at
from ftdash.ui.planner.estimates import (
    Estimate,
    IntervalRow,
    PlannerForm,
    Presumed,
    advice_sentence,
    advised,
    costs_of,
    interval_rows,
    presumed,
    recovery_estimates,
    volume_estimates,
)
from pipelines.domain.planning import Costs, lost_ratio

POINTS = 60
SPAN = 30.0
"""The chart goes from a thirtieth of the best interval to thirty times it."""


def lost_time(costs: Costs, best_ms: float, now_ms: float | None) -> Figure | None:
    if best_ms <= 0:
        return None
    steps = [best_ms / SPAN * SPAN ** (2 * index / (POINTS - 1)) for index in range(POINTS)]
    data = [
        curve("all lost time", steps, [lost_ratio(step, costs) for step in steps], "solid", 1),
        curve("by checkpoints", steps, [costs.checkpoint_ms / step for step in steps], "dash", 2),
        mark("advised", best_ms, costs, "star"),
    ]
    if now_ms is not None and now_ms > 0:
        data.append(mark("set now", now_ms, costs, "circle"))
    return {
        "data": data,
        "layout": layout(
            260,
            showlegend=True,
            hovermode="closest",
            xaxis=axis(type="log", title={"text": "interval, s", "standoff": 4}, nticks=8),
            yaxis=axis(type="log", title={"text": "% of the time", "standoff": 4}, nticks=6),
        ),
    }


def curve(name: str, steps: list[float], ratios: list[float], dash: str, color: int) -> Json:
    return {
        **points(name, steps, ratios),
        "mode": "lines",
        "line": {"color": f"@series-{color}", "dash": dash, "width": 2},
    }


def mark(name: str, interval_ms: float, costs: Costs, symbol: str) -> Json:
    return {
        **points(name, [interval_ms], [lost_ratio(interval_ms, costs)]),
        "mode": "markers",
        "marker": {"symbol": symbol, "size": 12, "color": "@text"},
    }


def points(name: str, intervals_ms: list[float], ratios: list[float]) -> Json:
    return {
        "type": "scatter",
        "name": name,
        "x": [interval / 1000 for interval in intervals_ms],
        "y": [100 * ratio for ratio in ratios],
        "customdata": [
            f"{percent(ratio)} at {duration(interval)}"
            for interval, ratio in zip(intervals_ms, ratios, strict=True)
        ],
        "hovertemplate": f"{name}: %{{customdata}}<extra></extra>",
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannerView:
    page: PipelinePage
    data_at: datetime | None
    facts: PlanningFacts | None
    form: PlannerForm
    given: Presumed | None
    sentence: str
    chart: Chart
    intervals: list[IntervalRow]
    volume: list[Estimate]
    recovery: list[Estimate]

    @property
    def recoveries(self) -> list[MeasuredRecovery]:
        return self.facts.recoveries if self.facts else []

    @property
    def is_presumed(self) -> bool:
        """True if something on the page follows from the form, not from measurements."""
        return any(value is not None for value in self.form.cleaned_data.values())


# Plotly fills style elements and sets style attributes, and accepts no nonce.
@csp_update({"style-src": [SELF, UNSAFE_INLINE]})  # type: ignore[untyped-decorator]
@require_GET
@never_cache
def planner(request: HttpRequest, name: str) -> HttpResponse:
    return render(request, "planner/page.html", {"view": planner_view(name, request.GET)})


@require_GET
@never_cache
@shared
def planner_regions(request: HttpRequest, name: str) -> HttpResponse:
    view = planner_view(name, request.GET)
    return render(request, "planner/regions.html", {"view": view, "is_refresh": True})


def planner_view(name: str, query: QueryDict) -> PlannerView:
    """Raises Http404 if the pipeline does not exist."""
    page = job_queries.pipeline_page(name)
    if page is None:
        raise Http404(f"There is no pipeline named {name}.")
    facts, form = planning_facts(name), PlannerForm(query)
    if facts is None:
        form.is_valid()
        nothing = "Nothing was measured yet: it has no run."
        chart = Chart("lost-time", "", None)
        return PlannerView(
            page=page,
            data_at=data_at(page),
            facts=None,
            form=form,
            given=None,
            sentence=nothing,
            chart=chart,
            intervals=[],
            volume=[],
            recovery=[],
        )
    given = presumed(facts, form)
    costs = costs_of(given, facts)
    found = advised(costs, facts)
    return PlannerView(
        page=page,
        data_at=data_at(page),
        facts=facts,
        form=form,
        given=given,
        sentence=advice_sentence(found, facts),
        chart=Chart(
            "lost-time",
            "The share of the time that checkpoints and failures take, by interval; the table below"
            " has the intervals that matter.",
            lost_time(costs, found.interval_ms, given.interval_ms) if costs and found else None,
        ),
        intervals=interval_rows(costs, found, given, facts) if costs and found else [],
        volume=volume_estimates(given, facts),
        recovery=recovery_estimates(given, facts),
    )
