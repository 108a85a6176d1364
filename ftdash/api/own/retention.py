"""Addresses about how long history is kept: the rows, what a choice would delete, the choice."""

from django.http import HttpRequest

from ftdash.api.own.door import CONFIGURING, Entered, api
from ftdash.api.own.shapes import Keeping
from ftdash.history import limits
from ftdash.history.models import Kind
from ftdash.retention import queries as kept_queries
from ftdash.retention.queries import Choice, KeptView


@api.get("/history", response=list[KeptView])
def history(request: HttpRequest) -> list[KeptView]:
    """Each kind of rows that are deleted with age, and how many rows it has."""
    return kept_queries.kept()


@api.get("/history/{kind}/choices", response=list[Choice])
def history_choices(request: HttpRequest, kind: Kind) -> list[Choice]:
    """The lengths to choose from, and how many rows each would delete now."""
    return kept_queries.choices_of(kind)


@api.post("/history/{kind}", response=KeptView, **CONFIGURING)
def keep_history(request: Entered, kind: Kind, asked: Keeping) -> KeptView:
    """Older rows are gone within minutes, permanently."""
    limits.change(kind=kind, keep=asked.keep, requester=request.auth.name, reason=asked.reason)
    return kept_queries.kept_of(kind)
