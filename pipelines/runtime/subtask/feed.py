"""Where a subtask's records come from: an input gate or a source, behind one contract."""

from typing import TYPE_CHECKING, Protocol

from pipelines.channels.channel import ChannelStatistics
from pipelines.domain.elements import Barrier
from pipelines.domain.ids import CheckpointId
from pipelines.domain.snapshots import Json

if TYPE_CHECKING:
    from pipelines.runtime.subtask.subtask import Subtask

IDLE_WAIT_MS = 500.0
"""A bound only: arrivals and mail wake a subtask at once."""


class Feed(Protocol):
    """The subtask's thread calls it and passes itself as `subtask`; no other thread may."""

    def advance(self, subtask: "Subtask") -> bool:
        """Handle one element; False: there is nothing to do now."""
        ...

    def attend(self, subtask: "Subtask") -> bool:
        """Handle what waits neither for records nor for credit; False: there is nothing."""
        ...

    def drain(self, subtask: "Subtask") -> None:
        """Event time ends: nothing more will be read."""
        ...

    def on_injected(self, barrier: Barrier, subtask: "Subtask") -> None: ...

    def on_completed(self, checkpoint_id: CheckpointId, subtask: "Subtask") -> None: ...

    def on_aborted(self, checkpoint_id: CheckpointId, subtask: "Subtask") -> None: ...

    def positions(self) -> Json: ...

    def records_beyond_positions(self) -> int:
        """Records emitted and counted, which a recovery to these positions reads again."""
        ...

    def reserved(self, checkpoint_id: CheckpointId) -> Json:
        """At most once: where a recovery from this checkpoint begins to read."""
        ...

    def replayed(self) -> Json:
        """How far the source's quarantine has been read again; None: it never was."""
        ...

    def watermark_ms(self) -> int | None: ...

    def queued(self) -> list[ChannelStatistics]: ...

    def pending_records(self) -> int | None:
        """Records that a source knows of and has not read; None: not known. From any thread."""
        ...

    @property
    def has_ended(self) -> bool: ...

    @property
    def wait_ms(self) -> float: ...

    @property
    def due_ms(self) -> float | None:
        """The monotonic time from which `attend` has something to do by itself."""
        ...
