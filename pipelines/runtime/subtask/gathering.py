"""A snapshot between its cut and its upload, while its records in flight are gathered.

Owns the cut and the records that have come so far; decides nothing. An aligned snapshot has nothing
to wait for. Source: Flink, `ChannelStateWriter` and its futures.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from pipelines.channels.channel import Output
from pipelines.domain.elements import Barrier
from pipelines.domain.phases import ChannelAlignment
from pipelines.runtime.subtask.in_flight import InFlightRecords, overtaken_on
from pipelines.runtime.subtask.snapshotting import SubtaskCut


@dataclass(slots=True)
class Gathering:
    """`waiting_outputs` still hold the barrier back; at `due_ms` it overtakes there, too."""

    barrier: Barrier
    cut: SubtaskCut
    start_delay_ms: float
    sync_ms: float
    cut_ms: float  # monotonic, the end of the cut
    in_flight: list[InFlightRecords]
    waiting_outputs: list[Output] = field(default_factory=list)
    due_ms: float | None = None
    awaits_inputs: bool = True
    alignment_ms: float = 0.0
    channels: list[ChannelAlignment] = field(default_factory=list)
    is_unaligned: bool = False

    @property
    def is_complete(self) -> bool:
        return not self.awaits_inputs and not self.waiting_outputs

    def on_inputs(
        self,
        alignment_ms: float,
        channels: list[ChannelAlignment],
        recorded: Iterable[InFlightRecords] = (),
    ) -> None:
        """Every barrier has arrived."""
        self.alignment_ms, self.channels = alignment_ms, channels
        self.in_flight = [*self.in_flight, *recorded]
        self.awaits_inputs = False

    def look_at_outputs(self, now_ms: float) -> None:
        """Drops outputs that have passed the barrier on; overtakes at the others if time is up."""
        checkpoint_id = self.barrier.checkpoint_id
        self.waiting_outputs = [o for o in self.waiting_outputs if o.holds_barrier(checkpoint_id)]
        if self.due_ms is not None and now_ms >= self.due_ms:
            self._overtake()

    def _overtake(self) -> None:
        for output in self.waiting_outputs:
            self.in_flight += overtaken_on(output, self.barrier)
            self.is_unaligned = True
        self.waiting_outputs = []
