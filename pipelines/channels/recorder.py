"""Gathers the channel state of one checkpoint on the reading side, in a gate.

Decides which batches precede the checkpoint's barrier on each channel: those in the queue when
recording began, and those that arrive before the barrier. Used under the gate's lock.

Source: Chandy and Lamport 1985; Flink's `ChannelStatePersister`.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from pipelines.domain.elements import Barrier, Element, EndOfInput, Records
from pipelines.domain.ids import ChannelId, CheckpointId

if TYPE_CHECKING:
    import pyarrow as pa


class ChannelRecorder:
    """Guarantee: of each recorded channel, in order, exactly the batches before the barrier that
    the reader had not taken. Needs FIFO channels, and to see every element that arrives."""

    def __init__(self, checkpoint_id: CheckpointId) -> None:
        self._checkpoint_id = checkpoint_id
        self._awaited: set[ChannelId] = set()
        self.batches: dict[ChannelId, list[pa.RecordBatch]] = {}

    def begin(self, channel: ChannelId, queued: Iterable[Element]) -> None:
        self.batches[channel] = []
        self._awaited.add(channel)
        for element in queued:
            self.on_arrived(channel, element)

    def on_arrived(self, channel: ChannelId, element: Element) -> None:
        if channel not in self._awaited:
            return
        match element:
            case Records(batch):
                self.batches[channel].append(batch)
            case Barrier(checkpoint_id) if checkpoint_id == self._checkpoint_id:
                self._awaited.remove(channel)
            case EndOfInput():
                self._awaited.remove(channel)
