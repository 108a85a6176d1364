"""A server of a test session: started on loopback, waited for, killed by its id, started again."""

import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

STOP_S = 10.0


class ServerProcess:
    """Waits at each start until `answers` returns True. The output of the server goes to `log`."""

    def __init__(
        self, command: list[str], log: Path, answers: Callable[[], bool], *, within_s: float
    ) -> None:
        self._command = command
        self._log = log
        self._answers = answers
        self._within_s = within_s
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        deadline_s = time.monotonic() + self._within_s
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline_s:
                self.kill()
                raise RuntimeError(f"the server did not start:\n{self._log.read_text()[-3000:]}")
            time.sleep(0.05)

    def kill(self) -> None:
        """Kills the server like a machine failure."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(STOP_S)
            self._process = None

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Sends SIGSTOP: the kernel still accepts connections, but the server does not answer."""
        if self._process is None:
            raise RuntimeError("the server does not run")
        server = psutil.Process(self._process.pid)
        server.suspend()
        try:
            yield
        finally:
            server.resume()
