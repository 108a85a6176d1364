"""Watches what a gate holds back while its subtask aligns, against the cap of the settings."""

from dataclasses import dataclass

from pipelines.channels.channel import InputGate
from pipelines.domain.ids import NO_CHECKPOINT, ChannelId, CheckpointId
from pipelines.protocol.buffer_cap import BufferCap

CAP_STEP_MS = 10.0
"""How often an idle subtask that aligns checks what it holds back."""


@dataclass(slots=True)
class AlignmentBuffers:
    """Reports once per checkpoint."""

    gate: InputGate
    cap: BufferCap
    _reported_id: CheckpointId = NO_CHECKPOINT
    _over_cap: frozenset[ChannelId] = frozenset()

    def excess(self, aligning_id: CheckpointId | None) -> str | None:
        """One sentence, the first time that the cap is exceeded."""
        if not self.cap.is_set or aligning_id is None or aligning_id == self._reported_id:
            return None
        held = {s.channel: s.queued_bytes for s in self.gate.statistics() if s.held_back}
        exceeded = self.cap.exceeded_by(held)
        if not exceeded:
            return None
        self._reported_id, self._over_cap = aligning_id, exceeded
        fullest = max(held, key=lambda channel: held[channel])
        return (
            f"{sum(held.values())} bytes are held back, {held[fullest]} of them on {fullest}:"
            " more than execution.checkpointing.alignment-buffer allows"
        )

    def over_cap(self, checkpoint_id: CheckpointId) -> frozenset[ChannelId]:
        return self._over_cap if checkpoint_id == self._reported_id else frozenset()
