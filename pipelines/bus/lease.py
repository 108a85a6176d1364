"""Decides which one process may drive a run, and shows that this process is still alive.

The lock is the kernel's (`flock`), so it ends with its holder, however that dies. Each attempt gets
a new number. The numbers are files created with O_EXCL, so none is ever given out twice, no matter
which process holds the lock. Only the newest of these files are kept.

A holder that hangs keeps its lock. `Lease.take_over` takes the run away from it by replacing the
locked file with another one. The old holder notices this in the record of the owner, which it
checks before it makes anything durable. The record says when its process began, to tell it from a
later process with the same id. That time is from a clock that is never set. `psutil` gives wall
time, which moves with every step of the machine's clock, so a living driver could seem dead. An id
is valid only among processes that see each other; `home` names these.

The driver's signs of life are one small file, overwritten in place. It lies on the disk of the
journal, and each sign is synced: if that disk hangs, no sign appears.
"""

import fcntl
import os
import socket
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Annotated

import msgspec
import psutil
from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_fixed

from pipelines.disk.files import make_directory, make_durable, replace_atomically
from pipelines.domain.errors import UNDECODABLE, InvariantViolated, check
from pipelines.domain.ids import Attempt
from pipelines.domain.run import DriverSign, RunDirectory

_START_FIELD = 19  # of the fields after the name, which may hold any character


def began_after_boot_s(pid: int) -> float:
    """Returns seconds since boot, or since the epoch on other systems. Raises NoSuchProcess."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return psutil.Process(pid).create_time()
    except ProcessLookupError as error:
        raise psutil.NoSuchProcess(pid) from error
    ticks = int(status.rpartition(")")[2].split()[_START_FIELD])
    return ticks / os.sysconf("SC_CLK_TCK")


@cache
def home() -> str:
    """Names this boot of the machine and its namespace of process ids.

    Elsewhere, the same id is another process.
    """
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{os.stat('/proc/self/ns/pid').st_ino}"
    return socket.gethostname()


PROBE_TOLERANCE_S = 0.5
"""A process that asks for the owner briefly holds the lock shared; a driver waits that out."""

START_TIME_TOLERANCE_S = 0.1
"""Rounding only: start times count from the boot of the machine."""

ATTEMPT_TRIES_MAX = 100

ATTEMPTS_KEPT = 20
"""How many numbers still have their file. This many newer files show that a number was used."""


class Owner(msgspec.Struct, frozen=True, kw_only=True):
    """The process that holds a lease. Its id alone may belong to another process by now."""

    pid: Annotated[int, msgspec.Meta(ge=1)]
    process_began_s: float  # after the machine's boot: a step of its clock changes nothing
    host: str
    acquired_at: float  # seconds since the epoch
    epoch: int = 0  # grows with every owner; 0 in a version without signs of life
    home: str = ""  # where its process id is valid; if empty, assumed to be here

    @classmethod
    def this_process(cls, epoch: int = 0) -> "Owner":
        return cls(
            pid=os.getpid(),
            process_began_s=began_after_boot_s(os.getpid()),
            host=socket.gethostname(),
            acquired_at=time.time(),
            epoch=epoch,
            home=home(),
        )

    @property
    def is_here(self) -> bool:
        """True if this process could see and end the owner's process, if that is alive."""
        return self.home in ("", home())

    @property
    def is_alive(self) -> bool:
        return self.process() is not None

    def process(self) -> psutil.Process | None:
        """Returns the owner's own process, or None if it is gone or elsewhere."""
        if not self.is_here:
            return None
        try:
            process = psutil.Process(self.pid)
            age_difference_s = abs(began_after_boot_s(self.pid) - self.process_began_s)
            is_zombie = process.status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return None
        return None if is_zombie or age_difference_s > START_TIME_TOLERANCE_S else process


@dataclass(frozen=True, slots=True)
class LeaseHeld(Exception):
    """Another process drives this run."""

    run_directory: RunDirectory
    owner: Owner | None  # None: it has not recorded itself yet

    def __str__(self) -> str:
        who = f"process {self.owner.pid} on {self.owner.host}" if self.owner else "another process"
        return f"The run {self.run_directory.run_id} is driven by {who}."


class LeaseLost(Exception):
    """Another process has taken the run over: this one may write nothing more for it."""

    def __init__(self, run_directory: RunDirectory, owner: Owner | None) -> None:
        who = f"process {owner.pid} on {owner.host}" if owner else "another process"
        super().__init__(
            f"The run {run_directory.run_id} was taken over by {who}; this driver stops."
        )


class Lease:
    """Held until `close` or the death of this process; children do not inherit it.

    The lock can still be lost with its file: if that is deleted, restored from a backup, or on a
    disk that was away. Then another driver takes the run over. This one notices that in the record
    of the owner, which the new driver replaces first.
    """

    def __init__(self, run_directory: RunDirectory, descriptor: int) -> None:
        self._directory = run_directory
        self._descriptor: int | None = descriptor
        self._file = run_directory.lease_file
        owner = _recorded_owner(run_directory)
        self._epoch = owner.epoch if owner is not None else 0
        self._record = _version_of(self._file)
        os.register_at_fork(after_in_child=self.close)

    @classmethod
    def acquire(cls, run_directory: RunDirectory) -> "Lease":
        """Raises LeaseHeld if another process has it, or has just taken it over."""
        make_directory(run_directory.path)
        descriptor = os.open(run_directory.lease_lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
        try:
            _lock_patiently(descriptor)
            _check_in_place(descriptor, run_directory.lease_lock)
            _record_this_process(run_directory)
            _check_in_place(descriptor, run_directory.lease_lock)
            return cls(run_directory, descriptor)
        except BlockingIOError as error:
            os.close(descriptor)
            raise LeaseHeld(run_directory, _recorded_owner(run_directory)) from error
        except OSError:
            os.close(descriptor)
            raise

    @classmethod
    def take_over(cls, run_directory: RunDirectory, owner: Owner) -> "Lease":
        """Fence off the `owner`, which holds the lease and hangs, wherever it is.

        If the old owner continues, it finds its lease lost.

        1. Keep others from taking over, and check that the owner is still the same. 2. Replace the
        old lock with a new one that is held already. 3. Name this process in the record.

        Raises LeaseHeld if another process owns the run by now.
        """
        guard = os.open(run_directory.lease_guard, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
        try:
            _lock_patiently(guard)
            if _recorded_owner(run_directory) != owner:
                raise BlockingIOError("the run has another owner")
            return cls._on_a_new_lock(run_directory)
        except BlockingIOError as error:
            raise LeaseHeld(run_directory, _recorded_owner(run_directory)) from error
        finally:
            os.close(guard)

    @classmethod
    def _on_a_new_lock(cls, run_directory: RunDirectory) -> "Lease":
        descriptor = _locked_anew(run_directory.lease_lock)
        try:
            _record_this_process(run_directory)
            return cls(run_directory, descriptor)
        except OSError:
            os.close(descriptor)
            raise

    @property
    def run_directory(self) -> RunDirectory:
        return self._directory

    @property
    def epoch(self) -> int:
        """This lease's number; every later owner has a greater one."""
        return self._epoch

    def check_held(self) -> None:
        """Raises LeaseLost if another process has taken the run over. Cheap: one stat."""
        if not self._is_recorded():
            raise LeaseLost(self._directory, _recorded_owner(self._directory))

    def next_attempt(self) -> Attempt:
        """Returns a number above all those ever given out in this run. Raises LeaseLost.

        That is true even if the machine was lost meanwhile: slots on other machines outlive it.
        """
        check(self._descriptor is not None, "attempts are numbered under the lease")
        self.check_held()
        make_directory(self._directory.attempts)
        for _ in range(ATTEMPT_TRIES_MAX):
            number = self.attempts_so_far() + 1
            if _created(self._directory.attempts / str(number)) and not self._is_long_past(number):
                make_durable(self._directory.attempts)
                self._delete_long_past()
                return Attempt(number)
        raise InvariantViolated(f"no attempt number is free up to {self.attempts_so_far()}")

    def attempts_so_far(self) -> Attempt:
        """The newest number given out, 0 before the first."""
        return _newest_attempt(self._directory)

    def is_current(self, attempt: Attempt) -> bool:
        """True if neither this nor any other driver has started anything newer."""
        is_held = self._descriptor is not None and self._is_recorded()
        return is_held and attempt == self.attempts_so_far()

    def _is_long_past(self, number: int) -> bool:
        """Returns True if the number's file may have existed and been deleted.

        A driver may look for the newest number, hang while others are given out, and then create
        the next one.
        """
        return number <= self.attempts_so_far() - ATTEMPTS_KEPT

    def _delete_long_past(self) -> None:
        """Call it when a newer number is durable, so that the newest of all is never deleted."""
        for number in sorted(_attempts_in(self._directory))[:-ATTEMPTS_KEPT]:
            (self._directory.attempts / str(number)).unlink(missing_ok=True)

    def _is_recorded(self) -> bool:
        return _version_of(self._file) in (self._record, None)

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __enter__(self) -> "Lease":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def is_driven(run_directory: RunDirectory) -> bool:
    """True if a process holds the lease, on this machine or another one, alive or stopped."""
    return _is_locked(run_directory.lease_lock)


def owner_of(run_directory: RunDirectory) -> Owner | None:
    """Returns the process that holds the lock now and is alive, or None if there is none.

    For an owner elsewhere, the lock alone shows that it is alive.
    """
    if not _is_locked(run_directory.lease_lock):
        return None
    owner = _recorded_owner(run_directory)
    is_there = owner is not None and (owner.is_alive or not owner.is_here)
    return owner if is_there else None


def _version_of(path: Path) -> tuple[int, int] | None:
    """Returns a value that no other file of this name ever had, or None if there is no file."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_mtime_ns


def _lock_patiently(descriptor: int) -> None:
    for attempt in Retrying(
        retry=retry_if_exception_type(BlockingIOError),
        wait=wait_fixed(0.02),
        stop=stop_after_delay(PROBE_TOLERANCE_S),
        reraise=True,
    ):
        with attempt:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _record_this_process(run_directory: RunDirectory) -> None:
    """Records that this process holds the lock. The owner before it has then lost the lease."""
    before = _recorded_owner(run_directory)
    owner = Owner.this_process(1 if before is None else before.epoch + 1)
    replace_atomically(run_directory.lease_file, msgspec.json.encode(owner))


def _check_in_place(descriptor: int, path: Path) -> None:
    """Raises BlockingIOError if another lock has replaced this one."""
    ours = os.fstat(descriptor)
    try:
        theirs = path.stat()
    except FileNotFoundError:
        return  # deleted; the next process to lock it replaces the record
    if (ours.st_dev, ours.st_ino) != (theirs.st_dev, theirs.st_ino):
        raise BlockingIOError(f"{path} was replaced")


def _locked_anew(path: Path) -> int:
    """Replaces the held lock with a new one, which no other process ever finds free."""
    descriptor, name = tempfile.mkstemp(prefix=".", dir=path.parent)
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.replace(name, path)
    return descriptor


def _is_locked(path: Path) -> bool:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _recorded_owner(run_directory: RunDirectory) -> Owner | None:
    """Returns None for a record of another version of this program, too: the lock decides."""
    try:
        return msgspec.json.decode(run_directory.lease_file.read_bytes(), type=Owner)
    except (FileNotFoundError, *UNDECODABLE):
        return None


def _newest_attempt(run_directory: RunDirectory) -> Attempt:
    return Attempt(max(_attempts_in(run_directory), default=0))


def _attempts_in(run_directory: RunDirectory) -> list[int]:
    """Ignores names that are no number, such as an open file deleted on NFS."""
    if not run_directory.attempts.is_dir():
        return []
    return [int(name) for name in os.listdir(run_directory.attempts) if name.isdecimal()]


def _created(path: Path) -> bool:
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


SIGN_BYTES = 192
"""Every sign has the same length, so that no part of a longer one remains."""


def give_sign(run_directory: RunDirectory, sign: DriverSign) -> None:
    """Writes a sign of life. Raises OSError if the disk does not take it."""
    content = msgspec.json.encode(sign).ljust(SIGN_BYTES)
    flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC
    descriptor = os.open(run_directory.sign_file, flags, 0o600)
    try:
        os.pwrite(descriptor, content, 0)
        os.fdatasync(descriptor)
    finally:
        os.close(descriptor)


def newest_sign(run_directory: RunDirectory) -> DriverSign | None:
    """Returns None if there is no sign yet, or it was just being written. Raises OSError."""
    try:
        return msgspec.json.decode(run_directory.sign_file.read_bytes(), type=DriverSign)
    except (FileNotFoundError, *UNDECODABLE):
        return None
