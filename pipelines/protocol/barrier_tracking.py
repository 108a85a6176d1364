"""At least once: counts the barriers of all inputs and holds none of them back.

Pure. It asks for a snapshot when the last barrier has come. So the snapshot may hold records from
behind the barriers of faster inputs; a restore reads those again, and they count twice.

Source: Flink, `CheckpointBarrierTracker`.
"""

from collections.abc import Iterable

from pipelines.domain.errors import check
from pipelines.domain.ids import NO_CHECKPOINT, ChannelId, CheckpointId
from pipelines.protocol.effects import Abort, AlignmentEffect, CancelDownstream, Snapshot

MAX_TRACKED = 50
"""Checkpoints whose barriers are counted at once; beyond that, the oldest is given up."""


class BarrierTracker:
    """Guarantee: at `Snapshot(n)` the subtask has consumed, of each input, at least the records
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
        """Cuts what every open input has delivered, oldest first; aborts what was passed by."""
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
