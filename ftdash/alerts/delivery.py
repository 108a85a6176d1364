"""Sends due messages until the receiver accepts them or the attempts run out; rows keep the tries.

A message is sent at least once: if a worker dies after the receiver accepted it, it is sent again,
under the same id. A channel gets the messages of one alert in order: no end before its beginning.
One worker sends at a time. After a failure, all messages to that receiver wait for a while.

Lets one worker at a time send messages, so that a hanging receiver cannot hold all of them.

The same workers start drivers and follow requests. The sender holds one row and renews it before
each message; the row of a dead worker is free after `LASTS`.

Sends one message by mail, with Django's mail; the server is in the settings (FTDASH_MAIL_*).
"""

import logging
import secrets
import time
from datetime import UTC, datetime, timedelta

import httpx
from django.conf import settings
from django.core.mail import EmailMessage
from django.core.validators import validate_email
from django.db.models import Exists, F, OuterRef, Q, QuerySet
from django.forms import ValidationError
from django.utils import timezone

from ftdash.alerts import webhooks
from ftdash.alerts.message import Message, message_of
from ftdash.alerts.models import Channel, ChannelKind, Delivery, News, SendingTurn
from pipelines.domain.errors import Rejected

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


ADDRESSES_MAX = 20


def addresses(text: str) -> list[str]:
    """The addresses in a list separated by commas. Raises Rejected naming one that is invalid."""
    found = [each.strip() for each in text.split(",") if each.strip()]
    if not 1 <= len(found) <= ADDRESSES_MAX:
        raise Rejected(f"Give 1 to {ADDRESSES_MAX} mail addresses, separated by commas.")
    for each in found:
        try:
            validate_email(each)
        except ValidationError as error:
            raise Rejected(f"{each!r} is no mail address.") from error
    return found


def check_can_send() -> None:
    """Raises Rejected if no mail server is configured."""
    if not settings.MAIL_IS_SET:
        raise Rejected("No mail server is known; set FTDASH_MAIL_HOST (docs/how-to/alerts.md).")


def send(channel: Channel, message: Message) -> None:
    """Raises OSError (as smtplib's errors are) or Rejected if the server did not accept it."""
    check_can_send()
    mail = EmailMessage(message.subject, message.text, None, addresses(channel.address))
    mail.extra_headers["X-Ftdash-Delivery"] = str(message.id)
    mail.send()


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
        webhooks.send(delivery.channel, message)
    else:
        send(delivery.channel, message)


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
