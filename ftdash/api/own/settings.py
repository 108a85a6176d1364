"""Addresses for admins' decisions on people, tokens, history and alerts, and for their log.

Only a session may change people and tokens. A change is complete when its address answers. A secret
is only in the answer that makes it: if you ask again for a one-time password, you get a new one,
and the older one is void. Before you choose how long to keep history, you can ask what the choice
would delete.
"""

from django.http import HttpRequest
from ninja import Status

from ftdash.accounts import queries, services
from ftdash.accounts.queries import AdminActionView, PersonView, TokenView
from ftdash.accounts.services import NewPassword, NewToken
from ftdash.alerts import queries as alert_queries
from ftdash.alerts import services as alert_services
from ftdash.alerts.queries import AlertHistory, AlertView, ChannelView, RuleView, SilenceView
from ftdash.alerts.services import NewWebhook
from ftdash.api.own import shapes as shapes
from ftdash.api.own.door import CONFIGURING, IN_PERSON, Entered, api, known
from ftdash.api.own.shapes import Changing, InPath, Keeping, Limit, Page, PersonInPath
from ftdash.history import limits
from ftdash.history.models import Kind
from ftdash.retention import queries as kept_queries
from ftdash.retention.queries import Choice, KeptView
from pipelines.domain.errors import InvariantViolated


@api.get("/tokens", response=list[TokenView])
def api_tokens(request: HttpRequest) -> list[TokenView]:
    """Names and scopes; only its owner knows a token's secret."""
    return queries.tokens()


@api.get("/people", response=list[PersonView])
def all_people(request: HttpRequest) -> list[PersonView]:
    """People who may sign in, with their roles; deactivated ones last."""
    return queries.people()


@api.get("/settings/log", response=list[AdminActionView])
def settings_log(request: HttpRequest, limit: Limit = 50) -> list[AdminActionView]:
    """Changes other than to pipelines, newest first."""
    return queries.admin_actions(limit)


@api.post("/tokens", response=NewToken, **IN_PERSON)
def make_token(request: Entered, body: shapes.MakingToken) -> NewToken:
    """Make a token; `secret` is only in this answer."""
    return services.create_token(
        name=body.name,
        scope=body.scope,
        created_by=request.auth.name,
        reason=body.reason,
        expires_at=body.expires_at,
    )


@api.post("/tokens/{token}/revoke", response=TokenView, **IN_PERSON)
def revoke_token(request: Entered, token: InPath, body: Changing) -> TokenView:
    """Revoke a token; it is invalid from now on, and its name stays taken."""
    services.revoke_token(name=token, revoked_by=request.auth.name, reason=body.reason)
    return known(queries.token(token), f"token {token!r}")


@api.post("/people", response=NewPassword, **IN_PERSON)
def invite(request: Entered, body: shapes.Inviting) -> NewPassword:
    """Invite a person. The password works once: the first sign-in asks for a new one."""
    return services.invite(
        name=body.name, role=body.role, requester=request.auth.name, reason=body.reason
    )


@api.post("/people/{person}/role", response=PersonView, **IN_PERSON)
def change_role(request: Entered, person: PersonInPath, body: shapes.ChangingRole) -> PersonView:
    services.change_role(
        name=person, role=body.role, requester=request.auth.name, reason=body.reason
    )
    return _person(person)


@api.post("/people/{person}/password", response=NewPassword, **IN_PERSON)
def reset_password(request: Entered, person: PersonInPath, body: Changing) -> NewPassword:
    """Give a person a new one-time password, and end their sessions."""
    return services.reset_password(name=person, requester=request.auth.name, reason=body.reason)


@api.post("/people/{person}/deactivate", response=PersonView, **IN_PERSON)
def deactivate(request: Entered, person: PersonInPath, body: Changing) -> PersonView:
    """End a person's access and sessions at once; tokens that they made keep working."""
    services.deactivate(name=person, requester=request.auth.name, reason=body.reason)
    return _person(person)


@api.post("/people/{person}/reactivate", response=NewPassword, **IN_PERSON)
def reactivate(request: Entered, person: PersonInPath, body: Changing) -> NewPassword:
    """Restore a person's access with the former role.

    A local account also gets a new one-time password; for a company account, `password` is empty.
    """
    return services.reactivate(name=person, requester=request.auth.name, reason=body.reason)


def _person(name: str) -> PersonView:
    return known(queries.person(name), f"person {name!r}")


@api.get("/history", response=list[KeptView])
def history(request: HttpRequest) -> list[KeptView]:
    """Each kind of rows that ftdash deletes with age, and how many rows it has."""
    return kept_queries.kept()


@api.get("/history/{kind}/choices", response=list[Choice])
def history_choices(request: HttpRequest, kind: Kind) -> list[Choice]:
    """The retention times to choose from, and how many rows each would delete now."""
    return kept_queries.choices_of(kind)


@api.post("/history/{kind}", response=KeptView, **CONFIGURING)
def keep_history(request: Entered, kind: Kind, body: Keeping) -> KeptView:
    """Set how long to keep rows; older ones are deleted within minutes, permanently."""
    limits.change(kind=kind, keep=body.keep, requester=request.auth.name, reason=body.reason)
    return kept_queries.kept_of(kind)


ASKED = 202


@api.get("/alerts", response=list[AlertView])
def firing_alerts(request: HttpRequest) -> list[AlertView]:
    """Alerts that fire now, unacknowledged ones first."""
    return alert_queries.firing()


@api.get("/alerts/history", response=AlertHistory)
def alert_history(request: HttpRequest, page: Page = 1, per_page: Limit = 25) -> AlertHistory:
    """Alerts that fired and cleared, newest first; a page beyond the last gives the last page."""
    return alert_queries.history(page, per_page)


@api.post("/alerts/{key}/acknowledgement", response={ASKED: AlertView})
def acknowledge_alert(
    request: Entered, key: shapes.NumberInPath, body: shapes.Changing
) -> Status[AlertView]:
    """Acknowledge that you look after an alert; it fires until it clears."""
    alert_services.acknowledge(alert=key, requester=request.auth.name, reason=body.reason)
    found = alert_queries.alert(key)
    if found is None:
        raise InvariantViolated("an acknowledged alert is found")
    return Status(ASKED, found)


@api.get("/alerts/silences", response=list[SilenceView])
def alert_silences(request: HttpRequest) -> list[SilenceView]:
    """Silences, those in force first."""
    return alert_queries.silences()


@api.post("/alerts/silences", response=SilenceView)
def silence_alerts(request: Entered, body: shapes.Silencing) -> SilenceView:
    """Hold messages back until a given time; an alert that still fires then sends its message."""
    key = alert_services.make_silence(
        rule=body.rule,
        pipeline=body.pipeline,
        query=body.query,
        flink_cluster=body.flink_cluster,
        until=body.until,
        requester=request.auth.name,
        reason=body.reason,
    )
    return _silence(key)


@api.post("/alerts/silences/{key}/end", response=SilenceView)
def end_silence(request: Entered, key: shapes.NumberInPath, body: Changing) -> SilenceView:
    """End a silence; alerts that still fire send their messages."""
    alert_services.end_silence(key=key, requester=request.auth.name, reason=body.reason)
    return _silence(key)


@api.get("/alerts/rules", response=list[RuleView])
def alert_rules(request: HttpRequest) -> list[RuleView]:
    """All rules, with the pipelines for which each fires, or is close to it."""
    return alert_queries.rules()


@api.get("/alerts/channels", response=list[ChannelView])
def alert_channels(request: HttpRequest) -> list[ChannelView]:
    """The channels that receive alerts, with the outcome of the newest message; without secrets."""
    return alert_queries.channels()


@api.post("/alerts/rules", response=RuleView, **CONFIGURING)
def make_rule(request: Entered, body: shapes.MakingRule) -> RuleView:
    name = alert_services.make_rule(
        name=body.name,
        watched=body.watched,
        pipeline=body.pipeline,
        band=body.band.band,
        requester=request.auth.name,
        reason=body.reason,
    )
    return _rule(name)


@api.post("/alerts/rules/change", response=RuleView, **CONFIGURING)
def change_rule(request: Entered, body: shapes.ChangingBand) -> RuleView:
    """Change a rule's band; a firing alert continues until it clears by the new one."""
    alert_services.change_rule(
        name=body.name,
        band=body.band.band,
        requester=request.auth.name,
        reason=body.reason,
    )
    return _rule(body.name)


@api.post("/alerts/rules/switch", response=RuleView, **CONFIGURING)
def switch_rule(request: Entered, body: shapes.SwitchingRule) -> RuleView:
    """Switch a rule on or off. Off clears its alerts, and none fires until it is on again."""
    alert_services.switch_rule(
        name=body.name, is_on=body.is_on, requester=request.auth.name, reason=body.reason
    )
    return _rule(body.name)


@api.post("/alerts/rules/delete", response=list[RuleView], **CONFIGURING)
def delete_rule(request: Entered, body: shapes.ChangingRule) -> list[RuleView]:
    """Delete a rule. Its alerts clear; the answer lists the remaining rules."""
    alert_services.delete_rule(name=body.name, requester=request.auth.name, reason=body.reason)
    return alert_queries.rules()


@api.post("/alerts/channels/webhooks", response=NewWebhook, **CONFIGURING)
def make_webhook(request: Entered, body: shapes.MakingWebhook) -> NewWebhook:
    """Make a webhook; `key` signs its messages and is only in this answer."""
    return alert_services.make_webhook(
        name=body.name,
        address=body.address,
        pipeline=body.pipeline,
        requester=request.auth.name,
        reason=body.reason,
    )


@api.post("/alerts/channels/mails", response=ChannelView, **CONFIGURING)
def make_mail(request: Entered, body: shapes.MakingMail) -> ChannelView:
    alert_services.make_mail(
        name=body.name,
        addresses=body.addresses,
        pipeline=body.pipeline,
        requester=request.auth.name,
        reason=body.reason,
    )
    return _channel(body.name)


@api.post("/alerts/channels/{channel}/test", response=ChannelView, **CONFIGURING)
def test_channel(request: Entered, channel: InPath, body: Changing) -> ChannelView:
    """Send one message to a channel; ask for the channel again to see the outcome."""
    alert_services.send_test(name=channel, requester=request.auth.name, reason=body.reason)
    return _channel(channel)


@api.post("/alerts/channels/{channel}/delete", response=list[ChannelView], **CONFIGURING)
def delete_channel(request: Entered, channel: InPath, body: Changing) -> list[ChannelView]:
    """Delete a channel, with the messages that wait for it; the answer lists the remaining ones."""
    alert_services.delete_channel(name=channel, requester=request.auth.name, reason=body.reason)
    return alert_queries.channels()


def _rule(name: str) -> RuleView:
    return known(alert_queries.rule(name), f"rule {name!r}")


def _silence(key: int) -> SilenceView:
    return known(alert_queries.silence(key), f"silence {key}")


def _channel(name: str) -> ChannelView:
    return known(alert_queries.channel(name), f"channel {name!r}")
