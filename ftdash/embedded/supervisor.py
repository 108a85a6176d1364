"""Starts the processes of an embedded installation, keeps them alive and ends them.

Owns their order, readiness, logs and restarts. `services` defines them; the guardian and the
ledger see to it that nothing outlives the owner.
"""

import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil
import tenacity
from django.conf import settings

from ftdash.embedded.ledger import Ledger, end, end_all
from pipelines.domain.errors import Rejected

READY_POLL_S = 0.1
RESTARTS_MAX = 5
RESTARTS_WINDOW_S = 60.0
STOP_GRACE_S = 8.0
LOG_TAIL_LINES = 15

Report = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    name: str
    command: tuple[str, ...]
    is_ready: Callable[[], bool]  # called repeatedly; answers quickly
    ready_within_s: float
    ends_last: bool = False  # other services need it while they end


class Child:
    """One running service, and the times of its restarts."""

    def __init__(self, service: Service, start: Callable[[Service], subprocess.Popen[bytes]]):
        self.service = service
        self._start = start
        self._restarts: deque[float] = deque(maxlen=RESTARTS_MAX)
        self.process = start(service)

    @property
    def has_died(self) -> bool:
        return self.process.poll() is not None

    def try_restart(self) -> bool:
        """False, without a restart, if it died too often within the window."""
        now = time.monotonic()
        if len(self._restarts) == RESTARTS_MAX and now - self._restarts[0] < RESTARTS_WINDOW_S:
            return False
        self._restarts.append(now)
        self.process = self._start(self.service)
        return True


class Supervisor:
    """Use as a context manager: leaving it ends everything, whatever happened inside."""

    def __init__(self, ledger: Ledger, log_directory: Path, report: Report) -> None:
        self._ledger = ledger
        self._log_directory = log_directory
        self._report = report
        self._children: dict[str, Child] = {}
        log_directory.mkdir(parents=True, exist_ok=True)
        self._guardian = self._start_guardian()

    def __enter__(self) -> "Supervisor":
        return self

    def __exit__(self, *_: object) -> None:
        self._report("Ending everything that was started ...")
        self.stop()
        self._report("Ended; no process is left.")

    def start(self, *services: Service) -> None:
        """Starts them side by side; returns when all are ready. Raises Rejected if that is slow."""
        began = time.monotonic()
        children = [Child(service, self._start_process) for service in services]
        self._children |= {child.service.name: child for child in children}
        for child in children:
            self._wait_ready(child)
            self._report(f"{child.service.name} is ready after {time.monotonic() - began:.1f} s.")

    def revive(self) -> None:
        """Restart services that have died. Raises Rejected if one keeps dying."""
        if self._guardian.poll() is not None:
            self._guardian = self._start_guardian()
        for child in [child for child in self._children.values() if child.has_died]:
            self._revive(child)

    def pid_of(self, name: str) -> int:
        return self._children[name].process.pid

    def stop(self) -> None:
        """End every process of the ledger, last those that serve others."""
        first, last = self._by_order_of_ending()
        self._end_children(first)
        end_all(self._ledger.path, spare=frozenset(self._pids(last)) | {self._guardian.pid})
        self._end_children(last)
        self._children.clear()
        self._end_guardian()

    def _revive(self, child: Child) -> None:
        name, code = child.service.name, child.process.returncode
        if not child.try_restart():
            raise Rejected(
                f"{name} died {RESTARTS_MAX} times within {RESTARTS_WINDOW_S:.0f} s, the last"
                f" time with exit status {code}. {self._last_words(name)}"
            )
        self._report(f"{name} died with exit status {code}; started again.")

    def _start_process(self, service: Service) -> "subprocess.Popen[bytes]":
        with self._log_file(service.name).open("ab") as log:
            process = subprocess.Popen(
                service.command,
                cwd=settings.BASE_DIR,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                # Ctrl-C in a terminal reaches its whole process group; these processes end in
                # order.
                start_new_session=True,
            )
        self._ledger.record(process.pid)
        return process

    def _start_guardian(self) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(
            [sys.executable, "-m", "ftdash.embedded.guardian", str(self._ledger.path)],
            cwd=settings.BASE_DIR,
            stdin=subprocess.PIPE,
            start_new_session=True,
        )

    def _wait_ready(self, child: Child) -> None:
        service = child.service

        def is_ready() -> bool:
            if child.has_died:
                raise Rejected(
                    f"{service.name} ended with exit status {child.process.returncode} while it"
                    f" started. {self._last_words(service.name)}"
                )
            return service.is_ready()

        wait_until(
            is_ready,
            within_s=service.ready_within_s,
            otherwise=lambda: (
                f"{service.name} was not ready within {service.ready_within_s:.0f} s."
                f" {self._last_words(service.name)}"
            ),
        )

    def _by_order_of_ending(self) -> tuple[list[Child], list[Child]]:
        children = list(self._children.values())
        last = [child for child in children if child.service.ends_last]
        return [child for child in children if child not in last], last

    def _pids(self, children: list[Child]) -> list[int]:
        return [child.process.pid for child in children]

    def _end_children(self, children: list[Child]) -> None:
        end([psutil.Process(c.process.pid) for c in children if not c.has_died], STOP_GRACE_S)
        for child in children:
            child.process.wait()

    def _end_guardian(self) -> None:
        if self._guardian.stdin is not None:
            self._guardian.stdin.close()
        self._guardian.wait()

    def _log_file(self, name: str) -> Path:
        return self._log_directory / f"{name}.log"

    def _last_words(self, name: str) -> str:
        return last_words(self._log_file(name))


def wait_until(holds: Callable[[], bool], *, within_s: float, otherwise: Callable[[], str]) -> None:
    """Poll until `holds` answers True; raise Rejected with `otherwise` when time is up."""
    retrying = tenacity.Retrying(
        stop=tenacity.stop_after_delay(within_s),
        wait=tenacity.wait_fixed(READY_POLL_S),
        retry=tenacity.retry_if_result(lambda answer: not answer),
    )
    try:
        retrying(holds)
    except tenacity.RetryError:
        raise Rejected(otherwise()) from None


def last_words(log: Path) -> str:
    """Names the log of a process, and quotes its end."""
    if not log.is_file():
        return f"It wrote no {log}."
    lines = log.read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:]
    return "\n".join([f"The end of {log}:", *lines])
