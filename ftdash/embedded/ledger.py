"""The processes that one embedded installation has started, so that all of them can be ended.

It needs two marks. Every process inherits a token in its environment, no matter which process
started it (drivers, their Java and its Python workers too). Direct children are also recorded by
process id and start time, because a Redis server overwrites the memory that shows its environment.

The owner locks the file while it lives, which also keeps two installations out of one home.
"""

import fcntl
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

import msgspec
import psutil

from pipelines.domain.errors import Rejected

LEDGER_NAME = "processes.jsonl"
"""The file's name in the home of an installation."""

TOKEN_VARIABLE = "FTDASH_EMBEDDED_TOKEN"
ENDING_GRACE_S = 3.0
ENDING_ROUNDS_MAX = 10  # a process that is ending may just have started another one


class StartedProcess(msgspec.Struct, frozen=True):
    pid: int
    create_time: float  # distinguishes this process from a later one with the same id


class LedgerHead(msgspec.Struct, frozen=True):
    token: str
    owner_pid: int


class Ledger:
    """The owner's side: locks the ledger and appends every start."""

    def __init__(self, path: Path, token: str) -> None:
        """Raises Rejected while another owner lives. Ends what a dead owner left running."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+b")
        self._lock()
        end_all(path)
        self._file.truncate(0)
        self._append(LedgerHead(token, os.getpid()))

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


def new_token() -> str:
    return secrets.token_hex(16)


def read(path: Path) -> tuple[LedgerHead | None, list[StartedProcess]]:
    """The entries of the ledger; an owner that died while writing may leave a torn last line."""
    lines = [line for line in path.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")]
    if not lines:
        return None, []
    head = msgspec.json.decode(lines[0], type=LedgerHead)
    return head, [msgspec.json.decode(line, type=StartedProcess) for line in lines[1:]]


def living(path: Path, *, spare: frozenset[int] = frozenset()) -> list[psutil.Process]:
    """Every running process of this ledger, except its owner, the caller and `spare`."""
    head, started = read(path)
    if head is None:
        return []
    recorded = {(each.pid, each.create_time) for each in started}
    # The owner carries the token too; while it ends in order, it must not be cut short.
    spare = spare | {os.getpid(), head.owner_pid}
    return [
        process
        for process in running_processes()
        if process.pid not in spare
        and ((process.pid, process.create_time()) in recorded or has_token(process, head.token))
    ]


def running_processes() -> Iterator[psutil.Process]:
    for process in psutil.process_iter():
        try:
            if process.status() != psutil.STATUS_ZOMBIE:
                yield process
        except psutil.NoSuchProcess:
            continue


def has_token(process: psutil.Process, token: str) -> bool:
    try:
        environment: dict[str, str] = process.environ()
        return environment.get(TOKEN_VARIABLE) == token
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
    """SIGTERM now and SIGKILL after the grace period; psutil refuses a pid that was reused."""
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
