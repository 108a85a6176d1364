"""The page of a pipeline's logs: lines of the driver, the slots and the author's code, filtered.

It follows the newest lines. A link to a line shows that line among its neighbours, and stays there.
"""

from dataclasses import dataclass
from datetime import datetime

from django import forms
from django.http import Http404, HttpRequest, HttpResponse, QueryDict
from django.shortcuts import render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET

from ftdash.formats import plural
from ftdash.jobs.answers import PipelinePage
from ftdash.runs.queries import pipelines as queries
from ftdash.runs.queries.logs import LineFilter, LogLines, log_lines
from ftdash.ui.pipelines.page import data_at
from pipelines.domain.log_lines import LEVELS, LinePlace

PLACES = ("before", "line")


class LinesForm(forms.Form):
    text = forms.CharField(label="Text", required=False, max_length=200)
    level = forms.ChoiceField(
        label="Level",
        required=False,
        choices=[("", "any"), *((each, f"{each} or worse") for each in LEVELS[1:])],
    )
    subtask = forms.CharField(
        label="Subtask", required=False, max_length=200, help_text="orders[0], slot 1 or driver"
    )
    run = forms.CharField(required=False, widget=forms.HiddenInput)

    def line_filter(self) -> LineFilter:
        """An invalid field filters nothing; the page shows its error."""
        self.is_valid()
        given = self.cleaned_data
        return LineFilter(given.get("text", ""), given.get("level", ""), given.get("subtask", ""))


@dataclass(frozen=True, slots=True)
class LogsView:
    page: PipelinePage
    data_at: datetime | None
    form: LinesForm
    run_id: str
    found: LogLines
    address: str  # the filter as a query string, without the place

    @property
    def sentence(self) -> str:
        if not self.found.lines:
            return "The run has no such line."
        shown = plural(len(self.found.lines), "line")
        kind = "The newest " if self.found.is_newest else ""
        return f"{kind}{shown}, the newest last."


@require_GET
@never_cache
def page(request: HttpRequest, name: str) -> HttpResponse:
    return render(request, "logs/page.html", {"view": logs_view(name, request.GET)})


@require_GET
@never_cache
def regions(request: HttpRequest, name: str) -> HttpResponse:
    context = {"view": logs_view(name, request.GET), "is_refresh": True}
    return render(request, "logs/regions.html", context)


def logs_view(name: str, query: QueryDict) -> LogsView:
    """Raises Http404 if the pipeline does not exist."""
    shown = queries.pipeline_page(name)
    if shown is None:
        raise Http404(f"There is no pipeline named {name}.")
    form = LinesForm(query)
    run_id = query.get("run") or (shown.run.run_id if shown.run else "")
    address = query.copy()
    for each in PLACES:
        address.pop(each, None)
    return LogsView(
        page=shown,
        data_at=data_at(shown),
        form=form,
        run_id=run_id,
        found=log_lines(
            name,
            run_id,
            form.line_filter(),
            before=LinePlace.parse(query.get("before", "")),
            at=LinePlace.parse(query.get("line", "")),
        ),
        address=address.urlencode(),
    )
