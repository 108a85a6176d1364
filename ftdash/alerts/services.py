"""The only writers of people's decisions on alerts: channels, rules, acknowledgements, silences.

Each change is logged, without secrets.
"""

import re
import secrets
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.conf import settings
from django.db import IntegrityError, transaction
from django.utils import timezone

from ftdash.accounts import services
from ftdash.alerts import delivery, evaluation
from ftdash.alerts.delivery import written
from ftdash.alerts.evaluation import SILENCED, wait_between_rounds
from ftdash.alerts.hysteresis import Band
from ftdash.alerts.models import Alert, AlertRule, Channel, ChannelKind, News, Silence, Watched
from ftdash.flink_clusters.models import FlinkCluster
from ftdash.formats import held_for, utc
from ftdash.jobs.validation import check_reason
from ftdash.requests.storing import pipeline_named
from ftdash.watching.services.work import watched_row
from pipelines.domain.errors import Rejected

CHANNELS_MAX = 20
ADDRESS_LENGTH_MAX = 2_000
_CHANNEL_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,79}")


@dataclass(frozen=True, slots=True)
class NewWebhook:
    """`key` signs its messages and is shown only once, here."""

    name: str
    key: str


def make_webhook(
    *, name: str, address: str, pipeline: str | None, requester: str, reason: str
) -> NewWebhook:
    """`pipeline` None means all. Raises Rejected for an address to which no message may go."""
    try:
        target = delivery.resolve(address, allows_private=settings.WEBHOOK_PRIVATE)
    except OSError as error:
        host = delivery.parse(address).host
        raise Rejected(f"The name {host!r} of the webhook is not known: {error}.") from error
    kind = ChannelKind.WEBHOOK
    made = _make(name, kind, address, pipeline, requester, reason, shown_address=target.host_header)
    return NewWebhook(name, delivery.key_of(made.key_salt))


def make_mail(
    *, name: str, addresses: str, pipeline: str | None, requester: str, reason: str
) -> None:
    delivery.check_can_send()
    address = ", ".join(delivery.addresses(addresses))
    _make(name, ChannelKind.MAIL, address, pipeline, requester, reason, shown_address=address)


def delete_channel(*, name: str, requester: str, reason: str) -> None:
    """Deletes the channel; messages that wait for it are never sent."""
    reason = check_reason(reason)
    with transaction.atomic():
        _channel(name).delete()
        _log_channel(requester, "deleted", name, reason)


def send_test(*, name: str, requester: str, reason: str) -> None:
    """Sends a test message; the channel shows the outcome."""
    reason = check_reason(reason)
    with transaction.atomic():
        evaluation.tell(_channel(name), None, News.TEST, timezone.now())
        _log_channel(requester, "tested", name, reason)


def _make(
    name: str,
    kind: ChannelKind,
    address: str,
    pipeline: str | None,
    requester: str,
    reason: str,
    *,
    shown_address: str,
) -> Channel:
    reason = check_reason(reason)
    _check_channel_name(name)
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
            _log_channel(requester, "made", name, reason, f"{kind.label} to {shown_address}")
    except IntegrityError as error:
        raise Rejected(f"There is a channel {name!r}; choose another name.") from error
    return made


def _check_channel_name(name: str) -> None:
    if not _CHANNEL_NAME.fullmatch(name):
        raise Rejected(
            f"The channel name {name!r} cannot be used; take up to 80 lower-case letters, digits,"
            " '-' and '_', and begin with a letter or digit."
        )


def _channel(name: str) -> Channel:
    row = Channel.objects.filter(name=name).first()
    if row is None:
        raise Rejected(f"There is no channel {name!r}.")
    return row


def _log_channel(who: str, what: str, name: str, reason: str, detail: str = "") -> None:
    services.record(who=who, what=what, subject=f"channel {name}", reason=reason, detail=detail)


RULES_MAX = 100
"""Each rule is judged for every pipeline, every few seconds."""


def make_rule(
    *, name: str, watched: Watched, pipeline: str | None, band: Band, requester: str, reason: str
) -> str:
    """Returns the rule's name, without surrounding blanks. `pipeline` None means all.

    Raises Rejected if the rule is not possible, or the name is taken.
    """
    reason, name = check_reason(reason), name.strip()
    _check_rule_name(name)
    band.check()
    if AlertRule.objects.count() >= RULES_MAX:
        raise Rejected(f"There are {RULES_MAX} rules already; delete one you no longer need.")
    only = None if pipeline is None else pipeline_named(pipeline)
    try:
        with transaction.atomic():
            AlertRule.objects.create(
                name=name, watched=watched.value, pipeline=only, **_columns(band)
            )
            _log_rule(requester, "made", name, reason, f"{watched.label}, {_words(watched, band)}")
    except IntegrityError as error:
        raise Rejected(f"There is a rule {name!r}; choose another name.") from error
    return name


def change_rule(*, name: str, band: Band, requester: str, reason: str) -> None:
    """Changes the band. A firing alert continues until it clears by the new band."""
    reason = check_reason(reason)
    band.check()
    with transaction.atomic():
        rule = _rule(name)
        AlertRule.objects.filter(pk=rule.pk).update(**_columns(band))
        _log_rule(requester, "changed", name, reason, _words(Watched(rule.watched), band))


def switch_rule(*, name: str, is_on: bool, requester: str, reason: str) -> None:
    """Turns the rule on or off. Off clears its alerts, and none fires until it is on again."""
    reason = check_reason(reason)
    with transaction.atomic():
        rule = _rule(name)
        if rule.is_on == is_on:
            raise Rejected(f"The rule {name!r} is {'on' if is_on else 'off'} already.")
        AlertRule.objects.filter(pk=rule.pk).update(is_on=is_on)
        if not is_on:
            _end_alerts(rule, f"The rule was switched off by {requester}.")
        _log_rule(requester, "switched on" if is_on else "switched off", name, reason)


def delete_rule(*, name: str, requester: str, reason: str) -> None:
    """Deletes the rule; its past alerts stay in the history."""
    reason = check_reason(reason)
    with transaction.atomic():
        rule = _rule(name)
        _end_alerts(rule, f"The rule was deleted by {requester}.")
        rule.delete()
        _log_rule(requester, "deleted", name, reason)


def acknowledge(*, alert: int, requester: str, reason: str) -> None:
    """Notes that a person looks after the alert, which stays until it clears.

    Raises Rejected if another person has already acknowledged it.
    """
    reason = check_reason(reason)
    with transaction.atomic():
        row = Alert.objects.filter(pk=alert).select_related("pipeline").first()
        if row is None:
            raise Rejected(f"There is no alert {alert}.")
        if row.cleared_at is not None:
            raise Rejected("This alert has cleared already.")
        mine = Alert.objects.filter(pk=alert, acknowledged_at=None)
        if not mine.update(
            acknowledged_by=requester,
            acknowledged_at=timezone.now(),
            acknowledged_reason=reason,
        ):
            raise Rejected(f"{row.acknowledged_by} has already acknowledged this alert.")
        subject = f"alert {row.rule_name} of {row.pipeline.name}"
        services.record(who=requester, what="acknowledged", subject=subject, reason=reason)


SILENCE_MAX = timedelta(days=30)
SILENCES_MAX = 100


def make_silence(
    *,
    rule: str | None,
    pipeline: str | None,
    until: datetime,
    requester: str,
    reason: str,
    query: str | None = None,
    flink_cluster: str | None = None,
) -> int:
    """Holds messages back until the given time. Returns the silence's key.

    Without a rule, it is for all rules; without a pipeline, watched query and Flink cluster, for
    all of these. An alert that still fires then, or an incident that is still open, sends its
    message at that time.
    """
    reason, now = check_reason(reason), timezone.now()
    if not now < until <= now + SILENCE_MAX:
        raise Rejected(
            f"A silence ends in the future, and after at most {SILENCE_MAX.days} days; name"
            " another end."
        )
    if sum(each is not None for each in (pipeline, query, flink_cluster)) > 1:
        raise Rejected("Name a pipeline, a watched query or a Flink cluster, and only one of them.")
    if rule is not None and (query or flink_cluster):
        raise Rejected(
            "Rules judge pipelines; for a watched query or a Flink cluster, name no rule."
        )
    if Silence.objects.filter(ended_at=None, until__gt=now).count() >= SILENCES_MAX:
        raise Rejected(f"There are {SILENCES_MAX} silences already; end one.")
    only = None if pipeline is None else pipeline_named(pipeline)
    with transaction.atomic():
        made = Silence.objects.create(
            rule=None if rule is None else _rule(rule),
            pipeline=only,
            query=None if query is None else watched_row(query),
            flink_cluster=None if flink_cluster is None else _cluster(flink_cluster),
            until=until,
            reason=reason,
            created_by=requester,
            created_at=now,
        )
        _log_silence(requester, "silenced", made, reason, f"until {utc(until)}")
    return made.pk


def end_silence(*, key: int, requester: str, reason: str) -> None:
    """Ends the silence. The alerts that still fire send their messages in the next round."""
    reason, now = check_reason(reason), timezone.now()
    with transaction.atomic():
        row = Silence.objects.filter(pk=key).select_related(*SILENCED).first()
        if row is None:
            raise Rejected(f"There is no silence {key}.")
        still_on = Silence.objects.filter(pk=key, ended_at=None, until__gt=now)
        if not still_on.update(ended_at=now, ended_by=requester):
            raise Rejected(f"The silence {key} is over already.")
        _log_silence(requester, "ended the silence of", row, reason)


def _log_silence(who: str, what: str, row: Silence, reason: str, detail: str = "") -> None:
    rule = f"rule {row.rule.name}" if row.rule else "all rules"
    place = row.pipeline.name if row.pipeline else "all pipelines"
    subject = f"{rule} for {place}"
    if row.query is not None:
        subject = f"query {row.query.name}"
    elif row.flink_cluster is not None:
        subject = f"Flink cluster {row.flink_cluster.name}"
    services.record(who=who, what=what, subject=subject, reason=reason, detail=detail)


def _cluster(name: str) -> FlinkCluster:
    row = FlinkCluster.objects.filter(name=name).first()
    if row is None:
        raise Rejected(f"There is no watched Flink cluster {name!r}; see `watch_flink list`.")
    return row


def _end_alerts(rule: AlertRule, because: str) -> None:
    evaluation.clear(Alert.objects.filter(rule=rule), because, timezone.now())
    rule.standings.all().delete()


def _rule(name: str) -> AlertRule:
    """Takes the lock: a round that has read the rule is over, and the next one reads the change."""
    wait_between_rounds()
    row = AlertRule.objects.filter(name=name).first()
    if row is None:
        raise Rejected(f"There is no rule {name!r}.")
    return row


def _check_rule_name(name: str) -> None:
    if not (1 <= len(name) <= 80 and name.isprintable()):
        raise Rejected("The name of a rule is 1 to 80 letters, digits, signs and blanks.")


def _columns(band: Band) -> dict[str, float]:
    return {
        "fire_above": band.fire_above,
        "fire_after_s": band.fire_after_s,
        "clear_below": band.clear_below,
        "clear_after_s": band.clear_after_s,
    }


def _words(watched: Watched, band: Band) -> str:
    return (
        f"above {written(watched, band.fire_above)} {held_for(band.fire_after_s)}, until below"
        f" {written(watched, band.clear_below)} {held_for(band.clear_after_s)}"
    )


def _log_rule(who: str, what: str, name: str, reason: str, detail: str = "") -> None:
    services.record(who=who, what=what, subject=f"rule {name}", reason=reason, detail=detail)
