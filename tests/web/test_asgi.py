"""The web server's entry point has loaded everything that pages need before the first request.

It has loaded no flow: the code of a flow may change while the server runs.
"""

import json
import subprocess
import sys

PROGRAM = """
import django, gc, json, os, sys
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "ftdash.settings")
django.setup()
import ftdash.deployment.doctor, ftdash.embedded.stack
has_arrow = "pyarrow" in sys.modules or "numpy" in sys.modules
import ftdash.asgi
from ftdash.jobs import fresh_code
from pipelines.flows.finding import modules_of_flows
print(json.dumps({
    "starts_with_arrow": has_arrow,
    "views": "ftdash.ui.checkpoints.page" in sys.modules,
    "flows": any(module in sys.modules for module in modules_of_flows()),
    "asks_afresh": bool(fresh_code._staying),
    "set_aside": gc.get_freeze_count() > len(gc.get_objects()),
}))
"""


def test_pages_are_preloaded_and_excluded_from_garbage_collection() -> None:
    """Before that, Django starts without Arrow, which most processes do not need."""
    told = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=120
    ).stdout

    assert json.loads(told) == {
        "starts_with_arrow": False,
        "views": True,
        "flows": False,
        "asks_afresh": True,
        "set_aside": True,
    }
