"""Our own addresses, below `/api/`."""

from ftdash.api.own import actions, alerts, labs, readings, savepoints, settings
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
    settings,
    settings,
)
"""Importing these modules adds their addresses to the API."""

urlpatterns = patterns()
