"""Limits how many long jobs run at once, because workers have other work too."""

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from django.utils import timezone

from pipelines.domain.errors import Rejected

if TYPE_CHECKING:
    from django.db.models import QuerySet

OPEN_MAX = 4

ABANDONED_AFTER = timedelta(minutes=10)
"""No person looked and no worker continued for so long: the job no longer counts."""


def check_room(rows: "QuerySet[Any]", what: str) -> None:
    """`rows` have `ended_at` and `moved_at`. Raises Rejected if too many of them are open."""
    lately = timezone.now() - ABANDONED_AFTER
    if rows.filter(ended_at=None, moved_at__gt=lately).count() >= OPEN_MAX:
        raise Rejected(f"{OPEN_MAX} {what} are under way already; ask again when one has ended.")
