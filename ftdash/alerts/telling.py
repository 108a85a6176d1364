"""Writes that an alert fired or cleared, and a message about it to every channel concerned.

It does so in the caller's transaction: no alert without its messages, no message without its alert.
The worker is called on commit; if none answers, the next beat delivers.
"""

from datetime import datetime

from django.db.models import Q, QuerySet

from ftdash.alerts.models import Alert, AlertRule, Channel, Delivery, News
from ftdash.errands import Errand, publish_on_commit
from ftdash.jobs.models import Pipeline


def fire(
    rule: AlertRule, pipeline: Pipeline, value: float, now: datetime, *, fire_above: float
) -> None:
    """`fire_above`: the threshold for this pipeline."""
    alert = Alert.objects.create(
        rule=rule,
        rule_name=rule.name,
        watched=rule.watched,
        pipeline=pipeline,
        fire_above=fire_above,
        fired_at=now,
        fired_value=value,
    )
    _tell_all(alert, News.FIRED, now)


def clear(alerts: QuerySet[Alert], because: str, now: datetime) -> None:
    """Clears the open ones of `alerts`; alerts that cleared before stay as they were."""
    for alert in alerts.filter(cleared_at=None):
        still_open = Alert.objects.filter(pk=alert.pk, cleared_at=None)
        if still_open.update(cleared_at=now, cleared_because=because):
            _tell_all(alert, News.CLEARED, now)


def tell(channel: Channel, alert: Alert | None, news: News, now: datetime) -> Delivery:
    made = Delivery.objects.create(
        channel=channel, alert=alert, news=news, created_at=now, due_at=now
    )
    publish_on_commit(Errand.DELIVER_ALERTS)
    return made


def _tell_all(alert: Alert, news: News, now: datetime) -> None:
    for channel in Channel.objects.filter(Q(pipeline=None) | Q(pipeline=alert.pipeline_id)):
        tell(channel, alert, news, now)
