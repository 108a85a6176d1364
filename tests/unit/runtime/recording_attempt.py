"""An attempt without slots: it records the messages to them, and tests make up the replies."""

from typing import TypeVar

from pipelines.domain.checkpoint_failures import SubtaskPhases
from pipelines.domain.ids import Attempt, Uid
from pipelines.runtime.control import Message
from pipelines.runtime.master.attempt.attempt_host import AttemptHost

M = TypeVar("M", bound=Message)


class RecordingAttempt(AttemptHost):
    """An attempt that records the messages to its slots instead of sending them."""

    def __init__(self, parallelism: int) -> None:
        super().__init__(Attempt(1), parallelism, now_ms=0.0)
        self.messages: list[Message] = []

    def broadcast(self, message: Message) -> None:
        self.messages.append(message)

    def of(self, kind: type[M]) -> list[M]:
        return [message for message in self.messages if isinstance(message, kind)]


def phases_of(vertex: str, subtask: int) -> SubtaskPhases:
    return SubtaskPhases(
        vertex=Uid(vertex),
        subtask=subtask,
        start_delay_ms=0,
        alignment_ms=0,
        sync_ms=0,
        async_ms=0,
        acknowledged_ms=0,
        state_bytes=0,
        uploaded_bytes=0,
        channels=[],
    )
