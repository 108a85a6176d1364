"""The machines that handle a subtask's barriers: exactly once, at least once, and overtaking.

Pure: no clock, no I/O, no threads. The host passes in events in arrival order and carries out the
returned effects, in order, before it passes in the next event.

`BarrierAligner` decides which inputs wait and when to cut. A cap bounds how much a subtask may hold
back while it aligns; a setting says what happens when channels exceed it (wait and report,
overtake, abort). Flink once had such a cap, which aborted
(`CHECKPOINT_DECLINED_ALIGNMENT_LIMIT_EXCEEDED`), and has none now.

`BarrierTracker` holds nothing back and asks for a snapshot when the last barrier has arrived. So
the snapshot may contain records from after the barriers of faster inputs. After a restore, the
source reads those again, and they count twice.

`UnalignedBarriers` begins aligned and can leave an alignment at any moment; the host reports the
end of the time for aligning as an event. A barrier is *announced* when it enters the subtask's
queue, long before it gets to the head of the queue. Leaving an alignment cuts at once. The records
that the barriers have overtaken, queued or still on their way, are channel state and belong to the
cut.

Source: Carbone et al. 2015 (arXiv:1506.08603), the algorithm for acyclic graphs; Chandy and Lamport
1985, the state of a channel; Flink, `CheckpointBarrierTracker`, FLIP-76 and
`SingleCheckpointBarrierHandler` with its alternating states. A newer checkpoint aborts an
unfinished older one, as in Flink.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pipelines.domain.errors import check
from pipelines.domain.ids import NO_CHECKPOINT, ChannelId, CheckpointId
from pipelines.protocol.effects import (
    Abort,
    AlignmentEffect,
    AllArrived,
    Block,
    CancelDownstream,
    Overtake,
    Resume,
    Snapshot,
)


class BarrierAligner:
    """Holds back each input behind its barrier until every open input has sent one.

    Guarantee: at `Snapshot(n)` the subtask has consumed from each input exactly the records before
    barrier n. Needs FIFO inputs and a host that honours `Block`.
    """

    def __init__(self, inputs: Iterable[ChannelId]) -> None:
        self._open = set(inputs)
        self._arrived: set[ChannelId] = set()  # blocked; empty when nothing is aligning
        self._current: CheckpointId = NO_CHECKPOINT  # the newest id seen
        self._given_up: set[CheckpointId] = set()  # none of them older than the newest seen

    @property
    def aligning_id(self) -> CheckpointId | None:
        """The checkpoint whose barrier some, but not all, inputs have delivered."""
        return self._current if self._arrived else None

    @property
    def has_open_inputs(self) -> bool:
        return bool(self._open)

    def on_barrier(self, channel: ChannelId, checkpoint_id: CheckpointId) -> list[AlignmentEffect]:
        """Raises InvariantViolated if `channel` is closed, blocked, or repeats a barrier."""
        self._check_may_deliver(channel)
        if self._is_over(checkpoint_id):
            return []  # late: a newer checkpoint has overtaken it, or it was given up
        is_new = checkpoint_id > self._current
        check(is_new or bool(self._arrived), "an input sends each barrier once", channel=channel)
        aborted = self._decide(Abort(self._current)) if is_new and self._arrived else []
        self._pass_on_to(checkpoint_id)
        self._arrived.add(channel)
        return [*aborted, Block(channel), *self._snapshot_if_aligned()]

    def on_aborted(self, checkpoint_id: CheckpointId) -> list[AlignmentEffect]:
        """The coordinator aborted `checkpoint_id`: stop waiting, and ignore its later barriers.

        An older checkpoint, such as a savepoint, may be aligning at the same time and continues.
        """
        if self._is_over(checkpoint_id):
            return []
        self._given_up.add(checkpoint_id)
        is_aligning = checkpoint_id == self._current and bool(self._arrived)
        return self._decide(Abort(checkpoint_id)) if is_aligning else []

    def on_cancelled(
        self, channel: ChannelId, checkpoint_id: CheckpointId
    ) -> list[AlignmentEffect]:
        """A marker in place of the barrier: upstream will never cut `checkpoint_id`.

        An older alignment is over, too: the channel has passed its barrier.
        """
        self._check_may_deliver(channel)
        is_cut = checkpoint_id == self._current and not self._arrived
        if is_cut or self._is_over(checkpoint_id):
            return []
        given_up = self._decide(Abort(self._current)) if self._arrived else []
        self._pass_on_to(checkpoint_id)
        self._given_up.add(checkpoint_id)
        return [*given_up, CancelDownstream(checkpoint_id)]

    def leave(self, checkpoint_id: CheckpointId) -> frozenset[ChannelId]:
        """The host cuts `checkpoint_id` without waiting; ignore its late barriers from now on.

        Returns the inputs that were held back for it, which the caller resumes.
        """
        arrived = frozenset(self._arrived) if self._current == checkpoint_id else frozenset()
        self._arrived -= arrived
        self._pass_on_to(checkpoint_id)
        self._given_up.add(checkpoint_id)
        return arrived

    def on_end(self, channel: ChannelId) -> list[AlignmentEffect]:
        """The input is exhausted: stop waiting for its barriers."""
        self._check_may_deliver(channel)
        self._open.remove(channel)
        return self._snapshot_if_aligned()

    def validate_state(self) -> None:
        """Raises InvariantViolated if the fields contradict one another."""
        check(self._arrived <= self._open, "only open inputs are held back", held=self._arrived)
        waits = not self._arrived or self._arrived != self._open
        check(waits, "an alignment ends with its last barrier", checkpoint_id=self._current)
        stale = {n for n in self._given_up if n < self._current}
        check(not stale, "what is older than the newest is over anyway", given_up=stale)
        is_idle = not self._arrived or self._current not in self._given_up
        check(is_idle, "nothing waits for what was given up", checkpoint_id=self._current)

    def _snapshot_if_aligned(self) -> list[AlignmentEffect]:
        if not self._arrived or self._arrived != self._open:
            return []
        return self._decide(Snapshot(self._current))

    def _decide(self, outcome: Snapshot | Abort) -> list[AlignmentEffect]:
        resume = Resume(frozenset(self._arrived))
        self._arrived = set()
        return [outcome, resume]

    def _pass_on_to(self, checkpoint_id: CheckpointId) -> None:
        """Moves on to this checkpoint: some input delivers nothing older from now on."""
        self._current = max(self._current, checkpoint_id)
        self._given_up = {n for n in self._given_up if n >= self._current}

    def _is_over(self, checkpoint_id: CheckpointId) -> bool:
        return checkpoint_id < self._current or checkpoint_id in self._given_up

    def _check_may_deliver(self, channel: ChannelId) -> None:
        check(channel in self._open, "only open inputs deliver", channel=channel)
        check(channel not in self._arrived, "blocked inputs deliver nothing", channel=channel)


@dataclass(frozen=True, slots=True)
class BufferCap:
    """The caps in bytes; 0 means no cap.

    Even without a cap, a channel holds back at most its capacity and one batch; then its writer
    waits.
    """

    channel_bytes: int
    subtask_bytes: int

    @property
    def is_set(self) -> bool:
        return bool(self.channel_bytes or self.subtask_bytes)

    def exceeded_by(self, held: Mapping[ChannelId, int]) -> frozenset[ChannelId]:
        """Returns the channels at fault: every one with held data, if their sum is too large."""
        if self.subtask_bytes and sum(held.values()) > self.subtask_bytes:
            return frozenset(channel for channel, size in held.items() if size)
        if not self.channel_bytes:
            return frozenset()
        return frozenset(channel for channel, size in held.items() if size > self.channel_bytes)


MAX_TRACKED = 50
"""How many checkpoints the tracker counts at once; beyond that, it gives up the oldest."""


class BarrierTracker:
    """Guarantee: at `Snapshot(n)` the subtask has consumed from each input at least the records
    before barrier n. Needs FIFO inputs. Never asks for `Block`.
    """

    def __init__(self, inputs: Iterable[ChannelId]) -> None:
        self._open = set(inputs)
        self._arrived: dict[CheckpointId, set[ChannelId]] = {}  # of undecided checkpoints
        self._decided: CheckpointId = NO_CHECKPOINT  # the newest one that was cut
        self._given_up: set[CheckpointId] = set()  # all newer than the newest decided one

    @property
    def aligning_id(self) -> CheckpointId | None:
        """The newest checkpoint whose barrier some, but not all, inputs have delivered."""
        return max(self._arrived, default=None)

    @property
    def has_open_inputs(self) -> bool:
        return bool(self._open)

    def on_barrier(self, channel: ChannelId, checkpoint_id: CheckpointId) -> list[AlignmentEffect]:
        """Raises InvariantViolated if `channel` is closed or repeats a barrier."""
        self._check_may_deliver(channel)
        if self._is_over(checkpoint_id):
            return []
        arrived = self._arrived.setdefault(checkpoint_id, set())
        check(channel not in arrived, "an input sends each barrier once", channel=channel)
        arrived.add(channel)
        return [*self._forget_the_oldest(), *self._snapshots_due()]

    def on_aborted(self, checkpoint_id: CheckpointId) -> list[AlignmentEffect]:
        """The coordinator aborted `checkpoint_id`: stop counting, and ignore its later barriers."""
        if self._is_over(checkpoint_id):
            return []
        self._given_up.add(checkpoint_id)
        was_counted = self._arrived.pop(checkpoint_id, None)
        return [] if was_counted is None else [Abort(checkpoint_id)]

    def on_cancelled(
        self, channel: ChannelId, checkpoint_id: CheckpointId
    ) -> list[AlignmentEffect]:
        """A marker in place of the barrier: upstream will never cut `checkpoint_id`."""
        self._check_may_deliver(channel)
        if self._is_over(checkpoint_id):
            return []
        return [*self.on_aborted(checkpoint_id), CancelDownstream(checkpoint_id)]

    def on_end(self, channel: ChannelId) -> list[AlignmentEffect]:
        """The input is exhausted: stop waiting for its barriers."""
        self._check_may_deliver(channel)
        self._open.remove(channel)
        return self._snapshots_due()

    def validate_state(self) -> None:
        """Raises InvariantViolated if the fields contradict one another."""
        check(len(self._arrived) <= MAX_TRACKED, "few checkpoints are counted at once")
        counted = set(self._arrived)
        check(all(n > self._decided for n in counted), "what is decided is not counted on")
        check(counted.isdisjoint(self._given_up), "what was given up is not counted on")
        check(all(n > self._decided for n in self._given_up), "what was passed by is forgotten")
        for checkpoint_id, arrived in self._arrived.items():
            undecided = bool(arrived) and not arrived >= self._open
            check(undecided, "the last barrier decides", checkpoint_id=checkpoint_id)

    def _snapshots_due(self) -> list[AlignmentEffect]:
        """Cuts each checkpoint that every open input has delivered; aborts those it passes over."""
        complete = sorted(n for n, arrived in self._arrived.items() if arrived >= self._open)
        effects: list[AlignmentEffect] = []
        for checkpoint_id in complete:
            effects += [Abort(older) for older in sorted(self._arrived) if older < checkpoint_id]
            effects.append(Snapshot(checkpoint_id))
            self._decide(checkpoint_id)
        return effects

    def _decide(self, checkpoint_id: CheckpointId) -> None:
        self._decided = checkpoint_id
        self._arrived = {n: arrived for n, arrived in self._arrived.items() if n > checkpoint_id}
        self._given_up = {n for n in self._given_up if n > checkpoint_id}

    def _forget_the_oldest(self) -> list[AlignmentEffect]:
        return self.on_aborted(min(self._arrived)) if len(self._arrived) > MAX_TRACKED else []

    def _is_over(self, checkpoint_id: CheckpointId) -> bool:
        return checkpoint_id <= self._decided or checkpoint_id in self._given_up

    def _check_may_deliver(self, channel: ChannelId) -> None:
        check(channel in self._open, "only open inputs deliver", channel=channel)


class UnalignedBarriers:
    """Guarantee: for each input, the records consumed at `Overtake(n)` and those that the host
    recorded until `AllArrived(n)` are together exactly the records before barrier n.

    Needs FIFO inputs, a host that honours `Block`, one checkpoint under way at a time, and each
    overtaking barrier announced before anything after it is delivered.
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
        """The time for aligning is up. Raises InvariantViolated before its first barrier."""
        if checkpoint_id <= self._settled:
            return []
        is_known = any(newest >= checkpoint_id for newest in self._announced.values())
        check(is_known, "only an announced checkpoint is overdue", checkpoint_id=checkpoint_id)
        return self._overtake(checkpoint_id)

    def on_barrier(self, channel: ChannelId, checkpoint_id: CheckpointId) -> list[AlignmentEffect]:
        if checkpoint_id <= self._settled:
            return []  # it was already cut when it overtook, or it was given up
        self._announced[channel] = max(self._announced[channel], checkpoint_id)
        given_up = self._give_up_recording()
        return [*given_up, *self._settle(self._aligner.on_barrier(channel, checkpoint_id))]

    def on_cancelled(
        self, channel: ChannelId, checkpoint_id: CheckpointId
    ) -> list[AlignmentEffect]:
        """Drops what was recorded if it is already cut here: downstream has its barrier by then."""
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
