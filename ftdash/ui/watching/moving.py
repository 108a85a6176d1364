"""The page for moving a query to a pipeline of ours: where that begins, and what stays behind.

Unlike the page of the query, it reads the query's files of one batch. It writes none.
"""

from dataclasses import dataclass

import msgspec
from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET

from ftdash.ui.watching.work_forms import BATCH, origins, parsed
from ftdash.ui.watching.works import existing
from ftdash.watching.queries import QueryDetail, works
from pipelines.domain.errors import Rejected, Retryable
from pipelines.structured.formats import SourceKind
from pipelines.structured.moving import Move, SourceStart

NAMES_SHOWN = 200
CLASSES = {
    "jsonl": "json_lines_directory",
    "csv": "csv_directory",
    "parquet": "parquet_directory",
}
"""Classes in `pipelines.connectors`, by the ending of the file names that each reads."""


@dataclass(frozen=True, slots=True)
class ShownSource:
    """`names` are those of files that were read; only the last ones, by name."""

    index: int
    kind: SourceKind
    offsets: list[tuple[str, int]]
    names: list[str]
    name_count: int


class OriginForm(forms.Form):
    origin = forms.ChoiceField(label="Continue after")

    def __init__(self, request: HttpRequest, detail: QueryDetail) -> None:
        choices = origins(detail)
        super().__init__({"origin": request.GET.get("origin") or _recommended(detail)})
        self.fields["origin"] = forms.ChoiceField(label="Continue after", choices=choices)
        self.is_valid()

    @property
    def chosen(self) -> str:
        """Returns the choice; empty if there is none, or the address asks for an unknown one."""
        return str(self.cleaned_data.get("origin", ""))


@require_GET
@never_cache
def move(request: HttpRequest, name: str) -> HttpResponse:
    """Raises Http404 if no query of that name is watched."""
    detail = existing(name)
    form = OriginForm(request, detail)
    found, refusal = _read(name, form)
    context = {
        "name": name,
        "form": form,
        "origin": form.chosen,
        "refusal": refusal,
        "move": found,
        "sources": [_shown(each) for each in found.sources] if found else [],
        "names_shown": NAMES_SHOWN,
        "lines": lines_to_copy(name, found) if found else "",
    }
    return render(request, "watching/move.html", context)


@require_GET
@never_cache
def move_file(request: HttpRequest, name: str) -> HttpResponse:
    """Serves the text that `manage.py watch move` prints, which the lines to copy read."""
    form = OriginForm(request, existing(name))
    found, refusal = _read(name, form)
    if found is None:
        messages.error(request, refusal or "Choose a batch or a savepoint.")
        return redirect("move-query", name)
    content = msgspec.json.format(msgspec.json.encode(found))
    response = HttpResponse(content, content_type="application/json")
    response["Content-Disposition"] = f'attachment; filename="{file_of(name)}"'
    return response


def file_of(name: str) -> str:
    return f"{name}-start.json"


def lines_to_copy(name: str, found: Move) -> str:
    """Returns Python lines for the pipeline; its author replaces each `...`."""
    if not found.sources:
        return ""
    used = sorted({_class_of(each) for each in found.sources})
    sources = [
        f"source_{each.index} = {_class_of(each)}(\n"
        f'    ..., {(given := _given_of(each))}=start[{position}]["{given}"]\n)'
        for position, each in enumerate(found.sources)
    ]
    lines = [
        "import json",
        "from pathlib import Path",
        "",
        f"from pipelines.connectors import {', '.join(used)}",
        "",
        f'start = json.loads(Path("{file_of(name)}").read_text())["sources"]',
        *sources,
    ]
    return "\n".join(lines)


def _class_of(start: SourceStart) -> str:
    """Chooses by file names; `GrowingDirectory` takes any, with `suffix` and `format_of`."""
    if start.kind is SourceKind.KAFKA:
        return "KafkaTopics"
    suffixes = {name.rpartition(".")[2] for name in start.read_before}
    return CLASSES.get(suffixes.pop() if len(suffixes) == 1 else "", "GrowingDirectory")


def _given_of(start: SourceStart) -> str:
    return "start_offsets" if start.kind is SourceKind.KAFKA else "read_before"


def _recommended(detail: QueryDetail) -> str:
    found = detail.found
    return f"{BATCH}:{found.recommended.batch_id}" if found and found.recommended else ""


def _read(name: str, form: OriginForm) -> tuple[Move | None, str]:
    if not form.chosen:
        return None, ""
    batch_id, savepoint = parsed(form.chosen)
    try:
        return works.move(name, batch_id, savepoint), ""
    except (Rejected, Retryable) as refusal:
        return None, str(refusal)


def _shown(start: SourceStart) -> ShownSource:
    names = list(start.read_before)
    return ShownSource(
        index=start.index,
        kind=start.kind,
        offsets=sorted(start.start_offsets.items()),
        names=names[-NAMES_SHOWN:],
        name_count=len(names),
    )
