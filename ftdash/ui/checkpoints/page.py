"""The page of a run's checkpoints: counts, the latest of each kind, all of them, and summaries.

The address chooses the run, a filter, and the part of the history to show; without a choice the
page follows the newest. An invalid value counts as not chosen, and the form says so next to the
field. The same filter applies to a CSV or JSON file. The file is sent while it is read, so that a
history of any length needs the memory of one chunk.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any

from asgiref.sync import sync_to_async
from csp.constants import SELF, UNSAFE_INLINE
from csp.decorators import csp_update
from django import forms
from django.http import (
    Http404,
    HttpRequest,
    HttpResponse,
    HttpResponseBadRequest,
    HttpResponseBase,
    QueryDict,
)
from django.shortcuts import render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET

from ftdash.checkpoints.answers import QUANTILES, CheckpointRow, Distribution
from ftdash.checkpoints.queries.completed_history import COMPLETED_MAX, trend
from ftdash.checkpoints.queries.statistics import (
    CheckpointDistributions,
    HistoryFilter,
    HistoryPart,
    RunStatistics,
    StatusChoice,
    history,
    statistics_of,
    whole_history,
)
from ftdash.formats import UNKNOWN, duration, size
from ftdash.jobs.answers import PipelinePage, RunBrief
from ftdash.runs.queries import pipelines as job_queries
from ftdash.runs.queries import runs as run_queries
from ftdash.ui.checkpoints.trends import TREND_COLUMNS, Trends, trends
from ftdash.ui.downloads import csv_parts, download, json_parts
from ftdash.ui.events import shared
from ftdash.ui.pipelines.page import Address, data_at, number_or_none, shown_run
from pipelines.domain.checkpoint_failures import CheckpointFailureReason
from pipelines.domain.settings.parsing import DEFINITIONS
from pipelines.domain.status import CheckpointKind

CHECKPOINT_ID_MAX = 2**63 - 1
ANY = ("", "any")
KINDS = [(kind.value, kind.value.lower()) for kind in CheckpointKind]


def _id_field(label: str) -> forms.IntegerField:
    return forms.IntegerField(label=label, required=False, min_value=0, max_value=CHECKPOINT_ID_MAX)


class HistoryForm(forms.Form):
    status = forms.ChoiceField(required=False, choices=[ANY, *StatusChoice.choices])
    kind = forms.ChoiceField(required=False, choices=[ANY, *KINDS])
    reason = forms.ChoiceField(label="Failed because", required=False)
    from_id = _id_field("From checkpoint")
    to_id = _id_field("To checkpoint")

    def __init__(self, query: QueryDict, reasons: Iterable[CheckpointFailureReason]) -> None:
        super().__init__(query)
        named = [(each.name, each.value) for each in reasons]
        self.fields["reason"] = forms.ChoiceField(
            label="Failed because", required=False, choices=[ANY, *named]
        )
        self.is_valid()

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or self.cleaned_data
        least, most = cleaned.get("from_id"), cleaned.get("to_id")
        if least is not None and most is not None and least > most:
            self.add_error("to_id", f"Nothing lies from {least} to {most}; swap them.")
        return cleaned

    @property
    def chosen(self) -> HistoryFilter:
        given = self.cleaned_data
        return HistoryFilter(
            status=StatusChoice(given["status"]) if given.get("status") else None,
            kind=CheckpointKind(given["kind"]) if given.get("kind") else None,
            reason_name=given.get("reason") or "",
            from_id=given.get("from_id"),
            to_id=given.get("to_id"),
        )

    @property
    def is_chosen(self) -> bool:
        return self.chosen != HistoryFilter()


COLUMNS = [field.name for field in fields(CheckpointRow)]


class Refusal(Exception):
    """The filter is invalid; the sentences say why."""


@require_GET
@never_cache
async def as_csv(request: HttpRequest, name: str) -> HttpResponseBase:
    return await _download(request, name, "csv", "text/csv; charset=utf-8")


@require_GET
@never_cache
async def as_json(request: HttpRequest, name: str) -> HttpResponseBase:
    return await _download(request, name, "json", "application/json")


async def _download(
    request: HttpRequest, name: str, kind: str, content_type: str
) -> HttpResponseBase:
    try:
        run, chosen = await sync_to_async(_wanted)(name, request.GET)
    except Refusal as refusal:
        return HttpResponseBadRequest(str(refusal), content_type="text/plain; charset=utf-8")
    chunks = whole_history(run.run_id, chosen)
    parts = csv_parts(COLUMNS, chunks) if kind == "csv" else json_parts(chunks)
    return download(parts, f"{name}-run-{run.number}-checkpoints.{kind}", content_type)


def _wanted(name: str, query: QueryDict) -> tuple[RunBrief, HistoryFilter]:
    """Raises Refusal if the filter is invalid, and Http404 if there is no run."""
    found = job_queries.pipeline_page(name)
    run = shown_run(found, Address.parse(query)) if found else None
    if run is None:
        raise Http404(f"There is no run of a pipeline named {name}.")
    form = HistoryForm(query, CheckpointFailureReason)
    if form.errors:
        sentences = [f"{field}: {why}" for field, all_of in form.errors.items() for why in all_of]
        raise Refusal("\n".join(sentences))
    return run, form.chosen


SETTINGS = ("execution.checkpointing.", "state.", "restart-strategy.")
"""The prefixes of settings that control how checkpoints are taken and restored."""


@dataclass(frozen=True, slots=True)
class SummaryRow:
    label: str
    cells: list[str]  # in the order of `SUMMARY_COLUMNS`


@dataclass(frozen=True, slots=True)
class SettingRow:
    key: str
    value: str
    is_default: bool
    help: str


Column = tuple[str, Callable[[CheckpointDistributions], Distribution], Callable[[float], str]]
_COLUMNS: list[Column] = [
    ("End to end duration", lambda each: each.end_to_end_ms, duration),
    ("Longest alignment", lambda each: each.alignment_ms, duration),
    ("Uploaded", lambda each: each.uploaded_bytes, size),
    ("Full size", lambda each: each.state_bytes, size),
    ("Held back while aligning", lambda each: each.buffered_bytes, size),
    ("In flight, kept", lambda each: each.persisted_bytes, size),
]
SUMMARY_COLUMNS = [label for label, _, _ in _COLUMNS]
_LABELS = [f"{100 * share:g} %" for share in QUANTILES]


def summary_rows(summary: CheckpointDistributions) -> list[SummaryRow]:
    """Minimum, average and maximum, and the quantiles that Flink shows."""
    found = [(column(summary), written) for _, column, written in _COLUMNS]
    return [
        SummaryRow("Minimum", [_written(each, each.minimum, write) for each, write in found]),
        SummaryRow("Average", [_written(each, each.average, write) for each, write in found]),
        *(
            SummaryRow(label, [_quantile(each, index, write) for each, write in found])
            for index, label in enumerate(_LABELS)
        ),
        SummaryRow("Maximum", [_written(each, each.maximum, write) for each, write in found]),
    ]


def _written(found: Distribution, value: float, write: Callable[[float], str]) -> str:
    """Without measurements, zeros mean unknown."""
    return write(value) if found.quantiles else UNKNOWN


def _quantile(found: Distribution, index: int, write: Callable[[float], str]) -> str:
    return write(found.quantiles[index]) if found.quantiles else UNKNOWN


def setting_rows(given: Mapping[str, str]) -> list[SettingRow]:
    """How a run takes and restores its checkpoints: each setting, given or by default."""
    return [
        SettingRow(
            key=each.key,
            value=given.get(each.key, each.default),
            is_default=each.key not in given,
            help=each.help,
        )
        for each in DEFINITIONS
        if each.key.startswith(SETTINGS)
    ]


ROWS_PER_PART = 25
RUNS_LINKED = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointsView:
    page: PipelinePage
    data_at: datetime | None  # the time of the data shown
    shown_run: RunBrief | None
    statistics: RunStatistics | None
    form: HistoryForm
    part: HistoryPart | None
    is_following: bool  # shows the newest part, which new checkpoints join
    summary: list[SummaryRow]
    settings: list[SettingRow]
    trends: Trends

    summary_columns = SUMMARY_COLUMNS
    trend_columns = TREND_COLUMNS

    @property
    def is_newest_run(self) -> bool:
        return self.shown_run is None or self.shown_run.run_id == self.page.runs[0].run_id

    @property
    def other_runs(self) -> list[RunBrief]:
        return [run for run in self.page.runs[:RUNS_LINKED] if run != self.shown_run]

    @property
    def summarised_count(self) -> int:
        return min(self.statistics.counts.completed, COMPLETED_MAX) if self.statistics else 0


# Plotly fills style elements and sets style attributes, and accepts no nonce.
@csp_update({"style-src": [SELF, UNSAFE_INLINE]})  # type: ignore[untyped-decorator]
@require_GET
@never_cache
def page(request: HttpRequest, name: str) -> HttpResponse:
    return render(request, "checkpoints/page.html", {"view": checkpoints_view(name, request.GET)})


@require_GET
@never_cache
@shared
def regions(request: HttpRequest, name: str) -> HttpResponse:
    context = {"view": checkpoints_view(name, request.GET), "is_refresh": True}
    return render(request, "checkpoints/regions.html", context)


def checkpoints_view(name: str, query: QueryDict) -> CheckpointsView:
    """Raises Http404 if the pipeline or its run does not exist."""
    found = job_queries.pipeline_page(name)
    if found is None:
        raise Http404(f"There is no pipeline named {name}.")
    shown = shown_run(found, Address.parse(query))
    run_id = shown.run_id if shown else ""
    facts, statistics = run_queries.run(run_id), statistics_of(run_id)
    failures = statistics.failures if statistics else []
    form = HistoryForm(query, [CheckpointFailureReason[each.reason_name] for each in failures])
    after, before = number_or_none(query.get("after")), number_or_none(query.get("before"))
    return CheckpointsView(
        page=found,
        data_at=data_at(found),
        shown_run=shown,
        statistics=statistics,
        form=form,
        part=history(run_id, form.chosen, after=after, before=before, limit=ROWS_PER_PART),
        is_following=after is None and before is None,
        summary=summary_rows(statistics.summary) if statistics else [],
        settings=setting_rows(facts.settings) if facts else [],
        trends=trends(trend(run_id)),
    )
