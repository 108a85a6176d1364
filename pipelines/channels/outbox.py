"""What a writer has sent and its channel has no credit for yet, in order.

Decides which elements wait and what a barrier overtakes; the caller's `pass_on` takes an element to
the reader. Used by the writer's thread only.

Source: Flink's `PipelinedSubpartition` with overdraft buffers.
"""

from collections import deque
from collections.abc import Callable

import pyarrow as pa

from pipelines.channels.credit import Credit
from pipelines.domain.elements import Barrier, Element, EndOfInput, Records
from pipelines.domain.errors import check
from pipelines.domain.ids import ChannelId, CheckpointId


class Outbox:
    """Guarantee: first in, first out, except for barriers that overtake; never blocks.

    Needs a writer that takes no new input while `flush` returns False; then the output of at most
    one input waits.
    """

    def __init__(
        self, channel: ChannelId, credit: Credit, pass_on: Callable[[Element], None]
    ) -> None:
        self._channel = channel
        self._credit = credit
        self._pass_on = pass_on
        self._waiting: deque[Element] = deque()
        self._has_ended = False

    def send(self, element: Element) -> None:
        """Pass the element on, or keep it until there is credit. Raises ChannelClosed."""
        check(not self._has_ended, "nothing follows the end of input", channel=self._channel)
        self._has_ended = isinstance(element, EndOfInput)
        self._pass_on_waiting()
        if self._waiting or not self._credit.lets_pass(is_free=not isinstance(element, Records)):
            self._waiting.append(element)
        else:
            self._pass_on(element)

    def flush(self) -> bool:
        if self._waiting:
            self._pass_on_waiting()
        if self._waiting:
            return False
        # A reader that has taken the end may be gone.
        return self._has_ended or self._credit.lets_pass(is_free=False)

    def overtake(self, barrier: Barrier) -> list[pa.RecordBatch]:
        """Put `barrier`, or a waiting one of the same checkpoint, ahead of everything that waits.

        Returns the batches that it has overtaken: the channel's state on this side.
        """
        places = [i for i, e in enumerate(self._waiting) if _is_of(e, barrier.checkpoint_id)]
        behind = list(self._waiting)[: places[0]] if places else list(self._waiting)
        for place in reversed(places):
            del self._waiting[place]
        self._waiting.appendleft(barrier)
        self._pass_on_waiting()
        return [element.batch for element in behind if isinstance(element, Records)]

    def holds_barrier(self, checkpoint_id: CheckpointId) -> bool:
        """True if the barrier still waits behind records that have no credit."""
        return any(_is_of(element, checkpoint_id) for element in self._waiting)

    def _pass_on_waiting(self) -> None:
        while self._waiting:
            is_free = not isinstance(self._waiting[0], Records)
            if not self._credit.lets_pass(is_free=is_free):
                return
            self._pass_on(self._waiting.popleft())


def _is_of(element: Element, checkpoint_id: CheckpointId) -> bool:
    return isinstance(element, Barrier) and element.checkpoint_id == checkpoint_id
