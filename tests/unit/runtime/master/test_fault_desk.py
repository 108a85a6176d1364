"""A kill that waits for its moment happens in time or is called off; the desk says so once."""

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import msgspec
import pytest

from pipelines.domain.commands import KillDriver, KillSlot
from pipelines.domain.events import Event, RequestEnded
from pipelines.domain.faults import FaultPoint
from pipelines.domain.ids import Attempt, RequestId
from pipelines.domain.settings import Heartbeat
from pipelines.domain.status import DriverKillMoment, KillMoment, RequestOutcome
from pipelines.runtime.control import Die, Hello
from pipelines.runtime.master.job_events import SlotArrived
from pipelines.runtime.master.requests.command_desk import FaultDesk
from pipelines.runtime.master.requests.request_desk import RequestDesk
from tests.unit.runtime.fakes import ManualClock
from tests.unit.runtime.recording_attempt import RecordingAttempt

if TYPE_CHECKING:
    from pipelines.bus.inbox import Inbox
    from pipelines.runtime.master.attempt.attempts import Attempts
    from pipelines.runtime.master.run_context import RunContext

ASKED = {"request_id": RequestId("kill"), "requested_by": "ann", "reason": "drill"}
KILL = KillSlot(slot=1, moment=KillMoment.ALIGNING, within_s=220.0, **ASKED)
KILL_DRIVER = KillDriver(moment=DriverKillMoment.PUBLISHED, within_s=220.0, **ASKED)
HEARTBEAT_TIMEOUT_MS = 50_000
CALLED_OFF_MS = 220_000 + HEARTBEAT_TIMEOUT_MS
KILL_TWICE = msgspec.structs.replace(KILL, moment=KillMoment.OPENED)
FIRST, SECOND = Attempt(1), Attempt(2)


class LivingSlots(RecordingAttempt):
    """An attempt of two slots, one of them alive on another machine."""

    def __init__(self) -> None:
        super().__init__(2)
        hello = SimpleNamespace(host="far away", pid=101)
        link = SimpleNamespace(send=self.messages.append)
        self._slots[1] = cast("Any", SimpleNamespace(hello=hello, link=link))


class Desk:
    """A fault desk. `taken_up` has the requests that an earlier driver accepted."""

    def __init__(self, *taken_up: str) -> None:
        self.clock, self.slots = ManualClock(), LivingSlots()
        self.attempts = SimpleNamespace(host=self.slots)
        self.armed: list[tuple[FaultPoint, float]] = []
        self._told: list[Event] = []
        parts = SimpleNamespace(
            clock=self.clock,
            settings=SimpleNamespace(heartbeat=Heartbeat(timeout_ms=HEARTBEAT_TIMEOUT_MS)),
            slot_count=2,
            faults=SimpleNamespace(kill_at=lambda *given: self.armed.append(given)),
        )
        inbox = SimpleNamespace(done=lambda _: None, was_taken_up=taken_up.__contains__)
        self._requests = RequestDesk(cast("Inbox", inbox), self._told.append, lambda _: None)
        self.faults = FaultDesk(
            self._requests, cast("Attempts", self.attempts), cast("RunContext", parts)
        )

    def ask(self, command: KillSlot | KillDriver) -> None:
        self._requests.accept(command)
        if isinstance(command, KillSlot):
            self.faults.kill_slot(command)
        else:
            self.faults.kill_driver(command)

    def replace_slots(self) -> None:
        """Ends the first attempt and waits for the slots of the second."""
        self.faults.on_slot_gone(FIRST, 1)
        self.attempts.host = SimpleNamespace(attempt=SECOND)

    def arrive(self, slot: int, attempt: Attempt = SECOND) -> list[object]:
        """Lets a slot arrive. Returns the first messages that it gets."""
        told: list[object] = []
        hello = Hello(slot=slot, pid=200 + slot, host="far away", data_port=1)
        link = cast("Any", SimpleNamespace(send=told.append))
        self.faults.on_slot_arriving(SlotArrived(attempt, hello, link))
        return told

    def pass_time(self, milliseconds: float) -> None:
        self.clock.now_ms += milliseconds
        self.faults.on_time()

    @property
    def answers(self) -> list[tuple[RequestOutcome, str]]:
        ended = [event for event in self._told if isinstance(event, RequestEnded)]
        return [(event.outcome, event.message) for event in ended]


def test_a_kill_is_called_off_once_if_the_slot_does_not_align_in_time() -> None:
    desk = Desk()

    desk.ask(KILL)
    assert desk.slots.of(Die) == [Die(moment=KillMoment.ALIGNING, within_s=220.0)]
    desk.pass_time(CALLED_OFF_MS - 1)
    assert desk.answers == [], "it may have heard of it late"
    desk.pass_time(1)
    desk.faults.on_slot_gone(desk.slots.attempt, 1)

    message = "Slot 1 did not come to 'aligning' within 220 s; it is not killed any more."
    assert desk.answers == [(RequestOutcome.FAILED, message)]


def test_a_kill_that_succeeded_in_time_is_not_called_off_later() -> None:
    desk = Desk()

    desk.ask(KILL)
    desk.faults.on_slot_gone(desk.slots.attempt, 1)
    desk.pass_time(CALLED_OFF_MS)

    assert desk.answers == [(RequestOutcome.SUCCEEDED, "Slot 1 (pid 101) is dead.")]


def test_the_immediate_kill_of_a_slot_has_no_time_limit() -> None:
    desk = Desk()

    desk.ask(msgspec.structs.replace(KILL, moment=KillMoment.NOW))
    desk.pass_time(10 * CALLED_OFF_MS)

    assert desk.answers == []


def test_the_end_of_the_attempt_calls_off_the_kill_of_a_slot() -> None:
    desk = Desk()

    desk.ask(KILL)
    desk.attempts.host = None
    desk.pass_time(0)

    message = "Attempt 1 ended before slot 1 came to 'aligning'."
    assert desk.answers == [(RequestOutcome.FAILED, message)]


def test_a_kill_is_called_off_once_if_the_driver_does_not_publish_in_time() -> None:
    desk = Desk()

    desk.ask(KILL_DRIVER)
    assert desk.armed == [(FaultPoint.PUBLISHED, 220.0)]
    desk.pass_time(CALLED_OFF_MS - 1)
    assert desk.answers == []
    desk.pass_time(1)
    desk.pass_time(CALLED_OFF_MS)

    message = "The driver did not come to 'published' within 220 s; it is not killed any more."
    assert desk.answers == [(RequestOutcome.FAILED, message)]


def test_a_slot_is_killed_so_that_the_driver_can_be_killed_while_it_recovers() -> None:
    desk = Desk()
    kill = {"moment": DriverKillMoment.REWINDING, "slot": 1}

    desk.ask(msgspec.structs.replace(KILL_DRIVER, **kill))

    assert desk.armed == [(FaultPoint.REWINDING, 220.0)]
    assert desk.slots.of(Die) == [Die(moment=KillMoment.NOW, within_s=220.0)]
    assert desk.answers == []


def test_a_driver_kill_that_names_no_running_slot_is_rejected() -> None:
    desk = Desk()

    desk.ask(msgspec.structs.replace(KILL_DRIVER, slot=0))

    message = "There is no running slot 0; slots are 0 to 1."
    assert desk.answers == [(RequestOutcome.REJECTED, message)]
    assert desk.armed == []


def test_a_slot_is_killed_so_that_its_replacement_can_be_killed_in_its_restore() -> None:
    desk = Desk()

    desk.ask(KILL_TWICE)
    assert desk.slots.of(Die) == [Die(moment=KillMoment.NOW, within_s=220.0)]
    desk.replace_slots()
    desk.pass_time(20_000)
    assert desk.answers == [], "the replacement still has to die"
    assert desk.arrive(0) == []
    assert desk.arrive(1, FIRST) == [], "it comes too late, and dies of that"
    assert desk.arrive(1) == [Die(moment=KillMoment.OPENED, within_s=200.0)]
    desk.faults.on_slot_gone(SECOND, 1)

    assert desk.answers == [(RequestOutcome.SUCCEEDED, "Slot 1 (pid 201) is dead.")]
    assert desk.arrive(1) == []


def test_a_kill_is_called_off_once_if_the_replacement_restores_too_late() -> None:
    desk = Desk()

    desk.ask(KILL_TWICE)
    desk.replace_slots()
    desk.pass_time(CALLED_OFF_MS - 1)
    assert desk.arrive(1) == [Die(moment=KillMoment.OPENED, within_s=0.0)]
    desk.pass_time(1)

    message = "Slot 1 did not come to 'opened' within 220 s; it is not killed any more."
    assert desk.answers == [(RequestOutcome.FAILED, message)]


def test_the_end_of_the_attempt_calls_off_the_kill_of_a_replacement() -> None:
    desk = Desk()

    desk.ask(KILL_TWICE)
    desk.replace_slots()
    desk.arrive(1)
    desk.attempts.host = None
    desk.pass_time(0)

    message = "Attempt 2 ended before slot 1 came to 'opened'."
    assert desk.answers == [(RequestOutcome.FAILED, message)]


@pytest.mark.parametrize(
    ("kill", "outcome", "message"),
    [
        (KILL, RequestOutcome.FAILED, "The driver ended before slot 1 came to 'aligning'."),
        (KILL_TWICE, RequestOutcome.FAILED, "The driver ended before slot 1 came to 'opened'."),
        (KILL_DRIVER, RequestOutcome.SUCCEEDED, "The driver that was to be killed is dead."),
    ],
    ids=["a slot", "a slot and its replacement", "the driver"],
)
def test_a_kill_accepted_by_an_earlier_driver_is_answered_but_not_repeated(
    kill: KillSlot | KillDriver, outcome: RequestOutcome, message: str
) -> None:
    desk = Desk("kill")

    desk.ask(kill)
    desk.pass_time(CALLED_OFF_MS)

    assert desk.answers == [(outcome, message)]
    assert desk.armed == []
    assert desk.slots.messages == []
