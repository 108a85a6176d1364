"""The history of checkpoints as a CSV or JSON file: those that match the page's filter.

It is sent while it is read, so that a history of any length needs the memory of one chunk.

The filter of the checkpoint history, in the address.

An invalid value counts as not chosen, and the form says so next to the field.
"""

from collections.abc import Iterable
from dataclasses import fields
from typing import Any

from asgiref.sync import sync_to_async
from django import forms
from django.http import (
    Http404,
    HttpRequest,
    HttpResponseBadRequest,
    HttpResponseBase,
    QueryDict,
)
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET

from ftdash.checkpoints.answers import CheckpointRow
from ftdash.checkpoints.queries.history import HistoryFilter, StatusChoice, whole_history
from ftdash.jobs.answers import RunBrief
from ftdash.runs.queries import pipelines as job_queries
from ftdash.ui.downloads import csv_parts, download, json_parts
from ftdash.ui.pipelines.view import Address, shown_run
from pipelines.domain.checkpoint_failures import CheckpointFailureReason
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
    """Raises Refusal, and Http404 if there is no run."""
    found = job_queries.pipeline_page(name)
    run = shown_run(found, Address.parse(query)) if found else None
    if run is None:
        raise Http404(f"There is no run of a pipeline named {name}.")
    form = HistoryForm(query, CheckpointFailureReason)
    if form.errors:
        sentences = [f"{field}: {why}" for field, all_of in form.errors.items() for why in all_of]
        raise Refusal("\n".join(sentences))
    return run, form.chosen
