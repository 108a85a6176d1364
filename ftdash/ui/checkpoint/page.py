"""The page of one checkpoint: its figures by operator and subtask, its alignment, a comparison.

The comparison shows two checkpoints side by side, in a sentence and in the lines of tables.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields
from datetime import datetime

from csp.constants import SELF, UNSAFE_INLINE
from csp.decorators import csp_update
from django import forms
from django.http import Http404, HttpRequest, HttpResponse, QueryDict
from django.shortcuts import render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET

from ftdash.checkpoints.answers import AlignmentTimeline, SubtaskTimeline
from ftdash.checkpoints.queries.detail import (
    CHECKPOINT_ID_MAX,
    CheckpointDetail,
    checkpoint_detail,
    longest_growth,
)
from ftdash.formats import UNKNOWN, count, duration, size
from ftdash.jobs.answers import PipelinePage, RunBrief
from ftdash.runs.queries import pipelines as job_queries
from ftdash.ui import sentences
from ftdash.ui.checkpoint.part_rows import (
    MEASURES,
    SUBTASKS_SHOWN,
    Heading,
    Held,
    OperatorRow,
    SubtaskFigures,
    SubtaskOrder,
    all_figures,
    bands_of,
    held_back,
    held_channels,
    is_wide,
    operator_rows,
    type_words,
)
from ftdash.ui.downloads import csv_parts
from ftdash.ui.events import shared
from ftdash.ui.figures.alignment import alignment, channels_to_draw, subtasks_to_draw
from ftdash.ui.figures.heat import Measure, chosen_measure, heat_map, heat_sentence
from ftdash.ui.figures.style import Chart
from ftdash.ui.pipelines.page import Address, data_at, number_or_none, shown_run

SUBTASKS_LISTED = 50
Write = Callable[[float], str]
Pair = tuple[SubtaskTimeline, SubtaskTimeline]

PHASE_WORDS = {
    "start delay": "the start delay of",
    "travel": "the way of the barrier to",
    "alignment": "the alignment of",
    "sync": "the cut of the state of",
    "async": "the upload of the state of",
}
SUBTASK_COLUMNS = ("Start delay", "Alignment", "Sync", "Async", "Full size", "Held back")


@dataclass(frozen=True, slots=True)
class FigureRow:
    label: str
    shown: str
    other: str
    change: str


@dataclass(frozen=True, slots=True)
class SubtaskChange:
    """A subtask's acknowledgement time, and its changes in the order of `SUBTASK_COLUMNS`."""

    name: str
    acknowledged: FigureRow
    changes: list[str]


@dataclass(frozen=True, slots=True)
class Comparison:
    """`subtasks` are those that changed most, of the `subtask_count` known in both."""

    other: CheckpointDetail
    sentence: str
    figures: list[FigureRow]
    subtasks: list[SubtaskChange]
    subtask_count: int

    subtask_columns = SUBTASK_COLUMNS


def comparison(shown: CheckpointDetail, other: CheckpointDetail) -> Comparison:
    pairs = _pairs(shown, other)
    pairs.sort(key=lambda pair: -abs(pair[0].acknowledged_ms - pair[1].acknowledged_ms))
    return Comparison(
        other=other,
        sentence=" ".join([_took(shown, other), *_grown(shown, other), *_size(shown, other)]),
        figures=_figures(shown, other),
        subtasks=[_subtask(*pair) for pair in pairs[:SUBTASKS_LISTED]],
        subtask_count=len(pairs),
    )


def _pairs(shown: CheckpointDetail, other: CheckpointDetail) -> list[Pair]:
    same = {(each.vertex, each.subtask): each for each in other.timeline.subtasks}
    return [
        (each, same[each.vertex, each.subtask])
        for each in shown.timeline.subtasks
        if (each.vertex, each.subtask) in same
    ]


def _took(shown: CheckpointDetail, other: CheckpointDetail) -> str:
    name, than = (f"checkpoint {each.found.row.checkpoint_id}" for each in (shown, other))
    took_ms, other_ms = shown.found.took_ms, other.found.took_ms
    if took_ms is None or other_ms is None:
        return f"How long {name} or {than} takes is not known yet."
    more_ms = took_ms - other_ms
    if more_ms == 0:
        return f"Checkpoint {shown.found.row.checkpoint_id} took as long as {than}."
    word = "longer" if more_ms > 0 else "less"
    return (
        f"Checkpoint {shown.found.row.checkpoint_id} took {duration(took_ms)},"
        f" {duration(abs(more_ms))} {word} than {than} ({duration(other_ms)})."
    )


def _grown(shown: CheckpointDetail, other: CheckpointDetail) -> list[str]:
    if not shown.timeline.subtasks or not other.timeline.subtasks:
        return ["The figures by subtask are not kept for both."]
    is_slower = (shown.found.took_ms or 0) >= (other.found.took_ms or 0)
    slow, quick = (shown, other) if is_slower else (other, shown)
    growth = longest_growth(slow.timeline.subtasks, quick.timeline.subtasks)
    if growth is None:
        return ["Nothing that its last acknowledgement waited for took longer."]
    return [
        f"In checkpoint {slow.found.row.checkpoint_id} it was"
        f" {PHASE_WORDS[growth.phase]} {growth.vertex}[{growth.subtask}] that took longer by most:"
        f" {duration(growth.slow_ms)} instead of {duration(max(0.0, growth.quick_ms))}."
    ]


def _size(shown: CheckpointDetail, other: CheckpointDetail) -> list[str]:
    more = shown.found.state_bytes - other.found.state_bytes
    if more == 0:
        return ["The full size is the same."]
    grown = [
        (mine.state_bytes - theirs.state_bytes, f"{mine.vertex}[{mine.subtask}]")
        for mine, theirs in _pairs(shown, other)
    ]
    most = max(grown, key=lambda each: each[0] if more > 0 else -each[0], default=None)
    where = f", most of it in {most[1]} ({signed(most[0], size)})" if most and most[0] else ""
    return [f"The full size is {size(abs(more))} {'larger' if more > 0 else 'smaller'}{where}."]


def _figures(shown: CheckpointDetail, other: CheckpointDetail) -> list[FigureRow]:
    mine, theirs = shown.found, other.found
    return [
        _figure("Duration", mine.took_ms, theirs.took_ms, duration),
        _figure("Longest alignment", mine.row.alignment_ms, theirs.row.alignment_ms, duration),
        _figure("Uploaded", mine.uploaded_bytes, theirs.uploaded_bytes, size),
        _figure("Full size", mine.state_bytes, theirs.state_bytes, size),
        _figure("Records held back", mine.row.buffered_records, theirs.row.buffered_records, count),
        _figure("Held back", mine.row.buffered_bytes, theirs.row.buffered_bytes, size),
        _figure("In flight, kept", mine.persisted_bytes, theirs.persisted_bytes, size),
        _figure("Records read by then", mine.row.source_records, theirs.row.source_records, count),
    ]


def _subtask(mine: SubtaskTimeline, theirs: SubtaskTimeline) -> SubtaskChange:
    return SubtaskChange(
        name=f"{mine.vertex}[{mine.subtask}]",
        acknowledged=_figure("", mine.acknowledged_ms, theirs.acknowledged_ms, duration),
        changes=[
            signed(mine.start_delay_ms - theirs.start_delay_ms, duration),
            signed(mine.alignment_ms - theirs.alignment_ms, duration),
            signed(mine.sync_ms - theirs.sync_ms, duration),
            signed(mine.async_ms - theirs.async_ms, duration),
            signed(mine.state_bytes - theirs.state_bytes, size),
            signed(mine.buffered_bytes - theirs.buffered_bytes, size),
        ],
    )


def _figure(label: str, mine: float | None, theirs: float | None, write: Write) -> FigureRow:
    known = mine is not None and theirs is not None
    return FigureRow(
        label=label,
        shown=UNKNOWN if mine is None else write(mine),
        other=UNKNOWN if theirs is None else write(theirs),
        change=signed((mine or 0) - (theirs or 0), write) if known else UNKNOWN,
    )


def signed(change: float, write: Write) -> str:
    """`+12 ms`, `−1.20 MB`, `the same`."""
    if change == 0:
        return "the same"
    return f"{'+' if change > 0 else '−'}{write(abs(change))}"


class CompareForm(forms.Form):
    against = forms.IntegerField(
        label="Compare with checkpoint", required=False, min_value=0, max_value=CHECKPOINT_ID_MAX
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointView:
    page: PipelinePage
    data_at: datetime | None  # the time of the data shown
    shown_run: RunBrief
    detail: CheckpointDetail
    type: str
    operators: list[OperatorRow]
    subtask_headings: list[Heading]
    alignment_chart: Chart
    held_back_chart: Chart
    held_channels: list[Held]
    drawn_subtasks: list[SubtaskTimeline]  # those of the alignment chart
    drawn_channels: list[Held]
    is_wide: bool
    measure: Measure
    heat_chart: Chart
    form: CompareForm
    comparison: Comparison | None
    other_chart: Chart

    measures = MEASURES

    @property
    def last_row(self) -> int:
        """The last row on this page, in the operator that has most subtasks."""
        return max((row.last for row in self.operators), default=0)

    @property
    def subtask_count(self) -> int:
        return max((row.part.subtask_count for row in self.operators), default=0)

    @property
    def row_page(self) -> int:
        return max((row.first for row in self.operators), default=1) // SUBTASKS_SHOWN + 1

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


@require_GET
@never_cache
def subtasks_csv(request: HttpRequest, name: str, checkpoint_id: int) -> HttpResponse:
    """Every subtask's figures, which the tables of a wide pipeline show in pages."""
    _, run, detail = _found(name, checkpoint_id, request.GET)
    columns = [each.name for each in fields(SubtaskFigures)]
    parts = csv_parts(columns, [all_figures(detail.timeline)])
    response = HttpResponse(b"".join(parts), content_type="text/csv; charset=utf-8")
    file_name = f"{name}-run-{run.number}-checkpoint-{checkpoint_id}-subtasks.csv"
    response["Content-Disposition"] = f'attachment; filename="{file_name}"'
    return response


def _found(
    name: str, checkpoint_id: int, query: QueryDict
) -> tuple[PipelinePage, RunBrief, CheckpointDetail]:
    """Raises Http404 if the pipeline, its run or the run's checkpoint does not exist."""
    found = job_queries.pipeline_page(name)
    if found is None:
        raise Http404(f"There is no pipeline named {name}.")
    run = shown_run(found, Address.parse(query))
    detail = checkpoint_detail(run.run_id, checkpoint_id) if run else None
    if run is None or detail is None:
        raise Http404(f"{name} has no checkpoint {checkpoint_id} in this run.")
    return found, run, detail


def checkpoint_view(name: str, checkpoint_id: int, query: QueryDict) -> CheckpointView:
    """Raises Http404 as `_found` does."""
    found, run, detail = _found(name, checkpoint_id, query)
    measure = chosen_measure(MEASURES, query.get("figure"))
    wide, bands = is_wide(detail), bands_of(detail, measure)
    drawn = subtasks_to_draw(detail.timeline.subtasks)
    form, order = CompareForm(query), SubtaskOrder.parse(query.get("order", ""))
    compared = _compared(run.run_id, detail, form)
    return CheckpointView(
        page=found,
        data_at=data_at(found),
        shown_run=run,
        detail=detail,
        type=type_words(detail.found),
        operators=operator_rows(detail, order, number_or_none(query.get("rows")) or 1),
        subtask_headings=order.headings(),
        alignment_chart=_chart("alignment", detail.timeline),
        held_back_chart=Chart(
            "held-back", sentences.held_back(detail.timeline), held_back(detail.timeline)
        ),
        held_channels=held_channels(detail.timeline),
        drawn_subtasks=drawn,
        drawn_channels=[(each, channel) for each in drawn for channel in channels_to_draw(each)],
        is_wide=wide,
        measure=measure,
        heat_chart=Chart(
            "heat",
            heat_sentence(bands, measure, f"in checkpoint {checkpoint_id}"),
            heat_map(bands, measure) if wide else None,
        ),
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
