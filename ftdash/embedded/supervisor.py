"""Starts the processes of an embedded installation, keeps them alive, and ends all of them.

Owns their order, readiness, logs and restarts. `stack` defines them. The guardian ends everything
once the owner is gone, for whatever reason: `python -m ftdash.embedded.supervisor LEDGER` is a
process of its own, which waits on a pipe that only the owner holds open. A closed pipe means that
the owner has ended, even by SIGKILL.

A process is found in two ways. Every process inherits a mark in its environment, no matter which
process started it (drivers, their Java and its Python workers too); the mark opens nothing. Direct
children are also recorded by process id and start time, because a Redis server overwrites the
memory that shows its environment.
The owner locks the file of records while it lives, which also keeps two installations out of one
home.
"""

import fcntl
import os
import secrets
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import psutil
import tenacity
from django.conf import settings

from pipelines.domain.errors import Rejected

LEDGER_NAME = "processes.jsonl"
"""The file's name in the home of an installation."""

MARK_VARIABLE = "FTDASH_EMBEDDED_MARK"
ENDING_GRACE_S = 3.0
ENDING_ROUNDS_MAX = 10  # a process that is ending may just have started another one


class StartedProcess(msgspec.Struct, frozen=True):
    pid: int
    create_time: float  # distinguishes this process from a later one with the same id


class LedgerHead(msgspec.Struct, frozen=True, rename={"mark": "token"}):  # its name in old ledgers
    mark: str
    owner_pid: int


class Ledger:
    """The owner's side: locks the ledger and appends every start."""

    def __init__(self, path: Path, mark: str) -> None:
        """Raises Rejected while another owner lives. Ends what a dead owner left running."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+b")
        self._lock()
        end_all(path)
        self._file.truncate(0)
        self._append(LedgerHead(mark, os.getpid()))

    def record(self, pid: int) -> None:
        self._append(StartedProcess(pid, psutil.Process(pid).create_time()))

    def close(self) -> None:
        self._file.close()

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            head, _ = read(self.path)
            self._file.close()
            owner = f"process {head.owner_pid}" if head else "another process"
            raise Rejected(
                f"{self.path.parent} is in use by {owner}; end that one, or choose another"
                " directory with --home."
            ) from None

    def _append(self, line: LedgerHead | StartedProcess) -> None:
        self._file.seek(0, os.SEEK_END)
        self._file.write(msgspec.json.encode(line) + b"\n")
        self._file.flush()


def new_mark() -> str:
    return secrets.token_hex(16)


def read(path: Path) -> tuple[LedgerHead | None, list[StartedProcess]]:
    """Returns the ledger's entries. An owner that died while writing may leave a torn last line."""
    lines = [line for line in path.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")]
    if not lines:
        return None, []
    head = msgspec.json.decode(lines[0], type=LedgerHead)
    return head, [msgspec.json.decode(line, type=StartedProcess) for line in lines[1:]]


def living(path: Path, *, spare: frozenset[int] = frozenset()) -> list[psutil.Process]:
    """Returns every running process of this ledger, except its owner, the caller and `spare`."""
    head, started = read(path)
    if head is None:
        return []
    recorded = {(each.pid, each.create_time) for each in started}
    # The owner carries the mark too; while it ends in order, it must not be cut short.
    spare = spare | {os.getpid(), head.owner_pid}
    return [
        process
        for process in running_processes()
        if process.pid not in spare
        and ((process.pid, process.create_time()) in recorded or has_mark(process, head.mark))
    ]


def running_processes() -> Iterator[psutil.Process]:
    for process in psutil.process_iter():
        try:
            if process.status() != psutil.STATUS_ZOMBIE:
                yield process
        except psutil.NoSuchProcess:
            continue


def has_mark(process: psutil.Process, mark: str) -> bool:
    try:
        environment: dict[str, str] = process.environ()
        return environment.get(MARK_VARIABLE) == mark
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return False


def end_all(
    path: Path, *, spare: frozenset[int] = frozenset(), grace_s: float = ENDING_GRACE_S
) -> None:
    """End every process of this ledger: SIGTERM first, SIGKILL after the grace period."""
    for _ in range(ENDING_ROUNDS_MAX):
        processes = living(path, spare=spare)
        if not processes:
            return
        end(processes, grace_s)
        grace_s = 0.0  # processes that appear now were started by ones that were ending
    raise Rejected(
        f"Processes {[p.pid for p in living(path, spare=spare)]} could not be ended; end them by"
        " hand."
    )


def end(processes: list[psutil.Process], grace_s: float) -> None:
    """Sends SIGTERM now, and SIGKILL after the grace period; psutil refuses a reused process id."""
    for process in processes:
        send(process, "terminate")
    _, stubborn = psutil.wait_procs(processes, timeout=grace_s)
    for process in stubborn:
        send(process, "kill")
    psutil.wait_procs(stubborn, timeout=ENDING_GRACE_S)


def send(process: psutil.Process, what: str) -> None:
    try:
        getattr(process, what)()
    except psutil.NoSuchProcess:
        return


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
        """Returns False, without a restart, if the service died too often in the window."""
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
        """Starts all at once; returns when all are ready. Raises Rejected if one is late."""
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
        """End every process of the ledger; those that serve others end last."""
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
            [sys.executable, "-m", "ftdash.embedded.supervisor", str(self._ledger.path)],
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


def wait_until(
    holds: Callable[[], bool],
    *,
    within_s: float,
    otherwise: Callable[[], str],
    every_s: float = READY_POLL_S,
) -> None:
    """Poll until `holds` answers True; raise Rejected with `otherwise` when time is up."""
    retrying = tenacity.Retrying(
        stop=tenacity.stop_after_delay(within_s),
        wait=tenacity.wait_fixed(every_s),
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


def guard(ledger: Path) -> None:
    """Runs the guardian: ends all processes of the ledger once its owner is gone."""
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    sys.stdin.buffer.read()  # returns when the last writer is gone
    end_all(ledger)


if __name__ == "__main__":
    guard(Path(sys.argv[1]))
