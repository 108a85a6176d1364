"""The thread of one subtask: mail, then input, one thing at a time, so operators need no locks.

Knows nothing of sockets: it reads from a feed, writes to exchanges and reports to a
`SubtaskReporter`. The feed and `SubtaskCheckpoints` decide what a barrier does.

Source: Flink, `StreamTask` and its mailbox model.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import replace
from enum import Enum, auto

from pipelines.channels.channel import ChannelClosed, ChannelStatistics
from pipelines.domain.clock import Clock
from pipelines.domain.settings import BarrierOptions
from pipelines.runtime.subtask.chains.chain import OperatorChain
from pipelines.runtime.subtask.chains.chain_node import ChainPlace
from pipelines.runtime.subtask.feed import (
    IDLE_WAIT_MS,
    AskForReservation,
    Broadcast,
    Count,
    Effects,
    Emit,
    Feed,
    PassTime,
    Process,
    Reach,
    ReportSourcesEnded,
)
from pipelines.runtime.subtask.gate_alignment import overtakes_at_once
from pipelines.runtime.subtask.mailbox import (
    CheckpointAborted,
    CheckpointCompleted,
    InjectBarrier,
    Mail,
    Mailbox,
)
from pipelines.runtime.subtask.snapshots.snapshot_upload import SnapshotUpload
from pipelines.runtime.subtask.snapshots.snapshotting import SnapshotWriter
from pipelines.runtime.subtask.subtask_checkpoints import SubtaskCheckpoints
from pipelines.runtime.subtask.subtask_reporter import Load, Spending, SubtaskReporter

PROCESSING_TIME_STEP_MS = 10.0
"""How late a processing-time timer may be because its subtask was not looking."""


class Step(Enum):
    """The outcome of one turn of a subtask."""

    WORKED = auto()
    WAITS_FOR_INPUT = auto()
    WAITS_FOR_CREDIT = auto()  # downstream takes nothing more: take no input either
    WAITS_FOR_RESULTS = auto()  # enough requests are under way: take no input either


class Subtask(threading.Thread):
    """Guarantee: everything that happens to its operators happens between two elements."""

    def __init__(
        self,
        *,
        place: ChainPlace,
        chain: OperatorChain,
        feed: Feed,
        snapshots: SnapshotWriter,
        uploads: Executor,
        reporter: SubtaskReporter,
        clock: Clock,
        mailbox: Mailbox,
        barriers: BarrierOptions,
    ) -> None:
        super().__init__(name=f"{place.vertex.uid}[{place.subtask}]", daemon=True)
        self.place = place
        self.chain = chain
        self.mailbox = mailbox
        self.reporter = reporter
        self.clock = clock
        self.load = Load(clock.monotonic_ms())
        upload = SnapshotUpload(place, snapshots, uploads, reporter, clock)
        self.checkpoints = SubtaskCheckpoints(
            place=place,
            chain=chain,
            feed=feed,
            upload=upload,
            reporter=reporter,
            clock=clock,
            options=barriers,
        )
        self._feed = feed
        self._barriers = barriers
        self._newest_step = Step.WORKED
        self._timers_due_ms = 0.0  # when processing time is looked at next

    def run(self) -> None:
        self._reported(self._loop)

    def take_turn(self) -> Step | None:
        """One step, for a host without a thread for every subtask. None: the subtask has ended."""
        return self._newest_step if self._reported(self._turn) else None

    def _reported(self, work: Callable[[], bool]) -> bool:
        """True if `work` may go on; reports how it ended otherwise."""
        try:
            if work():
                return True
            self.chain.close()
            self.reporter.ended(self.place)
        except ChannelClosed:
            pass  # the attempt is over; its end has been reported
        except BaseException as error:
            self.reporter.failed(self.place, error)
        return False

    def _loop(self) -> bool:
        while not self.is_done():
            match self.step():
                case Step.WAITS_FOR_INPUT:
                    self._wait()
                case Step.WAITS_FOR_CREDIT:
                    self._wait_for_credit()
                case Step.WAITS_FOR_RESULTS:
                    self._wait_as(Spending.BUSY, self._longest_wait_ms(IDLE_WAIT_MS))
        return False

    def _turn(self) -> bool:
        if self.is_done():
            return False
        self._newest_step = self.step()
        return True

    def step(self) -> Step:
        """Handle one thing: mail first, then barriers that overtake, then input. Never blocks.

        Raises ChannelClosed once the attempt is over, and whatever an operator raises.
        """
        mail = self.mailbox.try_take()
        if mail is not None:
            self._on_mail(mail)
            return Step.WORKED
        self.checkpoints.attend()
        feed = self._feed
        effects = feed.attend()
        if effects is None:
            if not self.chain.flush():
                return Step.WAITS_FOR_CREDIT
            if self.awaits_results:
                self.chain.on_results()
            if self.chain.awaits_processing_time:
                self._on_processing_time()
            if self.awaits_results and self.chain.is_full:
                return Step.WAITS_FOR_RESULTS
            effects = None if feed.has_ended else feed.advance()
            if effects is None:
                return Step.WAITS_FOR_INPUT
        self.obey(effects)
        return Step.WORKED

    def is_done(self) -> bool:
        """The input has ended, all output is on its way and the final checkpoint is committed."""
        if not self._feed.has_ended or not self.chain.flush():
            return False
        return self.checkpoints.has_completed_final

    @property
    def awaits_results(self) -> bool:
        """Requests are under way. Behind the final barrier their rows belong to the snapshot."""
        return self.chain.awaits_results and not self.checkpoints.has_cut_final

    def watermark_ms(self) -> int | None:
        return self._feed.watermark_ms()

    def queued(self) -> list[ChannelStatistics]:
        """What waits in front of this subtask, per input channel."""
        return self._feed.queued()

    def pending_records(self) -> int | None:
        return self._feed.pending_records()

    def trouble(self) -> str:
        return self._feed.trouble()

    def _on_mail(self, mail: Mail) -> None:
        match mail:
            case InjectBarrier(barrier, drains):
                if drains:
                    self.obey(self._feed.drain())
                overtakes = overtakes_at_once(barrier, self._barriers)
                self.obey(self._feed.on_injected(replace(barrier, overtakes=overtakes)))
            case CheckpointCompleted(permit):
                self.checkpoints.on_completed(permit)
                self.obey(self._feed.on_completed(permit.checkpoint_id))
            case CheckpointAborted(checkpoint_id):
                self.checkpoints.on_aborted(checkpoint_id)
                self.obey(self._feed.on_aborted(checkpoint_id))
                self.checkpoints.give_up(checkpoint_id)

    def obey(self, effects: Effects) -> None:
        """Does what its feed asks for, in order."""
        chain = self.chain
        for effect in effects:
            match effect:
                case Process():
                    chain.on_batch(*effect)
                case PassTime():
                    chain.on_event_time(effect.marks)
                case Emit():
                    chain.emit_from_source(*effect)
                case Count():
                    chain.count(effect.counts)
                case Broadcast(mark):
                    chain.broadcast(mark)
                case ReportSourcesEnded():
                    self.reporter.sources_ended(self.place)
                case AskForReservation():
                    self.reporter.reservation_wanted(self.place)
                case Reach(point):
                    self.reporter.reach(point)
                case step:
                    self.checkpoints.obey(step)

    def _on_processing_time(self) -> None:
        if self.checkpoints.has_cut_final:
            return
        now_ms = self.clock.monotonic_ms()
        if now_ms >= self._timers_due_ms:
            self._timers_due_ms = now_ms + PROCESSING_TIME_STEP_MS
            self.chain.on_processing_time()

    def _wait(self) -> None:
        self._wait_as(Spending.IDLE, self._longest_wait_ms(self._feed.wait_ms))

    def _longest_wait_ms(self, wait_ms: float) -> float:
        awaits_time = self.chain.awaits_processing_time
        return min(wait_ms, PROCESSING_TIME_STEP_MS) if awaits_time else wait_ms

    def _wait_for_credit(self) -> None:
        self._wait_as(Spending.BACKPRESSURED, IDLE_WAIT_MS)

    def _wait_as(self, spending: Spending, longest_ms: float) -> None:
        self.load = self.load.turned(spending, self.clock.monotonic_ms())
        self.mailbox.wait(self._until_due(longest_ms))
        self.load = self.load.turned(Spending.BUSY, self.clock.monotonic_ms())

    def _until_due(self, longest_ms: float) -> float:
        """At most until a barrier turns, here or downstream."""
        dues = (self._feed.due_ms, self.checkpoints.due_ms)
        now_ms = self.clock.monotonic_ms()
        return min([longest_ms, *(max(0.0, due - now_ms) for due in dues if due is not None)])
