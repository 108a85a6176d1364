"""How much that takes long may be under way at once: workers have other things to do beside it."""

from datetime import timedelta
from typing import Any

from django.db.models import QuerySet
from django.utils import timezone

from pipelines.domain.errors import Rejected

OPEN_MAX = 4

ABANDONED_AFTER = timedelta(minutes=10)
"""Nobody looked for so long, and no worker went on: it takes nobody's place."""


def check_room(rows: "QuerySet[Any]", what: str) -> None:
    """Of rows with `ended_at` and `moved_at`. Raises Rejected when too many of them are open."""
    lately = timezone.now() - ABANDONED_AFTER
    if rows.filter(ended_at=None, moved_at__gt=lately).count() >= OPEN_MAX:
        raise Rejected(f"{OPEN_MAX} {what} are under way already; ask again when one has ended.")
