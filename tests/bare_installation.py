"""Hosts a control plane without a pipeline, until its standard input ends: `python FILE HOME`.

Starts Redis, projector, worker, beat and web server, as a demonstration does. Prints one line when
all are ready. Each line of its standard input is a command, a JSON list such as ["pipeline",
"list"]. It runs them one after the other as `ftdash ...` does, without another two seconds of
processor time for a process that loads Django, and answers with a line of JSON: status and output.
Imports nothing from the tests, because it runs where only the wheel is installed.
"""

import json
import sys
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path

from ftdash.embedded import installation


def main() -> None:
    if not installation.is_entered():
        installation.reenter(Path(sys.argv[1]))
    import django

    django.setup()
    from ftdash.embedded.demo import open_installation
    from ftdash.embedded.outcome import Console
    from ftdash.jobs.fresh_code import stay

    stay()  # this process runs many commands, for one version of a package after another
    with open_installation(Console(), installation.free_port()):
        print("ready", flush=True)
        for line in sys.stdin:
            print(json.dumps(answer(json.loads(line))), flush=True)


def answer(words: list[str]) -> dict[str, object]:
    from ftdash.__main__ import main as ftdash

    sys.argv = ["ftdash", *words]
    printed, status = StringIO(), None
    with redirect_stdout(printed), redirect_stderr(printed):
        try:
            ftdash()
        except SystemExit as ended:
            status = ended.code
    return {"status": status or 0, "output": printed.getvalue()}


if __name__ == "__main__":
    main()
