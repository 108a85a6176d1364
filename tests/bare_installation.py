"""Hosts a control plane without a pipeline, until its standard input ends: `python FILE HOME`.

Starts Redis, projector, worker, beat and web server, as a demonstration does. Prints one line of
JSON when all are ready: the environment in which commands reach this installation. Imports nothing
from the tests, because it runs where only the wheel is installed.
"""

import json
import os
import sys
from pathlib import Path

from ftdash.embedded import installation


def main() -> None:
    if not installation.is_entered():
        installation.reenter(Path(sys.argv[1]))
    import django

    django.setup()
    from ftdash.embedded.demo import open_installation
    from ftdash.embedded.outcome import Console

    with open_installation(Console(), installation.free_port()):
        shared = {name: value for name, value in os.environ.items() if name.startswith("FTDASH_")}
        print(json.dumps(shared), flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
