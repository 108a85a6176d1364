"""The web server's entry point has loaded everything that pages need before the first request.

It has loaded no flow: the code of a flow may change while the server runs.
"""

import json
import subprocess
import sys

PROGRAM = """
import gc, json, sys
import ftdash.asgi
from ftdash.jobs import fresh_code
from pipelines.flows.finding import modules_of_flows
print(json.dumps({
    "views": "ftdash.ui.checkpoints.page" in sys.modules,
    "flows": any(module in sys.modules for module in modules_of_flows()),
    "asks_afresh": bool(fresh_code._staying),
    "set_aside": gc.get_freeze_count() > len(gc.get_objects()),
}))
"""


def test_pages_are_preloaded_and_excluded_from_garbage_collection() -> None:
    told = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=120
    ).stdout

    assert json.loads(told) == {
        "views": True,
        "flows": False,
        "asks_afresh": True,
        "set_aside": True,
    }
