"""The page of one checkpoint: all figures by operator and subtask, its alignment, a comparison."""

from dataclasses import dataclass
from datetime import datetime

from csp.constants import SELF, UNSAFE_INLINE
from csp.decorators import csp_update
from django import forms
from django.http import Http404, HttpRequest, HttpResponse, QueryDict
from django.shortcuts import render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET

from ftdash.checkpoints.answers import AlignmentTimeline
from ftdash.checkpoints.queries.detail import (
    CHECKPOINT_ID_MAX,
    CheckpointDetail,
    checkpoint_detail,
)
from ftdash.jobs.answers import PipelinePage, RunBrief
from ftdash.runs.queries import pipelines as job_queries
from ftdash.ui import sentences
from ftdash.ui.checkpoint.comparison import Comparison, comparison
from ftdash.ui.checkpoint.part_rows import (
    Heading,
    Held,
    OperatorRow,
    SubtaskOrder,
    held_back,
    held_channels,
    operator_rows,
    type_words,
)
from ftdash.ui.figures.alignment import alignment
from ftdash.ui.pipelines.parts import Chart
from ftdash.ui.pipelines.view import Address, data_at, shown_run
from ftdash.ui.shared_regions import shared


class CompareForm(forms.Form):
    against = forms.IntegerField(
        label="Compare with checkpoint", required=False, min_value=0, max_value=CHECKPOINT_ID_MAX
    )


@dataclass(frozen=True, slots=True)
class CheckpointView:
    page: PipelinePage
    data_at: datetime | None  # the age of what is shown
    shown_run: RunBrief
    detail: CheckpointDetail
    type: str
    operators: list[OperatorRow]
    subtask_headings: list[Heading]
    alignment_chart: Chart
    held_back_chart: Chart
    held_channels: list[Held]
    form: CompareForm
    comparison: Comparison | None
    other_chart: Chart

    @property
    def is_newest_run(self) -> bool:
        return self.shown_run.run_id == self.page.runs[0].run_id

    @property
    def timeline(self) -> AlignmentTimeline:
        return self.detail.timeline


# Plotly fills style elements and sets style attributes, and accepts no nonce.
@csp_update({"style-src": [SELF, UNSAFE_INLINE]})  # type: ignore[untyped-decorator]
@require_GET
@never_cache
def page(request: HttpRequest, name: str, checkpoint_id: int) -> HttpResponse:
    view = checkpoint_view(name, checkpoint_id, request.GET)
    return render(request, "checkpoint/page.html", {"view": view})


@require_GET
@never_cache
@shared
def regions(request: HttpRequest, name: str, checkpoint_id: int) -> HttpResponse:
    view = checkpoint_view(name, checkpoint_id, request.GET)
    return render(request, "checkpoint/regions.html", {"view": view, "is_refresh": True})


def checkpoint_view(name: str, checkpoint_id: int, query: QueryDict) -> CheckpointView:
    """Raises Http404 if the pipeline, its run or the run's checkpoint does not exist."""
    found = job_queries.pipeline_page(name)
    if found is None:
        raise Http404(f"There is no pipeline named {name}.")
    run = shown_run(found, Address.parse(query))
    detail = checkpoint_detail(run.run_id, checkpoint_id) if run else None
    if run is None or detail is None:
        raise Http404(f"{name} has no checkpoint {checkpoint_id} in this run.")
    form, order = CompareForm(query), SubtaskOrder.parse(query.get("order", ""))
    compared = _compared(run.run_id, detail, form)
    return CheckpointView(
        page=found,
        data_at=data_at(found),
        shown_run=run,
        detail=detail,
        type=type_words(detail.found),
        operators=operator_rows(detail, order),
        subtask_headings=order.headings(),
        alignment_chart=_chart("alignment", detail.timeline),
        held_back_chart=Chart(
            "held-back", sentences.held_back(detail.timeline), held_back(detail.timeline)
        ),
        held_channels=held_channels(detail.timeline),
        form=form,
        comparison=compared,
        other_chart=_chart("other", compared.other.timeline if compared else None),
    )


def _compared(run_id: str, detail: CheckpointDetail, form: CompareForm) -> Comparison | None:
    against = form.cleaned_data.get("against") if form.is_valid() else None
    if against is None:
        return None
    other = checkpoint_detail(run_id, against)
    if other is None:
        form.add_error("against", f"There is no checkpoint {against} in this run.")
        return None
    return comparison(detail, other)


def _chart(name: str, timeline: AlignmentTimeline | None) -> Chart:
    return Chart(name, sentences.alignment(timeline), alignment(timeline))
