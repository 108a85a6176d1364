"""The page of all points of a watched Flink cluster; its filter is kept in the address."""

from typing import Any

from django import forms
from django.http import HttpRequest, HttpResponse, QueryDict
from django.shortcuts import render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET

from ftdash.flink_clusters.queries.catalogue import (
    Catalogue,
    Files,
    PointFilter,
    PointKind,
    catalogue,
    jobs_with_points,
)
from ftdash.ui.actions.forms import PLAIN_TEXT
from ftdash.ui.flink_clusters.page import existing
from ftdash.ui.pipelines.page import number_or_none

PER_PAGE = 50
NAME_SHOWN = 60
PATH_LENGTH_MAX = 1_000


class PointsForm(forms.Form):
    """An invalid field is shown with its error, and does not filter anything."""

    job = forms.ChoiceField(required=False)
    kind = forms.ChoiceField(
        required=False,
        choices=[
            ("", "savepoints and checkpoints"),
            (PointKind.SAVEPOINT.value, "savepoints"),
            (PointKind.CHECKPOINT.value, "checkpoints"),
        ],
    )
    kept = forms.ChoiceField(
        label="Files",
        required=False,
        choices=[
            ("", "there, as far as Flink has said"),
            (Files.DELETED.value, "deleted, says Flink"),
            (Files.ANY.value, "there or deleted"),
        ],
    )
    path = forms.CharField(
        label="Path has",
        required=False,
        max_length=PATH_LENGTH_MAX,
        widget=forms.TextInput(attrs=PLAIN_TEXT),
    )

    def __init__(self, query: QueryDict, jobs: list[tuple[str, str]]) -> None:
        super().__init__(query)
        shown = [(jid, f"{name[:NAME_SHOWN]} ({jid[:8]})") for jid, name in jobs]
        self.fields["job"] = forms.ChoiceField(required=False, choices=[("", "all"), *shown])
        self.is_valid()

    @property
    def asked(self) -> PointFilter:
        given: dict[str, Any] = self.cleaned_data
        return PointFilter(
            jid=given.get("job", ""),
            kind=PointKind(given["kind"]) if given.get("kind") else None,
            files=Files(given["kept"]) if given.get("kept") else Files.THERE,
            path=given.get("path", ""),
        )


@require_GET
@never_cache
def points(request: HttpRequest, name: str) -> HttpResponse:
    """Raises Http404 if no cluster of that name is watched."""
    cluster = existing(name)
    form = PointsForm(request.GET, jobs_with_points(name))
    page = number_or_none(request.GET.get("page")) or 1
    found = catalogue(name, form.asked, page=page, per_page=PER_PAGE)
    context = {"cluster": cluster, "form": form, "found": found} | _neighbours(request, found)
    return render(request, "flink_clusters/catalogue.html", context)


def _neighbours(request: HttpRequest, found: Catalogue) -> dict[str, str]:
    """The addresses of the pages beside this one, with the filter; empty: there is none."""
    return {
        "newer": _address(request, found.page - 1) if found.page > 1 else "",
        "older": _address(request, found.page + 1) if found.page < found.pages else "",
    }


def _address(request: HttpRequest, page: int) -> str:
    query = request.GET.copy()
    query["page"] = str(page)
    return f"?{query.urlencode()}"
