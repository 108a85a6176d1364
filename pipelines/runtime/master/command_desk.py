"""What people ask of a running run: checkpoints, savepoints, stop, cancel, kill.

Each command is answered once (`request_desk`). Decides nothing about when a checkpoint starts.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from pipelines.domain.checkpoint_failures import CheckpointFailureReason
from pipelines.domain.commands import (
    Cancel,
    CancelWithSavepoint,
    ChangeSettings,
    DriverCommand,
    KillDriver,
    KillSlot,
    SlowSlot,
    StopWithSavepoint,
    TakeSavepoint,
    TriggerCheckpoint,
)
from pipelines.domain.errors import Rejected
from pipelines.domain.events import SettingsChanged
from pipelines.domain.faults import FaultPoint
from pipelines.domain.ids import Attempt, RequestId
from pipelines.domain.setting_parsing import changed_settings, parse_settings
from pipelines.domain.settings import Settings
from pipelines.domain.status import CheckpointKind, JobStatus, KillMoment, RequestOutcome
from pipelines.protocol.triggering import TriggerRequest
from pipelines.runtime.control import SlowUploads
from pipelines.runtime.faults import Faults
from pipelines.runtime.master.attempts import Attempts
from pipelines.runtime.master.checkpoint_host import CheckpointHost
from pipelines.runtime.master.request_desk import RequestDesk
from pipelines.runtime.master.run_end import RunEnd
from pipelines.runtime.master.run_record import RunRecord


@dataclass(frozen=True, slots=True)
class _Kill:
    command: KillSlot
    attempt: Attempt
    pid: int


class CommandDesk:
    def __init__(
        self,
        desk: RequestDesk,
        record: RunRecord,
        attempts: Attempts,
        checkpoints: CheckpointHost,
        parallelism: int,
        given_settings: Mapping[str, str],
        check_fits: Callable[[Settings], None],
        end: RunEnd,
        faults: Faults,
    ) -> None:
        self._desk = desk
        self._record = record
        self._attempts = attempts
        self._checkpoints = checkpoints
        self._parallelism = parallelism
        self._given_settings = dict(given_settings)
        self._check_fits = check_fits
        self._end = end
        self._faults = faults
        self._kills: list[_Kill] = []  # asked for, and the slot still lives

    def on_command(self, command: DriverCommand) -> None:
        self._desk.accept(command)
        if self._end.is_asked_by(command.request_id):
            return
        match command:
            case TriggerCheckpoint():
                self._request(TriggerRequest(CheckpointKind.CHECKPOINT, command.request_id))
            case TakeSavepoint():
                self._request(_savepoint(command))
            case StopWithSavepoint(drain=drain):
                self._request(replace(_savepoint(command), stops_run=True, drains=drain))
            case CancelWithSavepoint():
                self._request(replace(_savepoint(command), stops_run=True, cancels_run=True))
            case Cancel():
                self._cancel(command)
            case ChangeSettings():
                self._change_settings(command)
            case KillSlot(slot=slot):
                self._kill(command, slot)
            case SlowSlot():
                self._slow(command)
            case KillDriver(moment=moment):
                self._kill_driver(command.request_id, FaultPoint(moment.value))

    def on_completed(self, request: TriggerRequest, path: str) -> None:
        if request.stops_run:
            return  # answered when the run has ended
        outcome, message = RequestOutcome.SUCCEEDED, f"Completed: {path}"
        self._desk.answer(request.request_id, outcome, message, path)

    def on_slot_gone(self, attempt: Attempt, slot: int) -> None:
        """Whoever asked for its end has got it."""
        for kill in self._kills_where(lambda k: (k.attempt, k.command.slot) == (attempt, slot)):
            message = f"Slot {slot} (pid {kill.pid}) is dead."
            self._desk.answer(kill.command.request_id, RequestOutcome.SUCCEEDED, message)

    def on_time(self) -> None:
        """Answers kills whose attempt has ended by something else."""
        host = self._attempts.host
        for kill in self._kills_where(lambda k: host is None or k.attempt != host.attempt):
            if kill.command.moment is KillMoment.NOW:
                outcome, message = RequestOutcome.SUCCEEDED, f"Process {kill.pid} is dead."
            else:
                outcome = RequestOutcome.FAILED
                where = f"slot {kill.command.slot} came to {kill.command.moment.value!r}"
                message = f"Attempt {kill.attempt} ended before {where}."
            self._desk.answer(kill.command.request_id, outcome, message)

    def _kills_where(self, holds: Callable[["_Kill"], bool]) -> list["_Kill"]:
        """Taken out of those that wait."""
        found = [kill for kill in self._kills if holds(kill)]
        self._kills = [kill for kill in self._kills if kill not in found]
        return found

    def on_aborted(self, request: TriggerRequest, message: str) -> None:
        self._desk.answer(request.request_id, RequestOutcome.FAILED, message)

    def _request(self, request: TriggerRequest) -> None:
        if not self._checkpoints.triggers.on_request(request):
            reason = CheckpointFailureReason.TOO_MANY_CHECKPOINT_REQUESTS
            self._desk.answer(request.request_id, RequestOutcome.REJECTED, reason)

    def _cancel(self, command: Cancel) -> None:
        self._record.move_to(JobStatus.CANCELLING, f"{command.requested_by}: {command.reason}")
        self._attempts.end(
            CheckpointFailureReason.CHECKPOINT_COORDINATOR_SHUTDOWN, "The run is cancelled."
        )
        self._desk.answer(command.request_id, RequestOutcome.SUCCEEDED, "The run is cancelled.")
        reason = f"cancelled by {command.requested_by}: {command.reason}"
        self._record.end(JobStatus.CANCELED, self._end.reason_of_cancellation(reason))

    def _change_settings(self, command: ChangeSettings) -> None:
        """The event is what a later driver of the run goes by, so it comes first."""
        try:
            given = changed_settings(self._given_settings, command.settings)
            self._check_fits(parse_settings(given))
        except Rejected as refusal:
            self._desk.answer(command.request_id, RequestOutcome.REJECTED, str(refusal))
            return
        self._record.emit(
            SettingsChanged(
                settings=given,
                changed=command.settings,
                requested_by=command.requested_by,
                reason=command.reason,
            )
        )
        self._given_settings = given
        self._checkpoints.on_settings(parse_settings(given))
        now = ", ".join(f"{key} = {value}" for key, value in command.settings.items())
        self._desk.answer(command.request_id, RequestOutcome.SUCCEEDED, f"From now on: {now}.")

    def _kill(self, command: KillSlot, slot: int) -> None:
        host = self._attempts.host
        pid = None if host is None else host.pid_of(slot)
        if host is None or pid is None:
            self._reject_slot(command.request_id, slot)
            return
        self._kills.append(_Kill(command, host.attempt, pid))
        host.kill(slot, command.moment)

    def _slow(self, command: SlowSlot) -> None:
        host, slot = self._attempts.host, command.slot
        if host is None or host.pid_of(slot) is None:
            self._reject_slot(command.request_id, slot)
            return
        host.send(slot, SlowUploads(delay_ms=command.delay_ms, for_ms=command.for_ms))
        message = (
            f"Each upload of slot {slot} takes {command.delay_ms / 1000:g} s longer for"
            f" {command.for_ms / 1000:g} s from now on."
        )
        self._desk.answer(command.request_id, RequestOutcome.SUCCEEDED, message)

    def _reject_slot(self, request_id: RequestId, slot: int) -> None:
        message = f"There is no running slot {slot}; slots are 0 to {self._parallelism - 1}."
        self._desk.answer(request_id, RequestOutcome.REJECTED, message)

    def _kill_driver(self, request_id: RequestId, point: FaultPoint) -> None:
        message = f"This driver ends the next time that it comes to {point.value!r}."
        self._desk.answer(request_id, RequestOutcome.SUCCEEDED, message)
        self._faults.kill_at(point)


def _savepoint(command: TakeSavepoint | StopWithSavepoint | CancelWithSavepoint) -> TriggerRequest:
    return TriggerRequest(
        CheckpointKind.SAVEPOINT, command.request_id, savepoint_format=command.format
    )
