"""Our own addresses, below `/api/`."""

from ftdash.api.own import actions, alerts, checkpoints, labs, readings, savepoints
from ftdash.api.own.door import patterns

app_name = "api"

DESCRIBED_IN = (readings, checkpoints, alerts, actions, savepoints, labs)
"""They give the API its addresses when they are imported."""

urlpatterns = patterns()
