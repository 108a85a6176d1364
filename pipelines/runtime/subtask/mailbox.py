"""A subtask's mailbox: everything that is not a record, handled one at a time by its thread.

Source: Flink, `TaskMailbox`.
"""

import queue
import threading
from dataclasses import dataclass

from pipelines.domain.elements import Barrier
from pipelines.domain.ids import CheckpointId
from pipelines.protocol.commit import CommitPermit


@dataclass(frozen=True, slots=True)
class InjectBarrier:
    """Cut here and send the barrier on; only sources get this."""

    barrier: Barrier
    drains: bool = False  # event time ends first


@dataclass(frozen=True, slots=True)
class CheckpointCompleted:
    permit: CommitPermit


@dataclass(frozen=True, slots=True)
class CheckpointAborted:
    checkpoint_id: CheckpointId


Mail = InjectBarrier | CheckpointCompleted | CheckpointAborted


class Mailbox:
    """Mail is rare (a few per checkpoint), so the master's messages bound its queue."""

    def __init__(self) -> None:
        self._mail: queue.SimpleQueue[Mail] = queue.SimpleQueue()
        self._wake = threading.Event()

    def post(self, mail: Mail) -> None:
        self._mail.put(mail)
        self._wake.set()

    def wake(self) -> None:
        self._wake.set()

    def try_take(self) -> Mail | None:
        # Called before every element, mostly without mail: this check costs less than an exception.
        return None if self._mail.empty() else self._mail.get_nowait()

    def wait(self, timeout_ms: float) -> None:
        """Until something was posted or `wake` was called since the last wait, or time is up."""
        self._wake.wait(timeout_ms / 1000.0)
        self._wake.clear()
