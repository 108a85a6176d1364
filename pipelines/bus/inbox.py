"""Carries commands to a running driver: one file each in the run's directory.

A command stays from `submit` until the driver calls `done`, even if a process dies in between. You
may repeat both calls: once an id is done, it is never offered again.

A process that finds damage in a point sends a command that asks the driver to read its recovery
points. The driver believes only what it reads itself, so a mistaken notice costs one reading. This
module decides nothing about the point.
"""

import logging
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path

import msgspec

from pipelines.bus.journal import every_event
from pipelines.bus.lease import is_driven
from pipelines.disk.files import create_if_absent
from pipelines.domain.clock import Clock
from pipelines.domain.commands import DriverCommand, VerifyPoints
from pipelines.domain.errors import UNDECODABLE, CorruptSnapshot, Rejected, Retryable
from pipelines.domain.events import RequestAccepted, RequestEnded
from pipelines.domain.ids import RequestId
from pipelines.domain.run import RunDirectory

REQUEST_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,79}")
"""The form of every request id: it names a file on any file system."""

_decoder: msgspec.json.Decoder[DriverCommand] = msgspec.json.Decoder(DriverCommand)

log = logging.getLogger("ftdash.inbox")


def submit(run_directory: RunDirectory, command: DriverCommand) -> bool:
    """Deliver `command` once. Returns False if its id was delivered or withdrawn before.

    Raises Rejected when the id cannot be the name of a file.
    """
    path = _command_file(run_directory, command.request_id)
    if _is_done(path):
        return False
    return create_if_absent(path, msgspec.json.encode(command))


def withdraw(run_directory: RunDirectory, request_id: RequestId) -> None:
    """Take back a command whose sender no longer waits; a command under way continues."""
    Inbox(run_directory).done(request_id)


def done_before(run_directory: RunDirectory, moment_s: float) -> list[RequestId]:
    """Returns the commands that were marked before `moment_s`, by the wall clock."""
    requests = run_directory.requests
    marks = {mark: mark.name for mark in (requests / "done").glob("*")}
    marks |= {mark: mark.stem for mark in requests.glob("*.done")}
    return [RequestId(name) for mark, name in marks.items() if _arrival(mark)[0] < moment_s * 1e9]


def forget(run_directory: RunDirectory, request_id: RequestId) -> None:
    """Delete the mark of a command that is done and will never be delivered again.

    Deletes the command's file first: a delivery that raced with `done` may have left one, and
    without the mark the driver would take it up.
    """
    path = _command_file(run_directory, request_id)
    path.unlink(missing_ok=True)
    for mark in _marks(path):
        mark.unlink(missing_ok=True)


class Inbox:
    """The driver's side of the inbox."""

    def __init__(self, run_directory: RunDirectory) -> None:
        """Marks as done what an earlier driver answered right before it died."""
        self._directory = run_directory
        self._taken_up: set[RequestId] = set()
        waiting = {command.request_id for command in self.pending()}
        if not waiting:
            return
        for request_id in waiting & _reported(run_directory, RequestEnded):
            self.done(request_id)
            waiting.remove(request_id)
        self._taken_up = waiting & _reported(run_directory, RequestAccepted)

    def was_taken_up(self, request_id: RequestId) -> bool:
        """True if an earlier driver took up the request and died before answering it."""
        return request_id in self._taken_up

    def pending(self) -> list[DriverCommand]:
        """Returns the commands that are not done, in order of arrival. Sets other files aside."""
        files = sorted(self._directory.requests.glob("*.json"), key=_arrival)
        commands = (self._read(file) for file in files if not _is_done(file))
        return [command for command in commands if command is not None]

    def done(self, request_id: RequestId) -> None:
        """Marks the request as answered in the journal, so that it is never offered again.

        Writes the mark before it deletes the file: a sender that delivers the command again in
        between creates a file that `pending` passes over.
        """
        path = _command_file(self._directory, request_id)
        create_if_absent(_marks(path)[0], b"")
        path.unlink(missing_ok=True)

    def _read(self, path: Path) -> DriverCommand | None:
        try:
            command = _decoder.decode(path.read_bytes())
            _check_addressed(command, path)
            return command
        except FileNotFoundError:
            return None  # withdrawn since it was listed
        except (*UNDECODABLE, IsADirectoryError) as error:
            aside = path.with_suffix(".unreadable")
            log.warning("%s is not a command and was set aside as %s: %s", path, aside.name, error)
            os.replace(path, aside)
            return None


def _command_file(run_directory: RunDirectory, request_id: RequestId) -> Path:
    if not REQUEST_ID.fullmatch(request_id):
        raise Rejected(f"The request id {request_id!r} is not a plain name of up to 80 characters.")
    return run_directory.requests / f"{request_id}.json"


def _check_addressed(command: DriverCommand, path: Path) -> None:
    """A file under another name could never be marked as done."""
    if command.request_id != path.stem:
        raise msgspec.ValidationError(f"its request id is {command.request_id!r}")


def _reported(
    run_directory: RunDirectory, kind: type[RequestAccepted] | type[RequestEnded]
) -> set[RequestId]:
    return {event.request_id for event in every_event(run_directory.journal_file, kind)}


def _is_done(path: Path) -> bool:
    return any(mark.exists() for mark in _marks(path))


def _marks(path: Path) -> tuple[Path, Path]:
    """Marks have their own directory, because they stay long and the driver keeps listing commands.
    Runs that are older than that directory have their marks next to the commands."""
    return path.parent / "done" / path.stem, path.with_suffix(".done")


def _arrival(path: Path) -> tuple[int, str]:
    try:
        return path.stat().st_mtime_ns, path.name
    except FileNotFoundError:
        return 0, path.name


AGAIN_AFTER_MS = 600_000
"""The same damage is reported again after at most this long, in case it was mended in between."""

damage_log = logging.getLogger("ftdash.damage")


def report_damage(
    run: RunDirectory, location: str, problem: str, *, found_by: str, wall_ms: int
) -> bool:
    """Asks the driver to look for damage. Returns False if it was asked lately.

    The caller knows that the run is under way. Raises Retryable if the run's directory cannot be
    written.
    """
    command = VerifyPoints(
        request_id=_id_of(location, problem, wall_ms),
        requested_by=found_by,
        reason=f"{location}: {problem}",
    )
    try:
        return submit(run, command)
    except OSError as error:
        raise Retryable(f"The driver of {run.run_id} cannot be asked: {error}.") from error


@contextmanager
def reporting_damage(location: str, clock: Clock, *, found_by: str) -> Iterator[None]:
    """Reports damage that the block finds in the point, if its run is under way.

    A point outside the run's own directories does not say where its run is; its damage is not
    reported.
    """
    try:
        yield
    except CorruptSnapshot as error:
        try:
            run = _run_of(location)
            if is_driven(run):
                problem = str(error)
                report_damage(run, location, problem, found_by=found_by, wall_ms=clock.wall_ms())
        except (Retryable, OSError) as away:
            damage_log.warning("%s is damaged, and its driver cannot be asked: %s", location, away)
        raise


def _id_of(location: str, problem: str, wall_ms: int) -> RequestId:
    """Returns the same id for the same damage, so that the inbox does not deliver it twice."""
    said = f"{location}\n{problem}\n{wall_ms // AGAIN_AFTER_MS}".encode()
    return RequestId(f"verify-{blake2b(said, digest_size=12).hexdigest()}")


def _run_of(location: str) -> RunDirectory:
    """Returns where it is by default, see `RunDirectory`; it may not exist."""
    point = Path(location)
    home = point.parent.parent
    if point.parent.name == "checkpoints":
        return RunDirectory(home)
    run_id = point.name.removeprefix("savepoint-").rpartition("-")[0]
    return RunDirectory(home / "runs" / run_id)
