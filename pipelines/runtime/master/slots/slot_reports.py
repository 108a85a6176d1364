"""Passes each slot's messages to the part that handles them; refuses those of an older attempt.

Called on the job master's thread. Decides nothing. A message that would change the results of a run
is a claim. If the slot's attempt is over, the refusal of a claim is recorded for the operator.
Other late messages are dropped silently: samples, and failures that follow from the attempt's end,
arrive at the end of every attempt.
"""

from pipelines.domain.events import ZombieRefused
from pipelines.domain.ids import Attempt
from pipelines.runtime.control import (
    Acknowledged,
    Beat,
    Committed,
    Declined,
    Deployed,
    Ended,
    Failed,
    FromSlot,
    Logged,
    PeerLost,
    ReservationWanted,
    Restoring,
    Running,
    Sampled,
    SourcesEnded,
    StrangerTurnedAway,
)
from pipelines.runtime.master.attempt.attempts import Attempts
from pipelines.runtime.master.attempt.failures import Failures
from pipelines.runtime.master.attempt.watchers import RunWatchers
from pipelines.runtime.master.job_events import (
    SlotArrived,
    SlotGone,
    SlotSpoke,
    StrangerRefused,
    claim_of,
)
from pipelines.runtime.master.requests.command_desk import FaultDesk
from pipelines.runtime.master.requests.run_end import RunEnd
from pipelines.runtime.master.run_context import RunContext


class SlotReports:
    def __init__(
        self,
        context: RunContext,
        attempts: Attempts,
        failures: Failures,
        faults: FaultDesk,
        watchers: RunWatchers,
        end: RunEnd,
    ) -> None:
        self._record = context.record
        self._keep_lines = context.keep_lines
        self._attempts = attempts
        self._failures = failures
        self._faults = faults
        self._watchers = watchers
        self._end = end

    def on_event(self, event: SlotArrived | SlotSpoke | SlotGone | StrangerRefused) -> None:
        match event:
            case SlotArrived():
                self._faults.on_slot_arriving(event)
                self._attempts.on_slot_arrived(event)
            case SlotSpoke():
                self._on_spoke(event)
            case SlotGone():
                self._on_gone(event)
            case StrangerRefused(attempt, what):
                self._on_refused(attempt, what)

    def _on_refused(self, claimed: Attempt, what: str) -> None:
        """Records the refusal. Only a peer of an attempt that is over is a zombie."""
        is_over = claimed < self._attempts.newest
        whose = claimed if is_over else Attempt(0)
        self._record.emit(ZombieRefused(zombie_attempt=whose, what=what))

    def _on_gone(self, event: SlotGone) -> None:
        if self._attempts.admit(event.attempt, None) is None:
            return
        if not self._attempts.current().has_ended(event.slot):
            self._failures.on_slot_lost(event.slot, event.problem)
        self._faults.on_slot_gone(event.attempt, event.slot)

    def _on_spoke(self, event: SlotSpoke) -> None:
        if isinstance(event.message, Logged):  # keep those of an ended attempt: they may say why
            self._keep_lines(event.message.lines, event.message.dropped)
            return
        host = self._attempts.admit(event.attempt, claim_of(event.message))
        if host is not None:
            self._on_message(event.slot, event.message)

    def _on_message(self, slot: int, message: FromSlot) -> None:
        checkpoints, board = self._watchers.checkpoints, self._watchers.board
        match message:
            case Restoring(progress=progress):
                self._attempts.on_restoring(slot, progress)
            case Deployed():
                self._attempts.on_deployed(slot)
            case Running():
                self._attempts.on_running(slot)
            case Acknowledged():
                checkpoints.on_acknowledged(message)
            case Declined():
                checkpoints.on_declined(message)
            case Committed():
                checkpoints.on_committed(message)
            case SourcesEnded(vertex=vertex, subtask=subtask):
                self._attempts.on_sources_ended(vertex, subtask)
            case ReservationWanted():
                checkpoints.triggers.on_reservation_wanted()
            case Sampled():
                board.on_sampled(slot, message)
                self._watchers.recovery.on_source_records(board.source_records)
            case Beat() | Logged():
                pass  # a beat only shows that the slot is alive; log lines are kept already
            case Failed():
                self._failures.on_subtask_failed(slot, message)
            case PeerLost(problem=problem):
                self._failures.on_peer_lost(slot, problem)
            case StrangerTurnedAway(attempt=attempt, what=what):
                self._on_refused(attempt, what)
            case Ended():
                if self._attempts.on_slot_ended(slot):
                    self._end.on_all_committed()
