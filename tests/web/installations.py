"""Installations of their own. Their commands are processes with the environment of one of them."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
START = "import django; django.setup()\n"
COMMANDS = """
import io, json, sys
from contextlib import redirect_stderr, redirect_stdout
from ftdash.__main__ import main

for words in json.loads(sys.argv[1]):
    sys.argv, status = ["manage.py", *words], 0
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
        try:
            main()
        except SystemExit as ended:
            status = ended.code
    print(json.dumps([words, status, out.getvalue(), err.getvalue()]))
"""


@dataclass(frozen=True)
class Installation:
    """One installation. Its processes get its environment; this process does not."""

    home: Path
    database: str | None = None  # its URL; None means SQLite
    programs: Path | None = None  # those of PostgreSQL

    @property
    def environment(self) -> dict[str, str]:
        outside = {key: each for key, each in os.environ.items() if not key.startswith("FTDASH_")}
        given = {"FTDASH_HOME": str(self.home), "DJANGO_SETTINGS_MODULE": "ftdash.settings"}
        if self.database:
            given["FTDASH_DATABASE_URL"] = self.database
        if self.programs:
            given["PATH"] = f"{self.programs}:{outside['PATH']}"
        return {**outside, **given}

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *words],
            cwd=ROOT,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def python(self, program: str, *arguments: str) -> str:
        ran = self.run("-c", START + program, *arguments)
        assert ran.returncode == 0, ran.stderr
        return ran.stdout

    def commands(self, *commands: tuple[str, ...]) -> list[subprocess.CompletedProcess[str]]:
        """Runs commands of `manage.py` one after the other in one process.

        Starting a process for each takes longer than what most of them do.
        """
        ran = self.run("-c", COMMANDS, json.dumps(commands))
        assert ran.returncode == 0, ran.stderr
        return [subprocess.CompletedProcess(*json.loads(line)) for line in ran.stdout.splitlines()]

    @contextmanager
    def running(self, program: str, *arguments: str) -> Iterator["subprocess.Popen[str]"]:
        """Runs the program beside others, and kills it if it has not ended."""
        words = [sys.executable, "-c", START + program, *arguments]
        with subprocess.Popen(words, cwd=ROOT, env=self.environment) as process:
            try:
                yield process
            finally:
                process.kill()


Installations = Callable[[str], Installation]
