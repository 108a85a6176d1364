"""How long each kind of history is kept: the default, or an admin's choice."""

from datetime import timedelta

from django.conf import settings
from django.db import transaction

from ftdash.accounts import admin_log
from ftdash.formats import period
from ftdash.history.models import Kind, Limit
from ftdash.jobs.validation import check_reason
from pipelines.domain.errors import Rejected

_HOURS = tuple(timedelta(hours=hours) for hours in (1, 3, 6, 12, 24))
_DAYS = tuple(timedelta(days=days) for days in (1, 7, 30, 90, 365, 1_095))


def choices(kind: Kind) -> tuple[timedelta, ...]:
    """The choices, shortest first. Metrics come once a second, and are kept for hours."""
    offered = _HOURS if kind is Kind.METRICS else _DAYS
    return tuple(sorted({*offered, default(kind)}))


def default(kind: Kind) -> timedelta:
    if kind is Kind.METRICS:
        return timedelta(seconds=settings.SAMPLE_RETENTION_S)
    return timedelta(days=settings.HISTORY_RETENTION_DAYS)


def kept_for(kind: Kind) -> timedelta:
    chosen = Limit.objects.filter(kind=kind).values_list("keep_s", flat=True).first()
    return default(kind) if chosen is None else timedelta(seconds=chosen)


def change(*, kind: Kind, keep: timedelta, requester: str, reason: str) -> None:
    """Older rows are gone within minutes, permanently."""
    reason = check_reason(reason)
    if keep not in choices(kind):
        raise Rejected(f"History of {kind.label} cannot be kept for {period(keep)}.")
    with transaction.atomic():
        keep_s = int(keep.total_seconds())
        Limit.objects.update_or_create(kind=kind, defaults={"keep_s": keep_s})
        admin_log.record(
            who=requester,
            what="changed",
            subject=f"history of {kind.label}",
            reason=reason,
            detail=f"kept for {period(keep)}",
        )
