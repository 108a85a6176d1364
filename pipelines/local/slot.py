"""Slots in the driver's own process: real deployments, subtasks and reports, in one thread.

Queues replace a slot's control connection, and `ProcessKilled` replaces the end of its process.
`LocalDoor` lets the slots in. An executor replaces threads: it does each piece of work when its
turn comes. The time is that of the machine, or a time that advances with the work. The driver calls
`pass_time` when there is nothing to do.
"""

import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from random import Random
from typing import ParamSpec, Protocol, TypeVar, cast

from pipelines.channels.gate import Gate
from pipelines.channels.slot_network import LocalOutput, RegisteredGates
from pipelines.domain.clock import Clock
from pipelines.domain.errors import InvariantViolated
from pipelines.domain.faults import FaultPoint
from pipelines.domain.ids import Attempt, ChannelId, Uid
from pipelines.domain.run import SlotNetworking
from pipelines.domain.settings import Heartbeat
from pipelines.runtime.clocks import SystemClock
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
from pipelines.runtime.master.job_events import (
    JobEvent,
    SlotArrived,
    SlotGone,
    SlotSpoke,
    StageEnded,
)
from pipelines.runtime.networking import SlotAddress
from pipelines.runtime.slot.deployment import Deployment, deploy
from pipelines.runtime.slot.subtask_reports import SubtaskReports, deliver
from pipelines.runtime.subtask.snapshots.restoring import RestoreMeter
from pipelines.runtime.subtask.subtask import Step, Subtask
from pipelines.stream import Pipeline

IDLE_S = 0.001
TURN_MS = 0.2
IDLE_MS = 5.0


class LocalTime(Clock, Protocol):
    def on_turn(self) -> None:
        """A piece of work is done."""
        ...

    def pass_time(self) -> None:
        """There is nothing to do at the moment."""
        ...


class RealTime(SystemClock):
    """The machine's clocks."""

    def on_turn(self) -> None:
        pass

    def pass_time(self) -> None:
        time.sleep(IDLE_S)


class FastTime:
    """A time that advances with each turn, so that a run never waits and is always the same."""

    def __init__(self) -> None:
        self._now_ms = 1_000.0

    def monotonic_ms(self) -> float:
        return self._now_ms

    def wall_ms(self) -> int:
        return 1_700_000_000_000 + int(self._now_ms)

    def on_turn(self) -> None:
        self._now_ms += TURN_MS

    def pass_time(self) -> None:
        self._now_ms += IDLE_MS


Taken = ParamSpec("Taken")
Result = TypeVar("Result")


class Chores(Executor):
    """An executor without threads: `take_turn` does the work, so its caller must never wait."""

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], None]] = deque()

    def submit(
        self, work: Callable[Taken, Result], /, *given: Taken.args, **options: Taken.kwargs
    ) -> Future[Result]:
        future: Future[Result] = Future()

        def carry_out() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(work(*given, **options))
            except Exception as error:  # as any executor: the future raises it
                future.set_exception(error)

        self._waiting.append(carry_out)
        return future

    def take_turn(self) -> bool:
        """Does one piece of work. Returns False if there was none."""
        if not self._waiting:
            return False
        self._waiting.popleft()()
        return True

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        while wait and self.take_turn():
            pass


RESULT_WAIT_MS = 1.0
"""The longest time that the other slots wait for the requests of one slot."""


class ProcessKilled(BaseException):
    """The process in which this is raised does nothing more."""


Reach = Callable[[FaultPoint, Attempt], None]
"""Called at every named point; raises ProcessKilled if the process is to end there."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The parts that all slots of a run share. If `rng` is None, subtasks take turns in order."""

    pipeline: Pipeline
    time: LocalTime
    reach: Reach
    rng: Random | None = None


class LocalNetwork:
    """The channels of one attempt; implements the part of `SlotNetwork` that a deployment needs."""

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
    """Guarantee: once it is dead, it sends nothing more, not even the reason."""

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
        """True once its work is done and the master knows that."""
        return self._reports.have_all_ended

    def statistics(self) -> Mapping[tuple[Uid, str], int]:
        """Returns {(vertex, "in" or "out"): records} since the slot was deployed."""
        subtasks = () if self._deployment is None else self._deployment.subtasks
        chains = [(each.place.vertex.uid, each.chain) for each in subtasks]
        taken = {(uid, "in"): chain.records_in for uid, chain in chains}
        return taken | {(uid, "out"): chain.records_out for uid, chain in chains}

    # The methods that the master uses as a connection.

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
        """Does one thing of each kind. Returns False if there was nothing to do."""
        try:
            is_busy = self._hear()
            is_busy = self._uploads.take_turn() or is_busy
            return self._step_all() or is_busy
        except ProcessKilled:
            self.die()
            return True

    def die(self) -> None:
        """Releases what the slot holds, as the kernel does when a process ends."""
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
        except Exception as error:  # as a real slot does: it reports the error to the master
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
            if self.is_dead:  # the subtask took ProcessKilled for its own failure
                raise ProcessKilled
            if step is None:
                self._running.remove(subtask)
            is_busy = is_busy or step not in (Step.WAITS_FOR_INPUT, Step.WAITS_FOR_RESULTS)
        return is_busy or self._wait_for_results()

    def _wait_for_results(self) -> bool:
        """Waits for requests: they run in threads, in real time. Returns False if none runs."""
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


class LocalStages:
    """Implements `StageHost`. A stage ends with its first lost slot, as Spark's does."""

    def __init__(self, around: Surroundings, post: Callable[[JobEvent], None]) -> None:
        self._around = around
        self._post = post
        self._slots: list[LocalSlot] = []  # of the newest attempt
        self._network = LocalNetwork()
        self._attempt: Attempt | None = None  # None if no stage is open
        self._passed: Mapping[tuple[Uid, str], int] = {}  # of the newest slots, once they ended

    def statistics(self) -> Mapping[tuple[Uid, str], int]:
        """Returns {(vertex, "in" or "out"): records} of the newest attempt, over all slots."""
        if not self._slots:
            return self._passed
        passed: Counter[tuple[Uid, str]] = Counter()
        for slot in self._slots:
            passed.update(slot.statistics())
        return passed

    def start(self, address: SlotAddress, slot_count: int) -> None:
        network = self._network = LocalNetwork()
        numbers = range(slot_count)
        self._slots = [LocalSlot(address, each, network, self._around) for each in numbers]
        self._attempt = address.attempt
        for slot in self._slots:
            self._post(SlotArrived(slot.attempt, slot.hello, slot))  # type: ignore[arg-type]

    def cancel(self, address: SlotAddress) -> None:
        if self._attempt == address.attempt:
            self._end("it was cancelled")

    def take_turn(self) -> bool:
        """Takes a turn of each slot and delivers its messages. Returns False if all slots wait."""
        is_busy = False
        for slot in self._slots:
            is_busy = (not slot.is_dead and not slot.has_ended and slot.take_turn()) or is_busy
            while slot.outbox:
                self._post(SlotSpoke(slot.attempt, slot.number, slot.outbox.popleft()))
        return self._look() or is_busy

    def end(self) -> None:
        """Ends the slots."""
        self._passed = self.statistics()
        self._network.close()
        for slot in self._slots:
            slot.die()
        self._slots = []

    def _look(self) -> bool:
        """Ends the stage if a slot is dead or all have ended. Returns True if it ended just now."""
        if self._attempt is None:
            return False
        dead = next((slot for slot in self._slots if slot.is_dead), None)
        if dead is not None:
            self._post(SlotGone(dead.attempt, dead.number, "it was killed"))
            self._end(f"slot {dead.number} was killed")
        elif all(slot.has_ended for slot in self._slots):
            self._end("")
        return self._attempt is None

    def _end(self, problem: str) -> None:
        attempt, self._attempt = self._attempt, None
        self.end()
        if attempt is not None:
            self._post(StageEnded(attempt, problem))


class LocalDoor:
    """Implements `ControlDoor` for slots that need no socket."""

    def __init__(self, heartbeat: Heartbeat) -> None:
        self._heartbeat = heartbeat

    def open_for(self, attempt: Attempt) -> SlotAddress:
        return SlotAddress("local", 1, "local", attempt, self._heartbeat, SlotNetworking())

    def close(self) -> None:
        pass
