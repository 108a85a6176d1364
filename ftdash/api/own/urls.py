"""Our own addresses, below `/api/`."""

from ftdash.api.own import actions, labs, readings, settings, watched_works, watching
from ftdash.api.own.door import patterns

app_name = "api"

DESCRIBED_IN = (readings, actions, labs, settings, watching, watched_works)
"""Importing these modules adds their addresses to the API."""

urlpatterns = patterns()
