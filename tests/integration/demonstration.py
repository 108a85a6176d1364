"""`manage.py demo` as a process of its own, started as a user starts it."""

import re
import signal
import subprocess
import sys
from pathlib import Path

from ftdash.embedded.supervisor import LEDGER_NAME, end_all, wait_until

ROOT = Path(__file__).parents[2]
DEMO = (sys.executable, "manage.py", "demo", "--port", "0")


class Demo:
    """A demonstration whose output goes to a file.

    It and all processes that it started are gone when the block ends.
    """

    def __init__(self, home: Path, ignored: signal.Signals, *more: str) -> None:
        self._ledger = home / LEDGER_NAME
        self._words = home.with_suffix(".txt")
        before = signal.signal(ignored, signal.SIG_IGN)
        try:
            with self._words.open("wb") as words:
                self.process = subprocess.Popen(
                    [*DEMO, "--home", str(home), *more],
                    cwd=ROOT,
                    stdout=words,
                    stderr=subprocess.STDOUT,
                )
        finally:
            signal.signal(ignored, before)

    def __enter__(self) -> "Demo":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        if self._ledger.is_file():
            end_all(self._ledger)  # the demonstration's guardian does the same, some time later

    def wait_said(self, pattern: str) -> None:
        wait_until(
            lambda: self._has_said(pattern),
            within_s=120,
            otherwise=lambda: f"{pattern} was not said:\n{self._words.read_text()}",
        )

    def said(self, pattern: str) -> str:
        found = re.search(pattern, self._words.read_text())
        assert found, pattern
        return found.group(1)

    def _has_said(self, pattern: str) -> bool:
        assert self.process.poll() is None, self._words.read_text()
        return re.search(pattern, self._words.read_text()) is not None
