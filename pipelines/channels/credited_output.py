"""The writing end of any channel: elements without credit wait in its outbox.

Subclasses decide how an element gets to the reader.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable

import pyarrow as pa

from pipelines.channels.credit import Credit
from pipelines.channels.outbox import Outbox
from pipelines.domain.elements import Barrier, Element
from pipelines.domain.ids import ChannelId, CheckpointId


class CreditedOutput(ABC):
    """Implements `Output`; used only by the subtask thread that writes the channel."""

    def __init__(self, channel: ChannelId) -> None:
        self.channel = channel
        self.credit = Credit()
        self._outbox = Outbox(channel, self.credit, self._pass_on)

    @property
    def sent_bytes(self) -> int:
        return self.credit.taken_bytes

    def send(self, element: Element) -> None:
        """Elements also wait until the channel has its reader."""
        self._outbox.send(element)

    def flush(self) -> bool:
        return self._outbox.flush()

    def overtake(self, barrier: Barrier) -> list[pa.RecordBatch]:
        return self._outbox.overtake(barrier)

    def holds_barrier(self, checkpoint_id: CheckpointId) -> bool:
        return self._outbox.holds_barrier(checkpoint_id)

    def on_available(self, wake: Callable[[], None]) -> None:
        self.credit.on_available(wake)

    @abstractmethod
    def _pass_on(self, element: Element) -> None:
        """Take the element's credit, which is available, and hand it over. Raises ChannelClosed."""
