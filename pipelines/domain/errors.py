"""Error types of the engine, and check(), the assertion that -O keeps.

Four kinds, because four different people act on them: a bug of ours (`InvariantViolated`), a peer
that broke the rules (`ProtocolError`), a world that may be better in a moment (`Retryable`), and a
request that cannot be granted (`Rejected`), whose text is shown to the person as it stands.

For malformed bytes, msgspec's own errors are not all that decoding raises: text that is not UTF-8
and endless nesting raise Python's. Code that decodes bytes from a disk or a peer catches
`UNDECODABLE`.
"""

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from pipelines.domain.ids import CheckpointId


class InvariantViolated(Exception):
    """The engine reached a state that its own rules exclude: a bug here, never bad input.

    `last_events`: what the host of the machine had handled, oldest first; a traceback shows them.
    """

    last_events: tuple[str, ...] = ()


class ProtocolError(Exception):
    """A peer broke the rules (wrong token, older attempt, torn frame): fence it, keep running."""


class Retryable(Exception):
    """The world failed in a way that may pass (disk, network, locked database): bounded retry."""


class Rejected(Exception):
    """A request or an input that cannot be used. The message is one clear sentence for a person."""


class CorruptSnapshot(Rejected):
    """A snapshot file is missing, truncated or altered. The message names the file."""


class DamagedFile(CorruptSnapshot):
    """As CorruptSnapshot, of the one file that `name` is in its recovery point."""

    def __init__(self, message: str, name: str) -> None:
        super().__init__(message)
        self.name = name


class OutputLost(Rejected):
    """What a completed checkpoint counts on is not with a sink's target any more, or that is
    unknown. The message says which output; no restart brings it back."""

    def __init__(self, message: str, checkpoint_id: CheckpointId) -> None:
        """`checkpoint_id`: that it was prepared for; later points may count on it, too."""
        super().__init__(message)
        self.checkpoint_id = checkpoint_id


class TargetTaken(Rejected):
    """Another run holds what this one writes to. The message names that run; no restart takes the
    target back, only a person does."""


class BrokenCode(Rejected):
    """An author's code raised. The message is one sentence; `traceback` shows the author where."""

    def __init__(self, message: str, traceback: str) -> None:
        super().__init__(message)
        self.traceback = traceback


def check(holds: bool, claim: str, **facts: object) -> None:
    """Raise InvariantViolated unless `claim` holds. Survives `python -O`, unlike assert."""
    if not holds:
        raise InvariantViolated(f"{claim} [{facts}]")


LAST_EVENTS_MAX = 20
EVENT_CHARS_MAX = 200


class LastEvents:
    """The newest events of one host, which an `InvariantViolated` that it meets takes along.

    One event per control message or batch, never per record.
    """

    def __init__(self) -> None:
        self._events: deque[str] = deque(maxlen=LAST_EVENTS_MAX)

    def note(self, event: str) -> None:
        """Cuts a long text off."""
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
