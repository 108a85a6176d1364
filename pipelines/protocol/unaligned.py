"""Barriers that may overtake: alignments begin as usual and can be left at any moment.

Pure: the end of the time for aligning is an event. A barrier is *announced* when it reaches the
subtask's queue, long before it reaches its head. Leaving an alignment cuts at once. The records
that the barriers have overtaken, queued or still on their way, are channel state and belong to the
cut.
Source: Chandy and Lamport 1985 (the state of a channel); Flink, FLIP-76 and
`SingleCheckpointBarrierHandler` with its alternating states.
"""

from collections.abc import Iterable

from pipelines.domain.errors import check
from pipelines.domain.ids import NO_CHECKPOINT, ChannelId, CheckpointId
from pipelines.protocol.alignment import BarrierAligner
from pipelines.protocol.effects import (
    Abort,
    AlignmentEffect,
    AllArrived,
    Overtake,
    Resume,
    Snapshot,
)


class UnalignedBarriers:
    """Guarantee: for each input, the records consumed at `Overtake(n)` and those that the host
    recorded until `AllArrived(n)` are together exactly the records before barrier n.

    Needs FIFO inputs, a host that honours `Block`, one checkpoint under way at a time, and each
    overtaking barrier announced before anything behind it is delivered.
    """

    def __init__(self, inputs: Iterable[ChannelId]) -> None:
        self._announced = dict.fromkeys(inputs, NO_CHECKPOINT)  # the newest of each open input
        self._aligner = BarrierAligner(self._announced)
        self._settled: CheckpointId = NO_CHECKPOINT  # the newest that was cut or given up here
        self._recording: CheckpointId | None = None  # cut here, some barriers are still on the way

    @property
    def aligning_id(self) -> CheckpointId | None:
        return self._aligner.aligning_id

    @property
    def recording_id(self) -> CheckpointId | None:
        return self._recording

    @property
    def has_open_inputs(self) -> bool:
        return self._aligner.has_open_inputs

    def on_announced(
        self, channel: ChannelId, checkpoint_id: CheckpointId, *, overtakes: bool
    ) -> list[AlignmentEffect]:
        """The barrier is in the queue of `channel`, behind records that were not taken yet."""
        if channel not in self._announced:
            return []  # the reader was faster than the news: it has already consumed the end
        self._announced[channel] = max(self._announced[channel], checkpoint_id)
        if overtakes and checkpoint_id > self._settled:
            return self._overtake(checkpoint_id)
        return self._all_arrived()

    def on_time_is_up(self, checkpoint_id: CheckpointId) -> list[AlignmentEffect]:
        """It has aligned for long enough. Raises InvariantViolated before its first barrier."""
        if checkpoint_id <= self._settled:
            return []
        is_known = any(newest >= checkpoint_id for newest in self._announced.values())
        check(is_known, "only an announced checkpoint is overdue", checkpoint_id=checkpoint_id)
        return self._overtake(checkpoint_id)

    def on_barrier(self, channel: ChannelId, checkpoint_id: CheckpointId) -> list[AlignmentEffect]:
        if checkpoint_id <= self._settled:
            return []  # its overtaking has cut already, or it was given up
        self._announced[channel] = max(self._announced[channel], checkpoint_id)
        given_up = self._give_up_recording()
        return [*given_up, *self._settle(self._aligner.on_barrier(channel, checkpoint_id))]

    def on_cancelled(
        self, channel: ChannelId, checkpoint_id: CheckpointId
    ) -> list[AlignmentEffect]:
        """If it is already cut here, drops what was recorded; downstream has its barrier."""
        if checkpoint_id == self._recording:
            return self._give_up_recording()
        if checkpoint_id <= self._settled:
            return []
        return self._settle(self._aligner.on_cancelled(channel, checkpoint_id), checkpoint_id)

    def on_aborted(self, checkpoint_id: CheckpointId) -> list[AlignmentEffect]:
        is_recorded = self._recording is not None and self._recording <= checkpoint_id
        given_up = self._give_up_recording() if is_recorded else []
        return [*given_up, *self._settle(self._aligner.on_aborted(checkpoint_id), checkpoint_id)]

    def on_end(self, channel: ChannelId) -> list[AlignmentEffect]:
        effects = self._aligner.on_end(channel)
        del self._announced[channel]
        return [*self._settle(effects), *self._all_arrived()]

    def validate_state(self) -> None:
        """Raises InvariantViolated if the fields contradict one another."""
        self._aligner.validate_state()
        recording, aligning = self._recording, self._aligner.aligning_id
        if recording is not None:
            check(recording == self._settled, "what is recorded was cut here", recording=recording)
            on_the_way = any(newest < recording for newest in self._announced.values())
            check(on_the_way, "recording ends with the last barrier", recording=recording)
        is_newer = aligning is None or aligning > self._settled
        check(is_newer, "what is settled does not align", aligning=aligning)

    def _overtake(self, checkpoint_id: CheckpointId) -> list[AlignmentEffect]:
        """1. End older ones. 2. Cut. 3. Resume what it held back. 4. Await the other barriers."""
        effects = self._give_up_recording()
        older = self._aligner.aligning_id
        if older is not None and older < checkpoint_id:
            effects += self._aligner.on_aborted(older)
        arrived = self._aligner.leave(checkpoint_id)
        self._settled = self._recording = checkpoint_id
        effects.append(Overtake(checkpoint_id, frozenset(self._announced) - arrived))
        if arrived:
            effects.append(Resume(arrived))
        return [*effects, *self._all_arrived()]

    def _all_arrived(self) -> list[AlignmentEffect]:
        recording = self._recording
        if recording is None or any(newest < recording for newest in self._announced.values()):
            return []
        self._recording = None
        return [AllArrived(recording)]

    def _give_up_recording(self) -> list[AlignmentEffect]:
        recording, self._recording = self._recording, None
        return [] if recording is None else [Abort(recording)]

    def _settle(
        self, effects: list[AlignmentEffect], given_up: CheckpointId = NO_CHECKPOINT
    ) -> list[AlignmentEffect]:
        cut = [effect.checkpoint_id for effect in effects if isinstance(effect, Snapshot)]
        self._settled = max([self._settled, given_up, *cut])
        return effects
