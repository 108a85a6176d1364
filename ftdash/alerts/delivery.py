"""Sends the messages of alerts by webhook or mail until receivers accept them or tries run out.

Rows keep the tries. A message is sent at least once: if a worker dies after the receiver accepted a
message, another try sends it again under the same id. A channel gets the messages of one alert in
order: never the end before the beginning. One worker sends at a time, so that a hanging receiver
cannot hold up all workers. The worker holds one row and renews it before each message; the row is
free again `LASTS` after its worker died. After a failure, all messages to that receiver wait for a
while. All channels get the same text.

Webhooks need https and a public address: through the dashboard, an admin must not reach services
that only its server can reach (the cloud's metadata service, databases, Redis). If the
installation allows private addresses (FTDASH_WEBHOOK_PRIVATE=1), http on loopback is allowed too.
The sender looks the name up once per message, checks every address it has, and connects to one of
those. A status of 200 to 299 accepts the message; any other, redirects included, leaves it for
another try.

A webhook's key is derived from the installation's secret key and the channel's salt and is shown
once. The database holds no key, so reading it does not enable anyone to sign. Source: Stripe's
webhooks, which sign the time with the body, so that an old message cannot be sent again.
"""

import hashlib
import hmac
import logging
import secrets
import socket
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address

import httpx
import msgspec
from django.conf import settings
from django.core.mail import EmailMessage
from django.core.validators import validate_email
from django.db.models import Exists, F, OuterRef, Q, QuerySet
from django.forms import ValidationError
from django.urls import reverse
from django.utils import timezone
from django.utils.crypto import salted_hmac

from ftdash import formats
from ftdash.alerts.models import Channel, ChannelKind, Delivery, News, SendingTurn, Watched
from ftdash.incidents.causes import ADVICE, Cause
from ftdash.incidents.models import Incident
from ftdash.incidents.queries import advice_of
from ftdash.watching.models import WatchedIncident
from ftdash.watching.queries.incidents import PARTS
from pipelines.domain.errors import Rejected

_SECONDS = (
    Watched.SINCE_CHECKPOINT,
    Watched.SINCE_OUTPUT,
    Watched.COMMIT_WAIT,
    Watched.EVENT_TIME_LAG,
)


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """The incident behind an alert, as the dashboard and its API show it."""

    id: int
    cause: str  # incidents.causes.Cause
    title: str
    text: str  # its newest sign
    next_step: str
    url: str | None


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """The body of a webhook. `id` is the same for every try, so the receiver can drop duplicates.

    `value` and `threshold` are seconds, bytes or a count, as `unit` says; null in a test.
    """

    id: int
    news: str  # models.News
    subject: str
    text: str
    alert: int | None = None
    rule: str | None = None
    pipeline: str | None = None
    query: str | None = None  # a watched query that has an incident
    flink_cluster: str | None = None  # a watched cluster with an incident, or with one of its jobs
    flink_job: str | None = None  # its id in Flink
    watched: str | None = None  # models.Watched
    unit: str | None = None
    value: float | None = None
    newest_value: float | None = None  # null: it was not read again since the alert fired
    threshold: float | None = None
    fired_at: datetime | None = None
    cleared_at: datetime | None = None
    incident: Explanation | None = None  # null: none explains the alert
    url: str | None = None  # null: the installation does not know its own address


def message_of(delivery: Delivery) -> Message:
    """Needs a delivery whose channel, alert, pipeline and incident were read with it."""
    alert = delivery.alert
    if alert is None and delivery.watched_incident is not None:
        return _message_of_watched(delivery, delivery.watched_incident)
    if alert is None:
        text = f"A test of the channel {delivery.channel.name!r}; nothing is wrong."
        return Message(id=delivery.pk, news=delivery.news, subject="ftdash: a test", text=text)
    watched, name = Watched(alert.watched), alert.pipeline.name
    is_over = delivery.news == News.CLEARED
    subject = f"ftdash: {name}: {alert.rule_name} {'cleared' if is_over else 'fires'}"
    sentence = sentence_of(watched, alert.fired_value, alert.fire_above)
    url, incident = _address("pipeline", name), _explanation(alert.incident)
    why = f"{incident.title}: {incident.text}" if incident else ""
    next_step = f"Next: {incident.next_step}" if incident else ""
    address = (incident and incident.url) or url
    because = alert.cleared_because if is_over else ""
    return Message(
        id=delivery.pk,
        news=delivery.news,
        subject=subject,
        text="\n".join(filter(None, [sentence, because, why, next_step, address])),
        alert=alert.pk,
        rule=alert.rule_name,
        pipeline=name,
        watched=watched.value,
        unit=unit_of(watched),
        value=alert.fired_value,
        newest_value=alert.newest_value,
        threshold=alert.fire_above,
        fired_at=alert.fired_at,
        cleared_at=alert.cleared_at if is_over else None,
        incident=incident,
        url=url,
    )


def _message_of_watched(delivery: Delivery, incident: WatchedIncident) -> Message:
    name, advice = incident.subject, ADVICE[Cause(incident.cause)]
    is_over = delivery.news == News.CLEARED
    page, place = incident.page
    url, job = _address(page, *place), incident.flink_job
    cluster = job.cluster if job is not None else incident.flink_cluster
    explanation = Explanation(
        id=incident.pk,
        cause=incident.cause,
        title=advice.title,
        text=incident.text,
        next_step=advice.step,
        url=url,
    )
    after = "It is no longer seen." if is_over else f"Next: {advice.step}"
    return Message(
        id=delivery.pk,
        news=delivery.news,
        subject=f"ftdash: {name}: {advice.title}{' (over)' if is_over else ''}",
        text="\n".join(filter(None, [f"{advice.title}: {incident.text}", after, url])),
        query=incident.query.name if incident.query is not None else None,
        flink_cluster=cluster.name if cluster is not None else None,
        flink_job=job.jid if job is not None else None,
        fired_at=incident.opened_at,
        cleared_at=incident.closed_at if is_over else None,
        incident=explanation,
        url=url,
    )


def sentence_of(
    watched: Watched, value: float, fire_above: float, newest: float | None = None
) -> str:
    """`value` is the value when it fired; `newest` is the value now, or None if unknown."""
    bound, found = written(watched, fire_above), written(watched, value)
    now = None if newest is None else written(watched, newest)
    if now not in (None, found):
        found = f"{now} now, {found} when it fired"
    return f"{watched.label.capitalize()}: {found}; it fires above {bound}."


def written(watched: Watched, value: float) -> str:
    if watched in _SECONDS:
        return formats.duration(1000 * value)
    return formats.size(value) if watched is Watched.BUFFERED_BYTES else formats.count(round(value))


def unit_of(watched: Watched) -> str:
    if watched in _SECONDS:
        return "seconds"
    return "bytes" if watched is Watched.BUFFERED_BYTES else "count"


def _explanation(incident: Incident | None) -> Explanation | None:
    if incident is None:
        return None
    advice = advice_of(incident)
    return Explanation(
        id=incident.pk,
        cause=incident.cause,
        title=advice.title,
        text=incident.text,
        next_step=advice.step,
        url=_address("incident", incident.pk),
    )


def _address(page: str, *place: str | int) -> str | None:
    base = settings.BASE_URL
    return base.rstrip("/") + reverse(page, args=place) if base else None


Address = IPv4Address | IPv6Address
NAT64 = IPv6Network("64:ff9b::/96")
PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Target:
    """`url` names the machine by its address; its certificate must be for `host`."""

    url: httpx.URL
    host: str
    host_header: str


def parse(text: str) -> httpx.URL:
    """Raises Rejected if the text is no address of a webhook. Does not check where it leads."""
    try:
        url = httpx.URL(text)
    except httpx.InvalidURL as error:
        raise Rejected(f"This is no address of a webhook: {error}.") from error
    if url.scheme not in PORTS or not url.host:
        raise Rejected("The address of a webhook begins with https:// and names a machine.")
    if url.userinfo:
        raise Rejected("The address of a webhook holds no user or password; messages are signed.")
    return url


def resolve(text: str, *, allows_private: bool) -> Target:
    """Raises Rejected if a message may not go there, OSError if the name is unknown."""
    url = parse(text)
    port = url.port or PORTS[url.scheme]
    try:
        found = socket.getaddrinfo(url.host, port, type=socket.SOCK_STREAM)
    except UnicodeError as error:  # an empty part, or one of more than 63 letters
        raise Rejected(f"{url.host!r} can be the name of no machine; look for a slip.") from error
    addresses = [ip_address(str(entry[4][0]).partition("%")[0]) for entry in found]
    for address in addresses:
        check_address(url, address, allows_private=allows_private)
    chosen = min(addresses, key=lambda address: address.version)  # prefers IPv4, which always works
    host = f"[{chosen}]" if isinstance(chosen, IPv6Address) else str(chosen)
    return Target(url.copy_with(host=host), url.host, url.netloc.decode("ascii"))


def check_address(url: httpx.URL, address: Address, *, allows_private: bool) -> None:
    plain = _unwrapped(address)
    if not (plain.is_global or allows_private) or plain.is_multicast or plain.is_unspecified:
        raise Rejected(
            f"{url.host} is {plain}, which is not a public address. To allow private addresses, set"
            " FTDASH_WEBHOOK_PRIVATE=1 on the server."
        )
    if url.scheme == "http" and not plain.is_loopback:
        raise Rejected("A webhook is called over https; http is for loopback alone.")


def _unwrapped(address: Address) -> Address:
    """Returns the IPv4 address embedded in an IPv6 address, or else the address itself."""
    if isinstance(address, IPv6Address):
        if address in NAT64:
            return IPv4Address(int(address) & 0xFFFFFFFF)
        return address.ipv4_mapped or address.sixtofour or address
    return address


SIGNATURE_HEADER = "X-Ftdash-Signature"
_PURPOSE = "ftdash.alerts.delivery"


def key_of(salt: str) -> str:
    """Returns hexadecimal text; its ASCII bytes are the signing key."""
    return salted_hmac(_PURPOSE, salt, algorithm="sha256").hexdigest()


def signature(key: str, sent_at_s: int, body: bytes) -> str:
    """`t=SECONDS,v1=HEX`, the HMAC-SHA-256 of `SECONDS.` and the body."""
    signed = hmac.new(key.encode(), f"{sent_at_s}.".encode() + body, hashlib.sha256)
    return f"t={sent_at_s},v1={signed.hexdigest()}"


TIMEOUT_S = 5.0
_encoder = msgspec.json.Encoder()


def post_message(channel: Channel, message: Message) -> None:
    """Raises httpx.HTTPError, OSError or Rejected if the receiver did not accept the message."""
    target = resolve(channel.address, allows_private=settings.WEBHOOK_PRIVATE)
    body = _encoder.encode(message)
    headers = {
        "Host": target.host_header,
        "Content-Type": "application/json",
        "User-Agent": "ftdash",
        SIGNATURE_HEADER: signature(key_of(channel.key_salt), int(time.time()), body),
    }
    # Ignores the environment's proxies: a proxy would look the name up again and might reach more.
    with httpx.Client(trust_env=False, follow_redirects=False, timeout=TIMEOUT_S) as client:
        request = client.build_request("POST", target.url, content=body, headers=headers)
        request.extensions["sni_hostname"] = target.host
        answer = client.send(request, stream=True)  # the body of the answer is not read
        answer.close()
    if not answer.is_success:
        raise httpx.HTTPError(f"It answered {answer.status_code}.")


LASTS = timedelta(seconds=60)
"""Longer than one message may take: a worker that has not renewed its turn by then is dead."""

_KEY = 1


class Turn:
    """Held until `end`, or until another worker takes a turn that was not renewed in time."""

    def __init__(self, holder: str) -> None:
        self._mine = SendingTurn.objects.filter(pk=_KEY, holder=holder)

    def try_keep(self, now: datetime) -> bool:
        """Renews the turn from `now` on. Returns False if another worker has taken it."""
        return bool(self._mine.update(until=now + LASTS))

    def end(self, now: datetime) -> None:
        self._mine.update(until=now)


def take_turn(now: datetime) -> Turn | None:
    """Returns None while another worker sends. A clock that was set back makes no worker wait."""
    SendingTurn.objects.get_or_create(pk=_KEY, defaults={"until": datetime.fromtimestamp(0, UTC)})
    until, holder = now + LASTS, secrets.token_hex(16)
    free = SendingTurn.objects.filter(Q(until__lte=now) | Q(until__gt=until), pk=_KEY)
    return Turn(holder) if free.update(until=until, holder=holder) else None


ADDRESSES_MAX = 20


def addresses(text: str) -> list[str]:
    """Splits a list at its commas. Raises Rejected, which names an address that is invalid."""
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
    """Sends due messages; does nothing while another worker sends.

    Returns True if more is due than this call had time for.
    """
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
    """Orders by tries, then by age, so that one failing receiver holds nothing else up.

    A message that waits for an earlier one about the same alert is not due.
    """
    same = Q(alert=OuterRef("alert")) | Q(watched_incident=OuterRef("watched_incident"))
    earlier = _waiting().filter(same, channel=OuterRef("channel"), pk__lt=OuterRef("pk"))
    due = _waiting().filter(~Exists(earlier), due_at__lte=now)
    incident = [f"watched_incident__{part}" for part in PARTS]
    read = ("channel", "alert__pipeline", "alert__incident", *incident)
    return due.select_related(*read).order_by("attempts", "pk")


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
        post_message(delivery.channel, message)
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
