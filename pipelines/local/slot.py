"""A slot without a process: the real deployment, subtasks and reports, in turns of one thread.

Queues take the place of its control connection, and `SlotKilled` that of the end of its process.
"""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import cast

from pipelines.channels.gate import Gate
from pipelines.channels.slot_network import LocalOutput, RegisteredGates
from pipelines.domain.errors import InvariantViolated
from pipelines.domain.faults import FaultPoint
from pipelines.domain.ids import Attempt, ChannelId, Uid
from pipelines.local.chores import Chores
from pipelines.local.times import LocalTime
from pipelines.runtime.control import (
    Aborted,
    Begin,
    Completed,
    Deploy,
    Deployed,
    Die,
    FromMaster,
    FromSlot,
    Hello,
    Inject,
    Message,
    Running,
)
from pipelines.runtime.networking import SlotAddress
from pipelines.runtime.slot.deployment import Deployment, deploy
from pipelines.runtime.slot.subtask_reports import SubtaskReports, deliver
from pipelines.runtime.subtask.snapshots.restore_meter import RestoreMeter
from pipelines.runtime.subtask.subtask import Step, Subtask
from pipelines.stream import Pipeline

RESULT_WAIT_MS = 1.0
"""The longest time for which the other slots wait for the requests of one."""


class ProcessKilled(BaseException):
    """Nothing after this happens in the process that it is raised in."""


Reach = Callable[[FaultPoint, Attempt], None]
"""Called at every named point; raises ProcessKilled where the process is to end."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What all slots of a run share. `rng` None: subtasks take turns in their order."""

    pipeline: Pipeline
    time: LocalTime
    reach: Reach
    rng: Random | None = None


class LocalNetwork:
    """The channels of one attempt; implements what a deployment needs of `SlotNetwork`."""

    def __init__(self) -> None:
        self._gates = RegisteredGates()

    def output(self, channel: ChannelId, target: int) -> LocalOutput:
        del target
        output = LocalOutput(channel)
        self._gates.bind(channel, output)
        return output

    def register_gate(self, gate: Gate) -> None:
        self._gates.register(gate)

    def close(self) -> None:
        self._gates.close()


class LocalSlot:
    """Guarantee: once it is dead it says nothing more, not even why."""

    def __init__(
        self, address: SlotAddress, number: int, network: LocalNetwork, around: Surroundings
    ) -> None:
        self.attempt = address.attempt
        self.number = number
        self.is_dead = False
        self.outbox: deque[FromSlot] = deque()
        self._inbox: deque[FromMaster] = deque()
        self._network = network
        self._around = around
        self._uploads = Chores()
        self._reports = SubtaskReports(self._say, self._reach)
        self._deployment: Deployment | None = None
        self._running: list[Subtask] = []

    @property
    def hello(self) -> Hello:
        return Hello(slot=self.number, pid=self.number + 1, host="local", data_port=1)

    @property
    def has_ended(self) -> bool:
        """Its work is done, and the master knows it."""
        return self._reports.have_all_ended

    def statistics(self) -> Mapping[tuple[Uid, str], int]:
        """{(vertex, "in" or "out"): records} since it was deployed."""
        subtasks = () if self._deployment is None else self._deployment.subtasks
        chains = [(each.place.vertex.uid, each.chain) for each in subtasks]
        taken = {(uid, "in"): chain.records_in for uid, chain in chains}
        return taken | {(uid, "out"): chain.records_out for uid, chain in chains}

    # What the master uses as its connection.

    @property
    def heard_ms(self) -> float:
        """A slot in the master's own process is never silent."""
        return self._around.time.monotonic_ms()

    def send(self, message: FromMaster) -> None:
        self._inbox.append(message)

    def close(self) -> None:
        self.die()

    # Turns.

    def take_turn(self) -> bool:
        """One thing of each kind. False: there was nothing to do."""
        try:
            is_busy = self._hear()
            is_busy = self._uploads.take_turn() or is_busy
            return self._step_all() or is_busy
        except ProcessKilled:
            self.die()
            return True

    def die(self) -> None:
        """The kernel takes back what it held."""
        self.is_dead = True
        self._running = []
        deployment, self._deployment = self._deployment, None
        if deployment is not None:
            deployment.close()

    def _hear(self) -> bool:
        if not self._inbox:
            return False
        message = self._inbox.popleft()
        try:
            self._obey(message)
        except Exception as error:  # as a slot does: the master hears of it
            self._reports.slot_failed(error)
        return True

    def _obey(self, message: FromMaster) -> None:
        match message:
            case Deploy():
                self._deploy(message)
            case Begin():
                self._running = list(self._deployed().subtasks)
                self._say(Running())
            case Inject() | Completed() | Aborted():
                deliver(message, self._deployed())
            case Die():
                self._end_process()

    def _deploy(self, message: Deploy) -> None:
        self._reach(FaultPoint.RESTORING)
        self._deployment = deploy(
            message,
            self._around.pipeline,
            attempt=self.attempt,
            subtask=self.number,
            network=self._network,  # type: ignore[arg-type]
            uploads=self._uploads,
            reporter=self._reports,
            clock=self._around.time,
            meter=RestoreMeter(),
        )
        self._reports.on_deployed(len(self._deployment.subtasks))
        self._reach(FaultPoint.RESTORED)
        self._say(Deployed())

    def _deployed(self) -> Deployment:
        if self._deployment is None:
            raise InvariantViolated("a slot is deployed before any other message")
        return self._deployment

    def _step_all(self) -> bool:
        is_busy = False
        order = list(self._running)
        if self._around.rng is not None:
            self._around.rng.shuffle(order)
        for subtask in order:
            self._around.time.on_turn()
            step = subtask.take_turn()
            if self.is_dead:  # the subtask took that for a failure of its own
                raise ProcessKilled
            if step is None:
                self._running.remove(subtask)
            is_busy = is_busy or step not in (Step.WAITS_FOR_INPUT, Step.WAITS_FOR_RESULTS)
        return is_busy or self._wait_for_results()

    def _wait_for_results(self) -> bool:
        """Requests run in threads of their own, in the machine's time. False: none is under way."""
        waiting = next((each for each in self._running if each.awaits_results), None)
        if waiting is not None:
            waiting.mailbox.wait(RESULT_WAIT_MS)
        return waiting is not None

    def _say(self, message: Message) -> None:
        if not self.is_dead:
            self.outbox.append(cast("FromSlot", message))

    def _reach(self, point: FaultPoint) -> None:
        try:
            self._around.reach(point, self.attempt)
        except ProcessKilled:
            self.is_dead = True
            raise

    def _end_process(self) -> None:
        self.is_dead = True
        raise ProcessKilled
