"""One slot of a simulated attempt: the real deployment, subtasks, reports and vigil, by turns.

Only what a process adds is simulated: threads take turns, a queue of frames is the control
connection, and `ProcessEnded` is the end of the process.
"""

import math
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NoReturn

import msgspec

from pipelines.domain.errors import InvariantViolated, ProtocolError
from pipelines.domain.faults import FaultPoint
from pipelines.runtime.control import (
    MASTER_DECODER,
    Aborted,
    Acknowledged,
    Beat,
    Begin,
    Completed,
    Deploy,
    Deployed,
    Die,
    FromMaster,
    Hello,
    Inject,
    Message,
    Restoring,
    Running,
)
from pipelines.runtime.networking import SlotAddress
from pipelines.runtime.slot.deployment import Deployment, built_pipeline, deploy
from pipelines.runtime.slot.subtask_reports import SubtaskReports, deliver
from pipelines.runtime.slot.vigil import Vigil
from pipelines.runtime.subtask.snapshots.restoring import RestoreMeter
from pipelines.runtime.subtask.subtask import Subtask
from tests.simulation.chores import Chores
from tests.simulation.circumstances import Circumstances, Dice
from tests.simulation.clock import SimulatedClock
from tests.simulation.wires import SlotWires

Turn = Callable[[], object]
SLOW_STEPS = 0.1
"""The probability that a slow subtask gets a turn that it could have."""


class ProcessEnded(BaseException):
    """Ends the simulated process that raises it: nothing happens in it afterwards."""


@dataclass(frozen=True)
class Surroundings:
    """The surroundings that all slots of a seed share."""

    clock: SimulatedClock
    rng: random.Random
    dice: Dice
    circumstances: Circumstances


class Slot:
    def __init__(
        self, address: SlotAddress, number: int, wires: SlotWires, around: Surroundings
    ) -> None:
        self.attempt = address.attempt
        self.number = number
        self.inbox: deque[bytes] = deque()
        self.outbox: deque[bytes] = deque()
        self.deployment: Deployment | None = None
        self.has_dialled = False
        self.is_dead = False
        self.is_cut_off = False  # its connection was closed, which it will notice
        self.heard_ms = around.clock.now_ms  # when its driver last heard it
        self.is_silent = False  # its connection stays open, but passes nothing on
        self.stopped_until_ms = 0.0
        self._around = around
        self._wires = wires
        self._uploads = Chores()
        self._meter = RestoreMeter()
        self.reports = SubtaskReports(self.say, self._reach)
        self._vigil = Vigil(around.clock, address.heartbeat)
        self._beat_ms = address.heartbeat.interval_ms
        self._beat_due_ms = around.clock.now_ms
        self._steps: dict[int, Turn] = {}  # of the subtasks that have begun and not ended
        self._turns: list[Turn] | None = None  # its possible turns, while they are known
        self._turns_until_ms = 0.0

    @property
    def is_over(self) -> bool:
        return self.is_dead or self.reports.have_all_ended

    # The master uses these as its connection.

    def send(self, message: Message) -> None:
        self.inbox.append(msgspec.json.encode(message))
        self._turns = None

    def close(self) -> None:
        self.is_cut_off = True

    # Turns.

    @property
    def is_stopped(self) -> bool:
        return self._around.clock.now_ms < self.stopped_until_ms

    def turns(self) -> list[Turn]:
        """Returns its possible turns; called before every turn of a run.

        They change by one of its own turns, by actions of others on it, and when their time comes.
        """
        now_ms = self._around.clock.now_ms
        if self._turns is None or now_ms >= self._turns_until_ms:
            self._turns, self._turns_until_ms = self._turns_at(now_ms)
        return self._turns

    def silence(self) -> None:
        """Keeps its connection open, but lets nothing through any more."""
        self.is_silent = self.has_dialled
        self._turns = None

    def stop(self, for_ms: float) -> None:
        """Stops it as SIGSTOP does; SIGCONT comes later."""
        self.stopped_until_ms = self._around.clock.now_ms + for_ms
        self._turns = None

    def die(self) -> None:
        """Ends the process; the kernel takes its resources back."""
        self.is_dead = True
        deployment, self.deployment = self.deployment, None
        if deployment is not None:
            deployment.close()

    def say(self, message: Message) -> None:
        if not self.is_dead:
            self.outbox.append(msgspec.json.encode(message))
            if isinstance(message, Acknowledged) and self._around.dice.strikes("repeat"):
                self.outbox.append(self.outbox[-1])

    def dial(self) -> Hello:
        self.has_dialled = True
        self.heard_ms = self._around.clock.now_ms
        return Hello(slot=self.number, pid=self.number + 1, host="simulated", data_port=1)

    def _turns_at(self, now_ms: float) -> tuple[list[Turn], float]:
        """Returns the turns, and the time until which no others come by themselves."""
        if self.is_over:
            return [], math.inf
        if self.is_stopped:
            return [], self.stopped_until_ms
        is_beat_due = now_ms >= self._beat_due_ms
        turns: list[Turn] = [partial(self._act, _nothing)] if is_beat_due else []
        if self.inbox and not self.is_silent:
            turns.append(partial(self._act, self._hear))
        if self._uploads.waiting:
            turns.append(partial(self._act, partial(self._uploads.do_one, self._around.rng)))
        turns += self._steps.values()
        return turns, math.inf if is_beat_due else self._beat_due_ms

    def _act(self, turn: Turn) -> None:
        self._turns = None
        try:
            self._beat_when_due()
            turn()
        except ProcessEnded:
            self.die()

    def _beat_when_due(self) -> None:
        """A slot has a thread for this, which also checks if the slot may go on."""
        now_ms = self._around.clock.now_ms
        if now_ms >= self._beat_due_ms:
            self._beat_due_ms = now_ms + self._beat_ms
            self._end_if_stale()
            self.say(Beat())

    def _hear(self) -> None:
        message = MASTER_DECODER.decode(self.inbox.popleft())
        self._vigil.on_heard()
        try:
            self._on_message(message)
        except Exception as error:  # as in a slot, the master learns of it
            self.reports.slot_failed(error)

    def _on_message(self, message: FromMaster) -> None:
        match message:
            case Deploy():
                self._deploy(message)
            case Begin():
                self._begin()
                self.say(Running())
            case Inject() | Completed() | Aborted():
                deliver(message, self._deployed())
            case Beat():
                pass
            case Die():
                self._end_process()

    def _deploy(self, message: Deploy) -> None:
        self._reach(FaultPoint.RESTORING)
        self.deployment = deploy(
            message,
            built_pipeline(message),
            attempt=self.attempt,
            subtask=self.number,
            network=self._wires,  # type: ignore[arg-type]
            uploads=self._uploads,  # type: ignore[arg-type]
            reporter=self.reports,
            clock=self._around.clock,
            meter=self._meter,
        )
        self.say(Restoring(progress=self._meter.progress()))
        self.reports.on_deployed(len(self.deployment.subtasks))
        self._reach(FaultPoint.RESTORED)
        self.say(Deployed())

    def _begin(self) -> None:
        slow_vertex = self._around.circumstances.slow_vertex
        for index, subtask in enumerate(self._deployed().subtasks):
            is_slow = subtask.place.vertex.uid == slow_vertex
            step = partial(self._step_slowly if is_slow else self._step, index, subtask)
            self._steps[index] = partial(self._act, step)

    def _deployed(self) -> Deployment:
        if self.deployment is None:
            raise InvariantViolated("a slot is deployed before any other message")
        return self.deployment

    def _step_slowly(self, index: int, subtask: Subtask) -> None:
        if not self._around.dice.is_faulty or self._around.rng.random() <= SLOW_STEPS:
            self._step(index, subtask)

    def _step(self, index: int, subtask: Subtask) -> None:
        if not subtask.take_turn():
            if self.is_dead:  # the subtask took that for a failure of its own
                raise ProcessEnded
            del self._steps[index]

    def _reach(self, point: FaultPoint) -> None:
        del point
        self._end_if_stale()
        if self._around.dice.strikes("kill at a point"):
            self._end_process()

    def _end_if_stale(self) -> None:
        objection = self._vigil.objection()
        if objection is not None:
            self._around.dice.seen["ended itself"] += 1
            self.reports.slot_failed(ProtocolError(f"Slot {self.number} ends: {objection}."))
            self._end_process()

    def _end_process(self) -> NoReturn:
        """Code that catches what this raises cannot send anything any more."""
        self.is_dead = True
        raise ProcessEnded


def _nothing() -> None:
    """Does nothing else, since a beat is all that the turn is for."""
