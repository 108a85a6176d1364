"""Our own addresses, below `/api/`.

A module of its own, because Django includes addresses by the name of a module.
"""

from ftdash.api.own import actions, flink_clusters, labs, readings, settings, watching
from ftdash.api.own.door import patterns

app_name = "api"

DESCRIBED_IN = (readings, actions, labs, settings, watching, flink_clusters)
"""Importing these modules adds their addresses to the API."""

urlpatterns = patterns()
