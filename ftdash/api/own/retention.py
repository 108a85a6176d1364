"""Addresses of how long history is kept: what there is, what a choice would delete, the choice."""

from django.http import HttpRequest

from ftdash.api.own.door import CONFIGURING, Entered, api
from ftdash.api.own.settings_shapes import Keeping
from ftdash.history import limits
from ftdash.history.models import Kind
from ftdash.retention import queries
from ftdash.retention.queries import Choice, KeptView


@api.get("/history", response=list[KeptView])
def history(request: HttpRequest) -> list[KeptView]:
    """Each kind of rows that are deleted when they are old, and how many there are."""
    return queries.kept()


@api.get("/history/{kind}/choices", response=list[Choice])
def history_choices(request: HttpRequest, kind: Kind) -> list[Choice]:
    """For how long it may be kept, and how many rows each choice would delete now."""
    return queries.choices_of(kind)


@api.post("/history/{kind}", response=KeptView, **CONFIGURING)
def keep_history(request: Entered, kind: Kind, asked: Keeping) -> KeptView:
    """What is older is gone within minutes, for good."""
    limits.change(kind=kind, keep=asked.keep, requester=request.auth.name, reason=asked.reason)
    return queries.kept_of(kind)
