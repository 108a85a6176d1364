"""Simulated time, order and processes, under the real master, subtasks, channels and stores.

Nothing runs by itself: whoever holds the seed says who takes the next turn. A slot that is killed
never takes another one; a slot whose connection was closed may go on for a while, as a zombie does.
"""

import random
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import msgspec

from pipelines.channels.channel import ChannelClosed
from pipelines.channels.gate import Gate
from pipelines.channels.local import LocalOutput
from pipelines.domain.elements import Barrier
from pipelines.domain.faults import FaultPoint
from pipelines.domain.ids import Attempt, ChannelId, CheckpointId
from pipelines.domain.network import SlotNetworking
from pipelines.domain.phases import SubtaskPhases
from pipelines.domain.settings import Heartbeat
from pipelines.domain.snapshots import SubtaskSnapshot
from pipelines.domain.status import SavepointFormat
from pipelines.runtime.chain_place import ChainPlace
from pipelines.runtime.checkpoint_locations import CheckpointLocations, Upload
from pipelines.runtime.control import (
    MASTER_DECODER,
    SLOT_DECODER,
    Aborted,
    Acknowledged,
    Begin,
    Committed,
    Completed,
    Declined,
    Deploy,
    Deployed,
    Ended,
    Failed,
    Hello,
    Inject,
    Message,
    Running,
    SourcesEnded,
)
from pipelines.runtime.deployment import Deployment, deploy
from pipelines.runtime.job_events import JobEvent, SlotArrived, SlotGone, SlotSpoke, StageEnded
from pipelines.runtime.mailbox import CheckpointAborted, CheckpointCompleted, InjectBarrier
from pipelines.runtime.operator_failure import is_fatal
from pipelines.runtime.slot import SlotAddress
from pipelines.runtime.subtask import Subtask
from pipelines.runtime.subtask_reporter import failure_reason

Post = Callable[[JobEvent], None]


class SimulatedClock:
    def __init__(self) -> None:
        self.now_ms = 1_000.0

    def monotonic_ms(self) -> float:
        return self.now_ms

    def wall_ms(self) -> int:
        return 1_700_000_000_000 + int(self.now_ms)


class Chores:
    """An executor whose work is done when its turn comes, or when somebody waits for it."""

    def __init__(self) -> None:
        self.waiting: deque[Chore] = deque()

    def submit(self, work: Callable[..., Any], *arguments: Any) -> "Chore":
        chore = Chore(lambda: work(*arguments))
        self.waiting.append(chore)
        return chore

    def shutdown(self, wait: bool = True) -> None:
        while self.waiting:
            self.waiting.popleft().do()

    def do_one(self, rng: random.Random) -> bool:
        """One of those that wait; threads of a pool do not keep their order."""
        if not self.waiting:
            return False
        index = rng.randrange(min(2, len(self.waiting)))
        chore = self.waiting[index]
        del self.waiting[index]
        chore.do()
        return True


class Chore(Future):  # type: ignore[type-arg]
    def __init__(self, work: Callable[[], Any]) -> None:
        super().__init__()
        self._work = work

    def do(self) -> None:
        if self.done():
            return
        try:
            self.set_result(self._work())
        except Exception as error:  # as an executor does: whoever asks for the result gets it
            self.set_exception(error)

    def result(self, timeout: float | None = None) -> Any:
        self.do()
        return super().result(timeout)


class Wires:
    """The channels of one attempt; implements what `deploy` needs of a network."""

    def __init__(self) -> None:
        self._outputs: dict[ChannelId, LocalOutput] = {}
        self._gates: list[Gate] = []

    def output(self, channel: ChannelId, target: int) -> LocalOutput:
        output = LocalOutput(channel)
        self._outputs[channel] = output
        self._bind(channel)
        return output

    def register_gate(self, gate: Gate) -> None:
        self._gates.append(gate)
        for channel in gate.channels:
            self._bind(channel)

    def close(self) -> None:
        for gate in self._gates:
            gate.close()

    def _bind(self, channel: ChannelId) -> None:
        gate = next((g for g in self._gates if channel in g.channels), None)
        if gate is not None and channel in self._outputs:
            self._outputs[channel].on_gate(gate)


@dataclass
class Slot:
    """One process of an attempt: the messages it gets, and the subtasks that it hosts."""

    attempt: Attempt
    number: int
    clock: SimulatedClock
    wires: Wires
    rng: random.Random
    inbox: deque[bytes] = field(default_factory=deque)
    outbox: deque[bytes] = field(default_factory=deque)
    uploads: Chores = field(default_factory=Chores)
    deployment: Deployment | None = None
    has_begun: bool = False
    is_dead: bool = False
    is_cut_off: bool = False  # its connection was closed; it will notice
    has_ended: bool = False
    ended: set[int] = field(default_factory=set)
    locations: CheckpointLocations = field(default_factory=CheckpointLocations)

    # What the master uses as its connection.

    def send(self, message: Message) -> None:
        self.inbox.append(msgspec.json.encode(message))

    def close(self) -> None:
        self.is_cut_off = True

    # Turns.

    def turns(self) -> Iterator[Callable[[], object]]:
        if self.is_dead or self.has_ended:
            return
        if self.inbox:
            yield self.hear
        if self.uploads.waiting:
            yield lambda: self.uploads.do_one(self.rng)
        if self.deployment is not None and self.has_begun:
            for index, subtask in enumerate(self.deployment.subtasks):
                if index not in self.ended:
                    yield lambda i=index, s=subtask: self.step(i, s)

    def hear(self) -> None:
        message = MASTER_DECODER.decode(self.inbox.popleft())
        try:
            self._on_message(message)
        except Exception as error:  # as a slot does: the master hears of it
            self._report(error)

    def step(self, index: int, subtask: Subtask) -> None:
        try:
            if not subtask.is_done():
                subtask.step()
                return
            subtask.chain.close()
        except ChannelClosed:
            self.ended.add(index)
            return
        except Exception as error:  # as a subtask's thread does
            self.ended.add(index)
            self._report(error)
            return
        self.ended.add(index)
        if self.deployment is not None and len(self.ended) == len(self.deployment.subtasks):
            self.has_ended = True
            self.say(Ended())

    def say(self, message: Message) -> None:
        self.outbox.append(msgspec.json.encode(message))

    def _on_message(self, message: Any) -> None:
        match message:
            case Deploy():
                self.deployment = deploy(
                    message,
                    attempt=self.attempt,
                    subtask=self.number,
                    network=self.wires,  # type: ignore[arg-type]
                    uploads=self.uploads,  # type: ignore[arg-type]
                    reporter=self,
                    clock=self.clock,
                )
                self.say(Deployed())
            case Begin():
                self.has_begun = True
                self.say(Running())
            case Inject():
                self._inject(message)
            case Completed(checkpoint_id=checkpoint_id):
                self._tell(CheckpointCompleted(checkpoint_id))
            case Aborted(checkpoint_id=checkpoint_id):
                self.locations.on_over(checkpoint_id)
                self._tell(CheckpointAborted(checkpoint_id))

    def _inject(self, message: Inject) -> None:
        self.locations.on_triggered(message.checkpoint_id, message.location)
        barrier = Barrier(
            message.checkpoint_id,
            message.trigger_ms,
            is_savepoint=message.savepoint_format is not None,
            is_native=message.savepoint_format is SavepointFormat.NATIVE,
            is_final=message.is_final,
            confirmed_id=message.confirmed_id,
        )
        for subtask in self.deployment.sources if self.deployment else ():
            subtask.mailbox.post(InjectBarrier(barrier, message.drains))

    def _tell(self, mail: CheckpointCompleted | CheckpointAborted) -> None:
        for subtask in self.deployment.subtasks if self.deployment else ():
            subtask.mailbox.post(mail)

    def _report(self, error: Exception) -> None:
        cause = str(error) or type(error).__name__
        self.say(
            Failed(vertex=None, subtask=None, cause=cause, detail="", is_fatal=is_fatal(error))
        )

    # What subtasks report; implements SubtaskReporter.

    def acknowledged(
        self, checkpoint_id: CheckpointId, snapshot: SubtaskSnapshot, phases: SubtaskPhases
    ) -> None:
        head = snapshot.operators[0]
        self.say(
            Acknowledged(
                checkpoint_id=checkpoint_id,
                snapshot=snapshot,
                phases=phases,
                source_records=head.counters.get("records_read", 0),
                watermark_ms=head.watermark_ms,
            )
        )

    def declined(self, place: ChainPlace, checkpoint_id: CheckpointId, error: Exception) -> None:
        self.say(
            Declined(
                checkpoint_id=checkpoint_id,
                vertex=place.vertex.uid,
                subtask=place.subtask,
                reason=failure_reason(error),
                message=str(error),
            )
        )

    def committed(self, place: ChainPlace, checkpoint_id: CheckpointId) -> None:
        self.say(
            Committed(checkpoint_id=checkpoint_id, vertex=place.vertex.uid, subtask=place.subtask)
        )

    def sources_ended(self, place: ChainPlace) -> None:
        self.say(SourcesEnded(vertex=place.vertex.uid, subtask=place.subtask))

    def reach(self, point: FaultPoint) -> None:
        pass  # a kill strikes between any two turns

    def location_of(self, checkpoint_id: CheckpointId) -> str | None:
        return self.locations.of(checkpoint_id)

    def once_heard_of(self, checkpoint_id: CheckpointId, upload: Upload) -> None:
        self.locations.once_heard_of(checkpoint_id, upload)


class Stages:
    """Implements `StageHost`: the slots of all attempts, living and dead."""

    def __init__(self, clock: SimulatedClock, rng: random.Random, post: Post) -> None:
        self._clock, self._rng, self._post = clock, rng, post
        self.slots: list[Slot] = []
        self.is_driver_dead = False
        self.zombie_turns = 0  # of slots that are over and have not noticed

    def start(self, address: SlotAddress, parallelism: int) -> None:
        wires = Wires()
        for number in range(parallelism):
            slot = Slot(address.attempt, number, self._clock, wires, self._rng)
            self.slots.append(slot)
            hello = Hello(slot=number, pid=number + 1, host="simulated", data_port=1)
            self._post(SlotArrived(address.attempt, hello, slot))  # type: ignore[arg-type]

    def cancel(self, address: SlotAddress) -> None:
        pass  # its slots end with their connections

    def kill(self, slot: Slot) -> None:
        """Process and connections end at once; the stage ends with it."""
        slot.is_dead = True
        self._tell(SlotGone(slot.attempt, slot.number, "killed"))
        self._tell(StageEnded(slot.attempt, "a slot was killed"))

    def turns(self) -> Iterator[Callable[[], object]]:
        for slot in self.slots:
            if slot.is_dead:
                continue
            if slot.is_cut_off or self.is_driver_dead:
                yield from (lambda t=turn: self._act_late(t) for turn in slot.turns())
                yield lambda s=slot: self._notice(s)
                continue
            yield from slot.turns()
            if slot.outbox:
                yield lambda s=slot: self._deliver(s)

    def _act_late(self, turn: Callable[[], object]) -> None:
        self.zombie_turns += 1
        turn()

    def _deliver(self, slot: Slot) -> None:
        message = SLOT_DECODER.decode(slot.outbox.popleft())
        self._tell(SlotSpoke(slot.attempt, slot.number, message))

    def _notice(self, slot: Slot) -> None:
        """Seldom: a process that is slow to end is the zombie that must not change anything."""
        if self._rng.random() < 0.2:
            slot.is_dead = True
            if all(s.is_dead or s.has_ended for s in self.slots if s.attempt == slot.attempt):
                self._tell(StageEnded(slot.attempt, "its slots have ended"))

    def _tell(self, event: JobEvent) -> None:
        if not self.is_driver_dead:
            self._post(event)


class Door:
    """Implements `ControlDoor`: slots need no socket here."""

    def __init__(self, post: Post) -> None:
        del post

    def open_for(self, attempt: Attempt) -> SlotAddress:
        return SlotAddress("simulated", 1, "token", attempt, Heartbeat(), SlotNetworking())

    def close(self) -> None:
        pass
