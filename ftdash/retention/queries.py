"""Counts the history of each kind, and how much of it a limit would delete."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Min, Model

from ftdash.alerts.models import Alert
from ftdash.checkpoints.models import Checkpoint
from ftdash.history.limits import choices, default, kept_for
from ftdash.history.models import Kind
from ftdash.jobs.models import (
    DamageFinding,
    Failure,
    Leftover,
    Recovery,
    RepeatedOutput,
    RestoreRefusal,
    StatusChange,
    SupersededOutput,
    TargetTakeover,
    ZombieRefusal,
)
from ftdash.lab.models import Lab
from ftdash.metrics.models import Sample
from ftdash.retention.pruning import count_older
from ftdash.watching.models import RunEvent, WatchedBatch

_WHERE: dict[Kind, tuple[str, tuple[type[Model], ...]]] = {  # the column of time, and the tables
    Kind.METRICS: ("at", (Sample,)),
    Kind.CHECKPOINTS: ("trigger_at", (Checkpoint,)),
    Kind.EVENTS: (
        "at",
        (
            StatusChange,
            Failure,
            Recovery,
            RepeatedOutput,
            RestoreRefusal,
            DamageFinding,
            SupersededOutput,
            Leftover,
            TargetTakeover,
            ZombieRefusal,
        ),
    ),
    Kind.ALERTS: ("fired_at", (Alert,)),
    Kind.LABS: ("asked_at", (Lab,)),
    Kind.QUERIES: ("at", (WatchedBatch, RunEvent)),
}


@dataclass(frozen=True, slots=True)
class KeptView:
    """`rows` counts all rows; `older` counts those that the next deletion takes."""

    kind: Kind
    keep: timedelta
    is_default: bool
    rows: int
    oldest_at: datetime | None
    older: int


@dataclass(frozen=True, slots=True)
class Choice:
    keep: timedelta
    is_chosen: bool
    deletes: int  # rows, were it chosen now


def kept() -> list[KeptView]:
    return [kept_of(kind) for kind in Kind]


def kept_of(kind: Kind) -> KeptView:
    keep = kept_for(kind)
    column, tables = _WHERE[kind]
    oldest = [table._default_manager.aggregate(at=Min(column))["at"] for table in tables]
    return KeptView(
        kind=kind,
        keep=keep,
        is_default=keep == default(kind),
        rows=sum(_count(tables)),
        oldest_at=min(filter(None, oldest), default=None),
        older=count_older(kind, keep),
    )


def choices_of(kind: Kind) -> list[Choice]:
    """Returns the choices, shortest first."""
    now = kept_for(kind)
    return [Choice(keep, keep == now, count_older(kind, keep)) for keep in choices(kind)]


def _count(tables: Iterable[Any]) -> list[int]:
    return [table._default_manager.count() for table in tables]
