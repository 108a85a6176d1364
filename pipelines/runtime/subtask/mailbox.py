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
    """Cut, and send the barrier downstream. Only sources get this."""

    barrier: Barrier
    drains: bool = False  # end event time before the barrier


@dataclass(frozen=True, slots=True)
class CheckpointCompleted:
    permit: CommitPermit


@dataclass(frozen=True, slots=True)
class CheckpointAborted:
    checkpoint_id: CheckpointId


Mail = InjectBarrier | CheckpointCompleted | CheckpointAborted


class Mailbox:
    """The queue needs no limit: mail follows the master's messages, a few per checkpoint."""

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
        """Waits for mail or a call of `wake` since the last wait, at most for the timeout."""
        self._wake.wait(timeout_ms / 1000.0)
        self._wake.clear()
