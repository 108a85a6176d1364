"""Lets one worker at a time send messages, so that a hanging receiver cannot hold all of them.

The same workers start drivers and follow requests. The sender holds one row and renews it before
each message; the row of a dead worker is free after `LASTS`.
"""

import secrets
from datetime import UTC, datetime, timedelta

from django.db.models import Q

from ftdash.alerts.models import SendingTurn

LASTS = timedelta(seconds=60)
"""Longer than one message may take: a worker that has not renewed its turn by then is dead."""

_KEY = 1


class Turn:
    """Held until `end`, or until another worker takes a turn that was not renewed in time."""

    def __init__(self, holder: str) -> None:
        self._mine = SendingTurn.objects.filter(pk=_KEY, holder=holder)

    def try_keep(self, now: datetime) -> bool:
        """Renews the turn from `now` on. False: another worker has it by now."""
        return bool(self._mine.update(until=now + LASTS))

    def end(self, now: datetime) -> None:
        self._mine.update(until=now)


def take_turn(now: datetime) -> Turn | None:
    """None while another worker sends. A clock that was set back makes no worker wait."""
    SendingTurn.objects.get_or_create(pk=_KEY, defaults={"until": datetime.fromtimestamp(0, UTC)})
    until, holder = now + LASTS, secrets.token_hex(16)
    free = SendingTurn.objects.filter(Q(until__lte=now) | Q(until__gt=until), pk=_KEY)
    return Turn(holder) if free.update(until=until, holder=holder) else None
