"""Decides how much a subtask may hold back while it aligns, and which channels exceed that.

Pure. A setting says what follows (wait and report, overtake, abort). Flink once had the cap for
aborting (`CHECKPOINT_DECLINED_ALIGNMENT_LIMIT_EXCEEDED`) and has none now.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from pipelines.domain.ids import ChannelId


@dataclass(frozen=True, slots=True)
class BufferCap:
    """In bytes; 0: no cap. Whatever you set, a channel holds back at most its capacity and one
    batch: then its writer waits."""

    channel_bytes: int
    subtask_bytes: int

    @property
    def is_set(self) -> bool:
        return bool(self.channel_bytes or self.subtask_bytes)

    def exceeded_by(self, held: Mapping[ChannelId, int]) -> frozenset[ChannelId]:
        """The channels at fault: all that hold anything, if their sum is too much."""
        if self.subtask_bytes and sum(held.values()) > self.subtask_bytes:
            return frozenset(channel for channel, size in held.items() if size)
        if not self.channel_bytes:
            return frozenset()
        return frozenset(channel for channel, size in held.items() if size > self.channel_bytes)
