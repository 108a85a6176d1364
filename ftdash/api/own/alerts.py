"""Addresses of alerts: those that fire, those that fired, and acknowledging one."""

from django.http import HttpRequest
from ninja import Status

from ftdash.alerts import queries as alert_queries
from ftdash.alerts import rules
from ftdash.alerts.queries import AlertHistory, AlertView
from ftdash.api.own import shapes
from ftdash.api.own.door import Entered, api
from ftdash.api.own.shapes import Limit, Page
from pipelines.domain.errors import InvariantViolated

ASKED = 202


@api.get("/alerts", response=list[AlertView])
def firing_alerts(request: HttpRequest) -> list[AlertView]:
    """Alerts that fire now, unacknowledged ones first."""
    return alert_queries.firing()


@api.get("/alerts/history", response=AlertHistory)
def alert_history(request: HttpRequest, page: Page = 1, per_page: Limit = 25) -> AlertHistory:
    """Alerts that fired and cleared, newest first; a page beyond the last is the last."""
    return alert_queries.history(page, per_page)


@api.post("/alerts/{key}/acknowledgement", response={ASKED: AlertView})
def acknowledge_alert(
    request: Entered, key: shapes.NumberInPath, asked: shapes.Changing
) -> Status[AlertView]:
    """Acknowledge that you look after it; it fires until it clears."""
    rules.acknowledge(alert=key, requester=request.auth.name, reason=asked.reason)
    found = alert_queries.alert(key)
    if found is None:
        raise InvariantViolated("an alert that somebody looks after is found")
    return Status(ASKED, found)
