"""Sends due messages until the receiver accepts them or the attempts run out; rows keep the tries.

A message is sent at least once: if a worker dies after the receiver accepted it, it is sent again,
under the same id. A channel gets the messages of one alert in order: no end before its beginning.
One worker sends at a time. After a failure, all messages to that receiver wait for a while.
"""

import logging
import time
from datetime import datetime, timedelta

import httpx
from django.db.models import Exists, F, OuterRef, QuerySet
from django.utils import timezone

from ftdash.alerts import mail, webhook
from ftdash.alerts.message import message_of
from ftdash.alerts.models import ChannelKind, Delivery, News
from ftdash.alerts.sending_turn import Turn, take_turn
from pipelines.domain.errors import Rejected

ATTEMPTS_MAX = 12
FIRST_RETRY_S = 5.0
RETRY_MAX_S = 300.0
"""Pauses of 5, 10, 20, ... 300 s; after about 35 minutes it gives up. A test, for which a person
waits, is tried once."""

CLAIM = timedelta(seconds=60)
"""A worker that has not reported by then is dead."""

TASK_BUDGET_S = 10.0

log = logging.getLogger("ftdash.alerts")


def deliver_due() -> bool:
    """True if more is due than this call had time for. Does nothing while another worker sends."""
    turn = take_turn(timezone.now())
    if turn is None:
        return False
    try:
        _deliver_for_a_while(turn)
    finally:
        turn.end(timezone.now())
    return _due(timezone.now()).exists()


def _deliver_for_a_while(turn: Turn) -> None:
    _give_up_what_has_no_outcome(timezone.now())
    ends_s = time.monotonic() + TASK_BUDGET_S
    while time.monotonic() < ends_s and turn.try_keep(timezone.now()):
        delivery = _claim_next(timezone.now())
        if delivery is None:
            return
        _try(delivery)


def _give_up_what_has_no_outcome(now: datetime) -> None:
    """Ends messages whose last try has no outcome because its worker died."""
    spent = _waiting().filter(attempts__gte=ATTEMPTS_MAX, due_at__lte=now)
    spent.update(given_up_at=now, problem="No try came to an end; the log of the worker says more.")


def _claim_next(now: datetime) -> Delivery | None:
    for delivery in _due(now)[:20]:
        untouched = Delivery.objects.filter(pk=delivery.pk, due_at=delivery.due_at)
        if untouched.update(due_at=now + CLAIM, attempts=F("attempts") + 1):
            delivery.refresh_from_db(fields=("due_at", "attempts"))
            return delivery
    return None


def _due(now: datetime) -> QuerySet[Delivery]:
    """Least tried first, then oldest, so that one failing receiver holds nothing else up. A message
    that waits for an earlier one about the same alert is not due."""
    earlier = _waiting().filter(
        channel=OuterRef("channel"), alert=OuterRef("alert"), pk__lt=OuterRef("pk")
    )
    due = _waiting().filter(~Exists(earlier), due_at__lte=now)
    return due.select_related("channel", "alert__pipeline").order_by("attempts", "pk")


def _waiting() -> QuerySet[Delivery]:
    return Delivery.objects.filter(sent_at=None, given_up_at=None)


def _try(delivery: Delivery) -> None:
    mine = Delivery.objects.filter(pk=delivery.pk, due_at=delivery.due_at)
    try:
        _send(delivery)
    except (httpx.HTTPError, OSError, ValueError, Rejected) as error:
        is_last = delivery.attempts >= ATTEMPTS_MAX or delivery.news == News.TEST
        _note_failure(delivery, mine, is_last, str(error) or type(error).__name__)
    else:
        mine.update(sent_at=timezone.now(), problem="")


def _send(delivery: Delivery) -> None:
    message = message_of(delivery)
    if delivery.channel.kind == ChannelKind.WEBHOOK:
        webhook.send(delivery.channel, message)
    else:
        mail.send(delivery.channel, message)


def _note_failure(
    delivery: Delivery, mine: QuerySet[Delivery], is_last: bool, problem: str
) -> None:
    now, tries = timezone.now(), delivery.attempts
    log.warning("A message about an alert was not taken (try %s): %s", tries, problem)
    again_at = now + timedelta(seconds=min(FIRST_RETRY_S * 2 ** (tries - 1), RETRY_MAX_S))
    if is_last:
        mine.update(given_up_at=now, problem=problem)
    else:
        mine.update(due_at=again_at, problem=problem)
    _waiting().filter(channel=delivery.channel, due_at__lte=now).update(due_at=again_at)
