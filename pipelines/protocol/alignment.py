"""Barrier alignment of one subtask: which inputs wait, when to snapshot, how much is held back.

Pure: no clock, no I/O, no threads. The host passes in events in arrival order and
carries out the returned effects, in order, before it passes in the next event.

A cap bounds how much a subtask may hold back while it aligns, and this module decides which
channels exceed it. A setting says what follows (wait and report, overtake, abort). Flink once had
the cap for aborting (`CHECKPOINT_DECLINED_ALIGNMENT_LIMIT_EXCEEDED`) and has none now.

Source: Carbone et al. 2015 (arXiv:1506.08603), the algorithm for acyclic graphs;
a newer checkpoint aborts an unfinished older one, as in Flink.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pipelines.domain.errors import check
from pipelines.domain.ids import NO_CHECKPOINT, ChannelId, CheckpointId
from pipelines.protocol.effects import (
    Abort,
    AlignmentEffect,
    Block,
    CancelDownstream,
    Resume,
    Snapshot,
)


class BarrierAligner:
    """Holds back each input behind its barrier until every open input has sent one.

    Guarantee: at `Snapshot(n)` the subtask has consumed, of each input, exactly the
    records before barrier n. Needs FIFO inputs and a host that honours `Block`.
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

        An older checkpoint, such as a savepoint, may be aligning at the same time and goes on.
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
        """Some input will deliver nothing older any more."""
        self._current = max(self._current, checkpoint_id)
        self._given_up = {n for n in self._given_up if n >= self._current}

    def _is_over(self, checkpoint_id: CheckpointId) -> bool:
        return checkpoint_id < self._current or checkpoint_id in self._given_up

    def _check_may_deliver(self, channel: ChannelId) -> None:
        check(channel in self._open, "only open inputs deliver", channel=channel)
        check(channel not in self._arrived, "blocked inputs deliver nothing", channel=channel)


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
