"""Addresses of alerts: reading and acknowledging them, and changing their rules and channels.

A change is done when it is answered with 200.
"""

from django.http import HttpRequest
from ninja import Status

from ftdash.alerts import queries, services
from ftdash.alerts.queries import AlertHistory, AlertView, ChannelView, RuleView
from ftdash.alerts.services import NewWebhook
from ftdash.api.own import shapes
from ftdash.api.own.door import CONFIGURING, Entered, api, known
from ftdash.api.own.shapes import Changing, InPath, Limit, Page
from pipelines.domain.errors import InvariantViolated

ASKED = 202


@api.get("/alerts", response=list[AlertView])
def firing_alerts(request: HttpRequest) -> list[AlertView]:
    """Alerts that fire now, unacknowledged ones first."""
    return queries.firing()


@api.get("/alerts/history", response=AlertHistory)
def alert_history(request: HttpRequest, page: Page = 1, per_page: Limit = 25) -> AlertHistory:
    """Alerts that fired and cleared, newest first; a page beyond the last is the last."""
    return queries.history(page, per_page)


@api.post("/alerts/{key}/acknowledgement", response={ASKED: AlertView})
def acknowledge_alert(
    request: Entered, key: shapes.NumberInPath, asked: shapes.Changing
) -> Status[AlertView]:
    """Acknowledge that you look after it; it fires until it clears."""
    services.acknowledge(alert=key, requester=request.auth.name, reason=asked.reason)
    found = queries.alert(key)
    if found is None:
        raise InvariantViolated("an acknowledged alert is found")
    return Status(ASKED, found)


@api.get("/alerts/rules", response=list[RuleView])
def alert_rules(request: HttpRequest) -> list[RuleView]:
    """All rules, with the pipelines for which each fires, or is close to it."""
    return queries.rules()


@api.get("/alerts/channels", response=list[ChannelView])
def alert_channels(request: HttpRequest) -> list[ChannelView]:
    """Where alerts are sent, and the outcome of the newest message; without secrets."""
    return queries.channels()


@api.post("/alerts/rules", response=RuleView, **CONFIGURING)
def make_rule(request: Entered, asked: shapes.MakingRule) -> RuleView:
    name = services.make_rule(
        name=asked.name,
        watched=asked.watched,
        pipeline=asked.pipeline,
        band=asked.band.band,
        requester=request.auth.name,
        reason=asked.reason,
    )
    return _rule(name)


@api.post("/alerts/rules/change", response=RuleView, **CONFIGURING)
def change_rule(request: Entered, asked: shapes.ChangingBand) -> RuleView:
    """Change its band; a firing alert goes on until it clears by the new one."""
    services.change_rule(
        name=asked.name,
        band=asked.band.band,
        requester=request.auth.name,
        reason=asked.reason,
    )
    return _rule(asked.name)


@api.post("/alerts/rules/switch", response=RuleView, **CONFIGURING)
def switch_rule(request: Entered, asked: shapes.SwitchingRule) -> RuleView:
    """Off: its alerts clear, and none fires until it is on again."""
    services.switch_rule(
        name=asked.name, is_on=asked.is_on, requester=request.auth.name, reason=asked.reason
    )
    return _rule(asked.name)


@api.post("/alerts/rules/delete", response=list[RuleView], **CONFIGURING)
def delete_rule(request: Entered, asked: shapes.ChangingRule) -> list[RuleView]:
    """Its alerts clear; the answer lists the remaining rules."""
    services.delete_rule(name=asked.name, requester=request.auth.name, reason=asked.reason)
    return queries.rules()


@api.post("/alerts/channels/webhooks", response=NewWebhook, **CONFIGURING)
def make_webhook(request: Entered, asked: shapes.MakingWebhook) -> NewWebhook:
    """`key` signs its messages, and is only in this answer."""
    return services.make_webhook(
        name=asked.name,
        address=asked.address,
        pipeline=asked.pipeline,
        requester=request.auth.name,
        reason=asked.reason,
    )


@api.post("/alerts/channels/mails", response=ChannelView, **CONFIGURING)
def make_mail(request: Entered, asked: shapes.MakingMail) -> ChannelView:
    services.make_mail(
        name=asked.name,
        addresses=asked.addresses,
        pipeline=asked.pipeline,
        requester=request.auth.name,
        reason=asked.reason,
    )
    return _channel(asked.name)


@api.post("/alerts/channels/{channel}/test", response=ChannelView, **CONFIGURING)
def test_channel(request: Entered, channel: InPath, asked: Changing) -> ChannelView:
    """Send one message there; ask for the channel again to see the outcome."""
    services.send_test(name=channel, requester=request.auth.name, reason=asked.reason)
    return _channel(channel)


@api.post("/alerts/channels/{channel}/delete", response=list[ChannelView], **CONFIGURING)
def delete_channel(request: Entered, channel: InPath, asked: Changing) -> list[ChannelView]:
    """Drops the messages that wait for it; the answer lists the remaining channels."""
    services.delete_channel(name=channel, requester=request.auth.name, reason=asked.reason)
    return queries.channels()


def _rule(name: str) -> RuleView:
    return known(queries.rule(name), f"rule {name!r}")


def _channel(name: str) -> ChannelView:
    return known(queries.channel(name), f"channel {name!r}")
