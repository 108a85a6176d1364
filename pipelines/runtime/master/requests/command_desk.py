"""Carries out commands to a running run: checkpoints, savepoints, its end, faults on purpose.

Each command gets one answer (`request_desk`). Does not decide when a checkpoint starts.

The faults are kills of a slot or the driver, and slow storage. A kill waits for its moment no
longer than requested. The process that is to die cancels the kill by its own clock
(`runtime.faults`). Once that is certain, the request has failed. At most one driver carries out a
kill: if it dies first, its successor only answers the request.
"""

import contextlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import assert_never

from pipelines.domain.checkpoint_failures import CheckpointFailureReason
from pipelines.domain.commands import (
    Cancel,
    CancelWithSavepoint,
    ChangeSettings,
    DriverCommand,
    KillDriver,
    KillSlot,
    RetryNow,
    SavepointCommand,
    SlowSlot,
    StopWithSavepoint,
    TakeSavepoint,
    TriggerCheckpoint,
    UndoStart,
    VerifyPoints,
)
from pipelines.domain.errors import Rejected
from pipelines.domain.events import SettingsChanged
from pipelines.domain.faults import FaultPoint
from pipelines.domain.ids import Attempt, RequestId
from pipelines.domain.settings import Settings
from pipelines.domain.settings.parsing import changed_settings, parse_settings
from pipelines.domain.status import CheckpointKind, JobStatus, KillMoment, RequestOutcome
from pipelines.protocol.triggering import TriggerRequest
from pipelines.runtime.control import Die, SlowUploads
from pipelines.runtime.master.attempt.attempts import Attempts
from pipelines.runtime.master.attempt.failures import Failures
from pipelines.runtime.master.checkpoints.checkpoint_host import CheckpointHost
from pipelines.runtime.master.checkpoints.point_files import PointVerifier
from pipelines.runtime.master.job_events import SlotArrived
from pipelines.runtime.master.requests.request_desk import RequestDesk
from pipelines.runtime.master.requests.run_end import RunEnd
from pipelines.runtime.master.requests.start_undo import StartUndo
from pipelines.runtime.master.run_context import RunContext, RunRecord


@dataclass(frozen=True, slots=True)
class _SlotKill:
    command: KillSlot
    attempt: Attempt | None  # None: the kill is for the slot's replacement, which has not arrived
    pid: int
    until_ms: float  # monotonic; after this the kill can no longer happen


@dataclass(frozen=True, slots=True)
class _DriverKill:
    command: KillDriver
    until_ms: float


class FaultDesk:
    """Answers each request once: when the fault has happened, or when it can no longer happen."""

    def __init__(self, desk: RequestDesk, attempts: Attempts, context: RunContext) -> None:
        self._desk = desk
        self._attempts = attempts
        self._context = context
        self._slot_kills: list[_SlotKill] = []  # requested, while the slot is alive
        self._driver_kills: list[_DriverKill] = []

    # Requests.

    def kill_slot(self, command: KillSlot) -> None:
        host, slot = self._attempts.host, command.slot
        pid = None if host is None else host.pid_of(slot)
        is_now = command.moment is KillMoment.NOW
        if not is_now and self._desk.was_taken_up(command.request_id):
            message = f"The driver ended before slot {slot} came to {command.moment.value!r}."
            self._desk.answer(command.request_id, RequestOutcome.FAILED, message)
        elif host is None or pid is None:
            self._reject_slot(command.request_id, slot)
        else:
            until_ms = math.inf if is_now else self._until_ms(command.within_s)
            is_first = command.moment.is_of_replacement
            attempt = None if is_first else host.attempt
            self._slot_kills.append(_SlotKill(command, attempt, pid, until_ms))
            host.kill(slot, KillMoment.NOW if is_first else command.moment, command.within_s)

    def kill_driver(self, command: KillDriver) -> None:
        if self._desk.was_taken_up(command.request_id):
            message = "The driver that was to be killed is dead."
            self._desk.answer(command.request_id, RequestOutcome.SUCCEEDED, message)
            return
        host, slot = self._attempts.host, command.slot
        if slot is not None and (host is None or host.pid_of(slot) is None):
            self._reject_slot(command.request_id, slot)
            return
        self._driver_kills.append(_DriverKill(command, self._until_ms(command.within_s)))
        self._context.faults.kill_at(FaultPoint(command.moment.value), command.within_s)
        if host is not None and slot is not None:
            host.kill(slot, KillMoment.NOW, command.within_s)

    def slow_slot(self, command: SlowSlot) -> None:
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

    def on_slot_arriving(self, event: SlotArrived) -> None:
        """Call before the slot gets its deployment: it may be the replacement that is to die."""
        host, hello = self._attempts.host, event.hello
        if host is None or event.attempt != host.attempt:
            return
        for kill in self._taken(lambda k: (k.attempt, k.command.slot) == (None, hello.slot)):
            self._slot_kills.append(replace(kill, attempt=event.attempt, pid=hello.pid))
            die = Die(moment=kill.command.moment, within_s=self._left_s(kill))
            with contextlib.suppress(OSError):  # the slot is gone; its reader notices that
                event.link.send(die)

    # Outcomes.

    def on_slot_gone(self, attempt: Attempt, slot: int) -> None:
        """Answers the kills of this slot: it is dead, as requested."""
        for kill in self._taken(lambda k: (k.attempt, k.command.slot) == (attempt, slot)):
            message = f"Slot {slot} (pid {kill.pid}) is dead."
            self._desk.answer(kill.command.request_id, RequestOutcome.SUCCEEDED, message)

    def on_time(self) -> None:
        """Answers kills whose attempt ended for another reason, or whose moment did not come."""
        if not self._slot_kills and not self._driver_kills:
            return
        host = self._attempts.host
        living = (None, host.attempt if host else None)
        for kill in self._taken(lambda k: k.attempt not in living):
            if kill.command.moment is KillMoment.NOW:
                outcome, message = RequestOutcome.SUCCEEDED, f"Process {kill.pid} is dead."
            else:
                outcome = RequestOutcome.FAILED
                where = f"slot {kill.command.slot} came to {kill.command.moment.value!r}"
                message = f"Attempt {kill.attempt} ended before {where}."
            self._desk.answer(kill.command.request_id, outcome, message)
        self._call_off(self._context.clock.monotonic_ms())

    def _call_off(self, now_ms: float) -> None:
        for kill in self._taken(lambda k: now_ms >= k.until_ms):
            self._say_called_off(f"Slot {kill.command.slot}", kill.command)
        for due in [kill for kill in self._driver_kills if now_ms >= kill.until_ms]:
            self._driver_kills.remove(due)
            self._say_called_off("The driver", due.command)

    def _say_called_off(self, who: str, command: KillSlot | KillDriver) -> None:
        where = f"did not come to {command.moment.value!r} within {command.within_s:g} s"
        message = f"{who} {where}; it is not killed any more."
        self._desk.answer(command.request_id, RequestOutcome.FAILED, message)

    def _until_ms(self, within_s: float) -> float:
        """Adds a heartbeat timeout: the request, or the notice of the end, may come that late."""
        settings = self._context.settings
        return self._context.clock.monotonic_ms() + 1000 * within_s + settings.heartbeat.timeout_ms

    def _left_s(self, kill: _SlotKill) -> float:
        now_ms = self._context.clock.monotonic_ms() + self._context.settings.heartbeat.timeout_ms
        return max(0.0, (kill.until_ms - now_ms) / 1000)

    def _taken(self, holds: Callable[[_SlotKill], bool]) -> list[_SlotKill]:
        """Removes and returns the waiting kills for which `holds` is true."""
        found = [kill for kill in self._slot_kills if holds(kill)]
        self._slot_kills = [kill for kill in self._slot_kills if kill not in found]
        return found

    def _reject_slot(self, request_id: RequestId, slot: int) -> None:
        last = self._context.slot_count - 1
        message = f"There is no running slot {slot}; slots are 0 to {last}."
        self._desk.answer(request_id, RequestOutcome.REJECTED, message)


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
        failures: Failures,
        undo: StartUndo,
    ) -> None:
        self._desk = desk
        self._failures = failures
        self._undo = undo
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
            case RetryNow():
                self._retry_now(command)
            case UndoStart():
                self._undo_start(command)
            case VerifyPoints():
                self._verifier.on_request(command.request_id)
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

    def _retry_now(self, command: RetryNow) -> None:
        if self._failures.retry_now():
            message = f"Attempt {self._attempts.newest + 1} starts now."
            self._desk.answer(command.request_id, RequestOutcome.SUCCEEDED, message)
            return
        status = self._record.status
        message = f"No restart waits: attempt {self._attempts.newest} is {status.value}."
        self._desk.answer(command.request_id, RequestOutcome.REJECTED, message)

    def _undo_start(self, command: UndoStart) -> None:
        """The answer comes when the output is back, or when the run has ended otherwise."""
        try:
            problem = self._undo.problem()
        except Rejected as refusal:
            problem = str(refusal)
        if problem:
            self._desk.answer(command.request_id, RequestOutcome.REJECTED, problem)
            return
        self._undo.on_request(command)
        self._failures.undo_start()

    def _change_settings(self, command: ChangeSettings) -> None:
        """Emits the event first, because a later driver of the run takes the settings from it."""
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
        self._failures.on_settings(parse_settings(given))
        now = ", ".join(f"{key} = {value}" for key, value in command.settings.items())
        self._desk.answer(command.request_id, RequestOutcome.SUCCEEDED, f"From now on: {now}.")


def _savepoint(command: SavepointCommand) -> TriggerRequest:
    return TriggerRequest(
        CheckpointKind.SAVEPOINT, command.request_id, savepoint_format=command.format
    )
