"""The message about an alert: the same words and numbers for webhooks, mails and pages."""

from datetime import datetime

import msgspec
from django.conf import settings
from django.urls import reverse

from ftdash import formats
from ftdash.alerts.models import Delivery, News, Watched

_SECONDS = (
    Watched.SINCE_CHECKPOINT,
    Watched.SINCE_OUTPUT,
    Watched.COMMIT_WAIT,
    Watched.EVENT_TIME_LAG,
)


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
    watched: str | None = None  # models.Watched
    unit: str | None = None
    value: float | None = None
    threshold: float | None = None
    fired_at: datetime | None = None
    cleared_at: datetime | None = None
    url: str | None = None  # null: the installation does not know its own address


def message_of(delivery: Delivery) -> Message:
    """Needs a delivery whose channel, alert and pipeline were read with it."""
    alert = delivery.alert
    if alert is None:
        text = f"A test of the channel {delivery.channel.name!r}; nothing is wrong."
        return Message(id=delivery.pk, news=delivery.news, subject="ftdash: a test", text=text)
    watched, name = Watched(alert.watched), alert.pipeline.name
    is_over = delivery.news == News.CLEARED
    subject = f"ftdash: {name}: {alert.rule_name} {'cleared' if is_over else 'fires'}"
    sentence = sentence_of(watched, alert.fired_value, alert.fire_above)
    url = _address(name)
    return Message(
        id=delivery.pk,
        news=delivery.news,
        subject=subject,
        text="\n".join(filter(None, [sentence, alert.cleared_because if is_over else "", url])),
        alert=alert.pk,
        rule=alert.rule_name,
        pipeline=name,
        watched=watched.value,
        unit=unit_of(watched),
        value=alert.fired_value,
        threshold=alert.fire_above,
        fired_at=alert.fired_at,
        cleared_at=alert.cleared_at if is_over else None,
        url=url,
    )


def sentence_of(watched: Watched, value: float, fire_above: float) -> str:
    bound, found = written(watched, fire_above), written(watched, value)
    return f"{watched.label.capitalize()}: {found}; it fires above {bound}."


def written(watched: Watched, value: float) -> str:
    if watched in _SECONDS:
        return formats.duration(1000 * value)
    return formats.size(value) if watched is Watched.BUFFERED_BYTES else formats.count(round(value))


def unit_of(watched: Watched) -> str:
    if watched in _SECONDS:
        return "seconds"
    return "bytes" if watched is Watched.BUFFERED_BYTES else "count"


def _address(pipeline: str) -> str | None:
    base = settings.BASE_URL
    return base.rstrip("/") + reverse("pipeline", args=[pipeline]) if base else None
