"""The history of checkpoints as a CSV or JSON file: those that match the page's filter.

It is sent while it is read, so that a history of any length needs the memory of one chunk.
"""

from dataclasses import fields

from asgiref.sync import sync_to_async
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
from ftdash.checkpoints.queries.history import HistoryFilter, whole_history
from ftdash.jobs.answers import RunBrief
from ftdash.runs.queries import pipelines as job_queries
from ftdash.ui.checkpoints.history_form import HistoryForm
from ftdash.ui.downloads import csv_parts, download, json_parts
from ftdash.ui.pipelines.view import Address, shown_run
from pipelines.domain.checkpoint_failures import CheckpointFailureReason

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
