"""Carries out commands to a running run: checkpoints, savepoints, stop, cancel, kill.

Each command is answered once (`request_desk`). Decides nothing about when a checkpoint starts.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import assert_never

from pipelines.domain.checkpoint_failures import CheckpointFailureReason
from pipelines.domain.commands import (
    Cancel,
    CancelWithSavepoint,
    ChangeSettings,
    DriverCommand,
    KillDriver,
    KillSlot,
    SavepointCommand,
    SlowSlot,
    StopWithSavepoint,
    TakeSavepoint,
    TriggerCheckpoint,
    VerifyPoints,
)
from pipelines.domain.errors import Rejected
from pipelines.domain.events import SettingsChanged
from pipelines.domain.settings import Settings
from pipelines.domain.settings.parsing import changed_settings, parse_settings
from pipelines.domain.status import CheckpointKind, JobStatus, RequestOutcome
from pipelines.protocol.triggering import TriggerRequest
from pipelines.runtime.master.attempt.attempts import Attempts
from pipelines.runtime.master.checkpoints.checkpoint_host import CheckpointHost
from pipelines.runtime.master.checkpoints.point_keeper import PointVerifier
from pipelines.runtime.master.requests.fault_desk import FaultDesk
from pipelines.runtime.master.requests.request_desk import RequestDesk
from pipelines.runtime.master.requests.run_end import RunEnd
from pipelines.runtime.master.run_record import RunRecord


class CommandDesk:
    def __init__(
        self,
        *,
        desk: RequestDesk,
        record: RunRecord,
        attempts: Attempts,
        checkpoints: CheckpointHost,
        given_settings: Mapping[str, str],
        check_fits: Callable[[Settings], None],
        end: RunEnd,
        faults: FaultDesk,
        verifier: PointVerifier,
    ) -> None:
        self._desk = desk
        self._record = record
        self._attempts = attempts
        self._checkpoints = checkpoints
        self._given_settings = dict(given_settings)
        self._check_fits = check_fits
        self._end = end
        self._faults = faults
        self._verifier = verifier

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
            case VerifyPoints():
                self._verifier.on_asked(command.request_id)
            case KillSlot():
                self._faults.kill_slot(command)
            case SlowSlot():
                self._faults.slow_slot(command)
            case KillDriver():
                self._faults.kill_driver(command)
            case _:
                assert_never(command)  # a command without a case here is a type error

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
        """Emits the event first, because a later driver of the run goes by it."""
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


def _savepoint(command: SavepointCommand) -> TriggerRequest:
    return TriggerRequest(
        CheckpointKind.SAVEPOINT, command.request_id, savepoint_format=command.format
    )
