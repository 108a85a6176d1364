"""Error types of the engine, and check(), the assertion that -O keeps.

There are four kinds, because different people act on them: a bug of ours (`InvariantViolated`), a
peer that broke the rules (`ProtocolError`), a problem outside that may pass (`Retryable`), and a
request that cannot be granted (`Rejected`), whose text the person sees unchanged.

For malformed bytes, decoding does not only raise msgspec's own errors: text that is not UTF-8 and
endless nesting raise Python's. Code that decodes bytes from a disk or a peer catches `UNDECODABLE`.

Each type also has a `FailureKind`, which decides what a person should do next. The driver and the
slots determine the kind while they have the error; incidents, pages and the API read that one word.
"""

import errno
import re
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import ClassVar

import msgspec

from pipelines.domain.ids import CheckpointId


class FailureKind(StrEnum):
    """Journals contain these values, so a value never changes its meaning."""

    FUNCTION = "function"  # the author's code raised
    MALFORMED_RECORD = "malformed-record"  # a source cannot read it
    SLOT_LOST = "slot-lost"  # its process died, or is silent
    DRIVER_LOST = "driver-lost"
    SLOTS_MISSING = "slots-missing"  # Spark brought up too few
    RESTORE_STOOD_STILL = "restore-stood-still"
    CHECKPOINTS_FAILED = "checkpoints-failed"  # more of them than the setting tolerates
    DISK_FULL = "disk-full"
    DISK_READ_ONLY = "disk-read-only"
    SYSTEM_AWAY = "system-away"  # a source, a sink or the storage does not answer
    POINT_DAMAGED = "point-damaged"
    INPUT_LOST = "input-lost"  # a source no longer has what comes after the point
    OUTPUT_LOST = "output-lost"
    STATE_UNMATCHED = "state-unmatched"  # the point does not fit the code
    TARGET_TAKEN = "target-taken"  # another run writes there
    CODE_BROKEN = "code-broken"  # the author's module does not load
    REFUSED = "refused"  # a request or a setting that cannot be used
    CERTIFICATE_REFUSED = "certificate-refused"  # it has expired, or is of another authority
    ENGINE = "engine"  # a rule of the engine itself does not hold
    UNKNOWN = "unknown"  # also in journals of older versions


class InvariantViolated(Exception):
    """The engine reached a state that its own rules exclude: a bug here, never bad input.

    `last_events` are those that the machine's host had handled, oldest first; a traceback shows
    them.
    """

    kind: ClassVar[FailureKind] = FailureKind.ENGINE
    last_events: tuple[str, ...] = ()


class ProtocolError(Exception):
    """A peer broke the rules (wrong token, older attempt, torn frame): fence it, keep running."""


class Retryable(Exception):
    """The world failed in a way that may pass (disk, network, locked database): bounded retry."""

    kind: ClassVar[FailureKind] = FailureKind.SYSTEM_AWAY


class Rejected(Exception):
    """A request or an input that cannot be used. The message is one clear sentence for a person."""

    kind: ClassVar[FailureKind] = FailureKind.REFUSED


class CorruptSnapshot(Rejected):
    """A snapshot file is missing, truncated or altered. The message names the file."""

    kind: ClassVar[FailureKind] = FailureKind.POINT_DAMAGED


class DamagedFile(CorruptSnapshot):
    """A CorruptSnapshot of the one file that is called `name` in its recovery point."""

    def __init__(self, message: str, name: str) -> None:
        super().__init__(message)
        self.name = name


class CertificateRefused(Retryable):
    """Slots and driver would not trust each other. The message names the file and says why."""

    kind: ClassVar[FailureKind] = FailureKind.CERTIFICATE_REFUSED


class OutputLost(Rejected):
    """Output that a completed checkpoint relies on is missing, or may be, at a sink's target.

    The message says which output; no restart brings it back.
    """

    kind: ClassVar[FailureKind] = FailureKind.OUTPUT_LOST

    def __init__(self, message: str, checkpoint_id: CheckpointId) -> None:
        """The output was prepared for `checkpoint_id`; later points may rely on it, too."""
        super().__init__(message)
        self.checkpoint_id = checkpoint_id


class TargetTaken(Rejected):
    """Another run holds the target that this one writes to.

    The message names that run. No restart takes the target back, only a person does.
    """

    kind: ClassVar[FailureKind] = FailureKind.TARGET_TAKEN


class InputLost(Rejected):
    """A source no longer has records that a run must read. The message says which."""

    kind: ClassVar[FailureKind] = FailureKind.INPUT_LOST


class StateUnmatched(Rejected):
    """A recovery point does not fit the pipeline's code. The message names operator and state."""

    kind: ClassVar[FailureKind] = FailureKind.STATE_UNMATCHED


class BrokenCode(Rejected):
    """An author's code raised. The message is one sentence; `traceback` shows the author where."""

    kind: ClassVar[FailureKind] = FailureKind.CODE_BROKEN

    def __init__(self, message: str, traceback: str) -> None:
        super().__init__(message)
        self.traceback = traceback


_BY_ERRNO = {
    errno.ENOSPC: FailureKind.DISK_FULL,
    errno.EDQUOT: FailureKind.DISK_FULL,
    errno.EROFS: FailureKind.DISK_READ_ONLY,
}
_GENERAL = (FailureKind.SYSTEM_AWAY, FailureKind.REFUSED)
"""The kinds that say least: any other among the causes of an error says more."""


AWAY = (ConnectionError, TimeoutError)
"""Even if an author's function raises these, they mean that what it calls does not answer."""

_ERRNO = re.compile(r"\[Errno (\d+)\]")


def kind_of_text(text: str) -> FailureKind | None:
    """Reads another process's error, known by its text; None if the text names no disk."""
    found = _ERRNO.search(text)
    return _BY_ERRNO.get(int(found[1])) if found else None


def kind_of(error: BaseException, *, is_of_function: bool = False) -> FailureKind:
    """The innermost specific cause says most, such as a full disk below a failed upload.

    `is_of_function` if an operator raised it while it worked on records or on a timer.
    """
    kinds = [kind for each in _with_causes(error) if (kind := _own_kind(each)) is not None]
    if special := [kind for kind in kinds if kind not in _GENERAL]:
        return special[-1]
    if kinds:
        return kinds[0]
    if is_of_function and not isinstance(error, AWAY):
        return FailureKind.FUNCTION
    return FailureKind.SYSTEM_AWAY if isinstance(error, OSError) else FailureKind.UNKNOWN


def _own_kind(error: BaseException) -> FailureKind | None:
    if isinstance(error, OSError):
        return _BY_ERRNO.get(error.errno or 0)
    if isinstance(error, InvariantViolated | Retryable | Rejected):
        return error.kind
    return None


def _with_causes(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:  # causes may form a circle
        seen.add(id(cause))
        yield cause
        cause = cause.__cause__


def check(holds: bool, claim: str, **facts: object) -> None:
    """Raise InvariantViolated unless `claim` holds. Survives `python -O`, unlike assert."""
    if not holds:
        raise InvariantViolated(f"{claim} [{facts}]")


LAST_EVENTS_MAX = 20
EVENT_CHARS_MAX = 200


class LastEvents:
    """The newest events of one host, which it adds to any `InvariantViolated`.

    One event per control message or batch, never per record.
    """

    def __init__(self) -> None:
        self._events: deque[str] = deque(maxlen=LAST_EVENTS_MAX)

    def note(self, event: str) -> None:
        """Adds an event, and cuts a long text off."""
        self._events.append(event[:EVENT_CHARS_MAX])

    @contextmanager
    def during(self, event: str) -> Iterator[None]:
        """Wrap the handling of `event`."""
        self.note(event)
        with self.taken_along():
            yield

    @contextmanager
    def taken_along(self) -> Iterator[None]:
        """Wrap work that notes its own events."""
        try:
            yield
        except InvariantViolated as error:
            if not error.last_events:
                error.last_events = tuple(self._events)
                error.add_note("The last events: " + "; ".join(self._events))
            raise


UNDECODABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
