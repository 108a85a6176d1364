"""Addresses of the lab, which measures the modes side by side.

Its options and its report are structs of the engine, which describe themselves.
"""

from datetime import datetime
from typing import Annotated, Any

import msgspec
from django.http import HttpRequest
from ninja import Schema, Status
from pydantic import WithJsonSchema

from ftdash.api.own.door import Entered, api, known
from ftdash.api.own.shapes import LabBody, NumberInPath
from ftdash.lab import queries, services
from ftdash.lab.models import LabState
from ftdash.lab.queries import LabView
from pipelines.lab.options import LabOptions
from pipelines.lab.report import LabReport

ASKED = 202


def described(kind: type[msgspec.Struct]) -> WithJsonSchema:
    """Returns the struct's JSON schema, with each reference replaced by its target."""
    whole = msgspec.json.schema(kind)
    known = whole.pop("$defs")

    def resolved(part: Any) -> Any:
        if isinstance(part, list):
            return [resolved(each) for each in part]
        if not isinstance(part, dict):
            return part
        if "$ref" in part:
            return resolved(known[part["$ref"].rpartition("/")[2]])
        return {key: resolved(value) for key, value in part.items()}

    return WithJsonSchema(resolved(whole))


class LabAnswer(Schema):
    """`report` says what each mode did and if it kept its promise; null means no report."""

    key: int
    state: LabState
    options: Annotated[dict[str, Any], described(LabOptions)]
    requested_by: str
    reason: str
    asked_at: datetime
    ended_at: datetime | None
    progress: str
    message: str
    report: Annotated[dict[str, Any], described(LabReport)] | None


@api.get("/labs", response=list[LabAnswer])
def labs(request: HttpRequest) -> list[LabAnswer]:
    """The newest labs, newest first."""
    return [_answer(each) for each in queries.labs().labs]


@api.get("/labs/{key}", response=LabAnswer)
def lab(request: HttpRequest, key: NumberInPath) -> LabAnswer:
    """How far it has come, or its report."""
    return _answer(_found(key))


@api.post("/labs", response={ASKED: LabAnswer})
def start_lab(request: Entered, body: LabBody) -> Status[LabAnswer]:
    """Start a lab, one at a time; follow it under its key."""
    given = body.dict()
    reason, modes = given.pop("reason"), tuple(given.pop("modes"))
    options = LabOptions(**given, modes=modes)
    key = services.start_lab(options, requester=request.auth.name, reason=reason)
    return Status(ASKED, _answer(_found(key)))


def _found(key: int) -> LabView:
    return known(queries.labs(key).shown, f"lab {key}")


def _answer(found: LabView) -> LabAnswer:
    return LabAnswer(**msgspec.to_builtins(found))
