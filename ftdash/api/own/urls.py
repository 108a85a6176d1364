"""Our own addresses, below `/api/`."""

from ftdash.api.own import accounts, actions, alerts, labs, readings, retention, savepoints
from ftdash.api.own.door import patterns

app_name = "api"

DESCRIBED_IN = (
    readings,
    readings,
    alerts,
    actions,
    savepoints,
    labs,
    alerts,
    retention,
    accounts,
)
"""Importing these modules adds their addresses to the API."""

urlpatterns = patterns()
