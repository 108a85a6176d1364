"""Whether a failure would only come back: the same error at the same records a second time.

Pure. A restart reads the same records again, so an error of the user's function on one of them
returns until somebody changes the function or the data; restarting forever would hide that. What
the world does (a network, a disk, a database that is away) is never deterministic.
"""

import re
from collections import deque
from dataclasses import dataclass

from pipelines.domain.ids import Uid
from pipelines.domain.origin import RecordOrigin

REMEMBERED = 64
"""Failures that are compared with a new one; a poison record fails again within a few."""

_VARYING = re.compile(r"0x[0-9a-fA-F]+|'[^']*'|\"[^\"]*\"|[0-9]+(?:[.:_-][0-9]+)*")


@dataclass(frozen=True, slots=True)
class OperatorError:
    """What a subtask says of an exception. `is_of_the_world`: it may pass by itself.
    `is_of_record`: an operator raised it on records that it was given, or a source on one that it
    cannot read; so it would not have come without them.
    """

    operator: Uid
    error_type: str  # qualified name of the exception's class
    message: str
    origin: RecordOrigin | None
    is_of_the_world: bool
    is_of_record: bool = False


@dataclass(frozen=True, slots=True)
class Fingerprint:
    operator: Uid
    error_type: str
    skeleton: str  # the message without what varies from one occurrence to the next


@dataclass(frozen=True, slots=True)
class Deterministic:
    """The records that both failures were working on."""

    origin: RecordOrigin


class RepeatedFailures:
    """Guarantee: `Deterministic` only for a fingerprint that was met before at a shared record."""

    def __init__(self) -> None:
        self._met: deque[tuple[Fingerprint, RecordOrigin]] = deque(maxlen=REMEMBERED)

    def on_error(self, error: OperatorError) -> Deterministic | None:
        """None: a restart may help, or it is not known where the error happened."""
        if error.is_of_the_world or error.origin is None:
            return None
        fingerprint, origin = fingerprint_of(error), error.origin
        for known, place in self._met:
            if known == fingerprint and place.meets(origin):
                return Deterministic(place.shared_with(origin))
        self._met.append((fingerprint, origin))
        return None


def fingerprint_of(error: OperatorError) -> Fingerprint:
    return Fingerprint(error.operator, error.error_type, skeleton_of(error.message))


def skeleton_of(message: str) -> str:
    """Numbers, addresses and quoted values become a dot: they name the occurrence, not the kind."""
    return _VARYING.sub("•", message)
