"""The history of checkpoints to take away, as CSV or JSON: what the page's filter lets through.

It is sent while it is read, so that a history of any length takes the memory of one chunk.
"""

import csv
from collections.abc import AsyncIterator, Iterator
from dataclasses import fields
from datetime import datetime
from io import StringIO
from operator import attrgetter

import msgspec
from asgiref.sync import sync_to_async
from django.http import (
    Http404,
    HttpRequest,
    HttpResponseBadRequest,
    HttpResponseBase,
    QueryDict,
    StreamingHttpResponse,
)
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET

from ftdash.checkpoints.answers import CheckpointRow
from ftdash.checkpoints.history import HistoryFilter, whole_history
from ftdash.jobs import queries as job_queries
from ftdash.jobs.answers import RunBrief
from ftdash.ui.history_form import HistoryForm
from ftdash.ui.page import Address, shown_run
from pipelines.domain.checkpoint_failures import CheckpointFailureReason

COLUMNS = [field.name for field in fields(CheckpointRow)]
values_of = attrgetter(*COLUMNS)
FORMULA_SIGNS = ("=", "+", "-", "@", "\t", "\r")
Chunks = Iterator[list[CheckpointRow]]


class Refusal(Exception):
    """The filter cannot be understood; the sentences say why."""


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
    parts = csv_parts(chunks) if kind == "csv" else json_parts(chunks)
    response = StreamingHttpResponse(_sent(parts), content_type=content_type)
    file_name = f"{name}-run-{run.number}-checkpoints.{kind}"
    response["Content-Disposition"] = f'attachment; filename="{file_name}"'
    return response


def _wanted(name: str, query: QueryDict) -> tuple[RunBrief, HistoryFilter]:
    """Raises Http404 where there is no run, and Refusal."""
    found = job_queries.pipeline_page(name)
    run = shown_run(found, Address.parse(query)) if found else None
    if run is None:
        raise Http404(f"There is no run of a pipeline named {name}.")
    form = HistoryForm(query, CheckpointFailureReason)
    if form.errors:
        sentences = [f"{field}: {why}" for field, all_of in form.errors.items() for why in all_of]
        raise Refusal("\n".join(sentences))
    return run, form.chosen


async def _sent(parts: Iterator[bytes]) -> AsyncIterator[bytes]:
    """Read where the database may be read; no part is empty."""
    while part := await sync_to_async(_next)(parts):
        yield part


def _next(parts: Iterator[bytes]) -> bytes:
    """Empty: that was all."""
    return next(parts, b"")


def csv_parts(chunks: Chunks) -> Iterator[bytes]:
    yield _lines([COLUMNS])
    for rows in chunks:
        yield _lines([[_cell(value) for value in values_of(row)] for row in rows])


def _lines(rows: list[list[str]]) -> bytes:
    text = StringIO()
    csv.writer(text).writerows(rows)
    return text.getvalue().encode()


def _cell(value: object) -> str:
    """Moments in ISO 8601, what is not known empty, what has parts as JSON."""
    if value is None:
        return ""
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, dict):
        return msgspec.json.encode(value).decode()
    # A spreadsheet would compute what an exception said.
    is_formula = isinstance(value, str) and value.startswith(FORMULA_SIGNS)
    return f"'{value}" if is_formula else str(value)


def json_parts(chunks: Chunks) -> Iterator[bytes]:
    """One array."""
    before = b"[\n"
    for rows in chunks:
        yield before + b",\n".join(msgspec.json.encode(row) for row in rows)
        before = b",\n"
    yield b"\n]\n" if before == b",\n" else b"[]\n"
