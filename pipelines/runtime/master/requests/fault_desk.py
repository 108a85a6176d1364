"""Carries out the faults that people request: kills of a slot or the driver, slow storage.

A kill waits for its moment no longer than requested. The process that is to die gives up by its own
clock (`runtime.faults`); once that is certain, the request has failed. At most one driver carries
out a kill: a successor answers it.
"""

import contextlib
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from pipelines.domain.commands import KillDriver, KillSlot, SlowSlot
from pipelines.domain.faults import FaultPoint
from pipelines.domain.ids import Attempt, RequestId
from pipelines.domain.status import KillMoment, RequestOutcome
from pipelines.runtime.control import Die, SlowUploads
from pipelines.runtime.master.attempt.attempts import Attempts
from pipelines.runtime.master.job_events import SlotArrived
from pipelines.runtime.master.requests.request_desk import RequestDesk
from pipelines.runtime.master.run_context import RunContext


@dataclass(frozen=True, slots=True)
class _SlotKill:
    command: KillSlot
    attempt: Attempt | None  # None: of its replacement, which has not arrived
    pid: int
    until_ms: float  # monotonic: after this it can no longer happen


@dataclass(frozen=True, slots=True)
class _DriverKill:
    command: KillDriver
    until_ms: float


class FaultDesk:
    """Each request gets one answer: when it has happened, or when it can no longer happen."""

    def __init__(self, desk: RequestDesk, attempts: Attempts, context: RunContext) -> None:
        self._desk = desk
        self._attempts = attempts
        self._context = context
        self._slot_kills: list[_SlotKill] = []  # requested, and the slot still lives
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
        """Before its deployment is sent: it may be the replacement that is to die."""
        host, hello = self._attempts.host, event.hello
        if host is None or event.attempt != host.attempt:
            return
        for kill in self._taken(lambda k: (k.attempt, k.command.slot) == (None, hello.slot)):
            self._slot_kills.append(replace(kill, attempt=event.attempt, pid=hello.pid))
            die = Die(moment=kill.command.moment, within_s=self._left_s(kill))
            with contextlib.suppress(OSError):  # it is gone, as its reader notices
                event.link.send(die)

    # Outcomes.

    def on_slot_gone(self, attempt: Attempt, slot: int) -> None:
        """The slot's end is what these requests wanted."""
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
        """Allows a heartbeat timeout: a slot may hear of it, or its end be noticed, that late."""
        settings = self._context.settings
        return self._context.clock.monotonic_ms() + 1000 * within_s + settings.heartbeat_timeout_ms

    def _left_s(self, kill: _SlotKill) -> float:
        now_ms = self._context.clock.monotonic_ms() + self._context.settings.heartbeat_timeout_ms
        return max(0.0, (kill.until_ms - now_ms) / 1000)

    def _taken(self, holds: Callable[[_SlotKill], bool]) -> list[_SlotKill]:
        """Removes and returns the waiting kills for which `holds` is true."""
        found = [kill for kill in self._slot_kills if holds(kill)]
        self._slot_kills = [kill for kill in self._slot_kills if kill not in found]
        return found

    def _reject_slot(self, request_id: RequestId, slot: int) -> None:
        last = self._context.spec.parallelism - 1
        message = f"There is no running slot {slot}; slots are 0 to {last}."
        self._desk.answer(request_id, RequestOutcome.REJECTED, message)
