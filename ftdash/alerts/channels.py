"""The only writer of channels, to which alerts are sent. Logs each change, without secrets."""

import re
import secrets
from dataclasses import dataclass

from django.conf import settings
from django.db import IntegrityError, transaction
from django.utils import timezone

from ftdash.accounts import services
from ftdash.alerts import delivery, evaluation, webhooks
from ftdash.alerts.models import Channel, ChannelKind, News
from ftdash.jobs.validation import check_reason
from ftdash.requests.asking import pipeline_named
from pipelines.domain.errors import Rejected

CHANNELS_MAX = 20
ADDRESS_LENGTH_MAX = 2_000
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,79}")


@dataclass(frozen=True, slots=True)
class NewWebhook:
    """`key` signs its messages, and is shown only here and now."""

    name: str
    key: str


def make_webhook(
    *, name: str, address: str, pipeline: str | None, requester: str, reason: str
) -> NewWebhook:
    """`pipeline` None: all. Raises Rejected for an address to which no message may go."""
    try:
        target = webhooks.resolve(address, allows_private=settings.WEBHOOK_PRIVATE)
    except OSError as error:
        host = webhooks.parse(address).host
        raise Rejected(f"The name {host!r} of the webhook is not known: {error}.") from error
    kind = ChannelKind.WEBHOOK
    made = _make(name, kind, address, pipeline, requester, reason, told=target.host_header)
    return NewWebhook(name, webhooks.key_of(made.key_salt))


def make_mail(
    *, name: str, addresses: str, pipeline: str | None, requester: str, reason: str
) -> None:
    delivery.check_can_send()
    address = ", ".join(delivery.addresses(addresses))
    _make(name, ChannelKind.MAIL, address, pipeline, requester, reason, told=address)


def delete_channel(*, name: str, requester: str, reason: str) -> None:
    """Messages that wait for it are not sent any more."""
    reason = check_reason(reason)
    with transaction.atomic():
        _channel(name).delete()
        _log(requester, "deleted", name, reason)


def send_test(*, name: str, requester: str, reason: str) -> None:
    """The channel shows the outcome."""
    reason = check_reason(reason)
    with transaction.atomic():
        evaluation.tell(_channel(name), None, News.TEST, timezone.now())
        _log(requester, "tested", name, reason)


def _make(
    name: str,
    kind: ChannelKind,
    address: str,
    pipeline: str | None,
    requester: str,
    reason: str,
    *,
    told: str,
) -> Channel:
    reason = check_reason(reason)
    _check_name(name)
    if len(address) > ADDRESS_LENGTH_MAX:
        raise Rejected(f"An address has at most {ADDRESS_LENGTH_MAX} letters.")
    if Channel.objects.count() >= CHANNELS_MAX:
        raise Rejected(f"There are {CHANNELS_MAX} channels already; delete one.")
    only = None if pipeline is None else pipeline_named(pipeline)
    try:
        with transaction.atomic():
            made = Channel.objects.create(
                name=name,
                kind=kind,
                address=address,
                pipeline=only,
                key_salt=secrets.token_hex(16),
                created_by=requester,
                created_at=timezone.now(),
            )
            _log(requester, "made", name, reason, f"{kind.label} to {told}")
    except IntegrityError as error:
        raise Rejected(f"There is a channel {name!r}; choose another name.") from error
    return made


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise Rejected(
            f"The channel name {name!r} cannot be used; take up to 80 lower-case letters, digits,"
            " '-' and '_', and begin with a letter or digit."
        )


def _channel(name: str) -> Channel:
    row = Channel.objects.filter(name=name).first()
    if row is None:
        raise Rejected(f"There is no channel {name!r}.")
    return row


def _log(who: str, what: str, name: str, reason: str, detail: str = "") -> None:
    services.record(who=who, what=what, subject=f"channel {name}", reason=reason, detail=detail)
