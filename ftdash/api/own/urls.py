"""Our own addresses, below `/api/`."""

from ftdash.api.own import (
    accounts,
    actions,
    alert_settings,
    alerts,
    checkpoints,
    labs,
    readings,
    retention,
    savepoints,
)
from ftdash.api.own.door import patterns

app_name = "api"

DESCRIBED_IN = (
    readings,
    checkpoints,
    alerts,
    actions,
    savepoints,
    labs,
    alert_settings,
    retention,
    accounts,
)
"""Importing these modules adds their addresses to the API."""

urlpatterns = patterns()
