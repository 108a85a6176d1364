"""The slots of all attempts of one driver, living and dead, and the news of them on its way."""

from collections import deque
from collections.abc import Callable
from functools import partial

from pipelines.domain.ids import Attempt
from pipelines.domain.run import SlotNetworking
from pipelines.domain.settings import Heartbeat
from pipelines.runtime.control import SLOT_DECODER, Beat, PeerLost
from pipelines.runtime.master.job_events import (
    JobEvent,
    SlotArrived,
    SlotGone,
    SlotSpoke,
    StageEnded,
)
from pipelines.runtime.networking import SlotAddress
from tests.simulation.slots import Slot, Surroundings, Turn
from tests.simulation.wires import Wires

Post = Callable[[JobEvent], None]
NOTICES_ITS_END = 0.2
"""Rare: a process that is slow to end is the zombie that must not change anything."""


class Stages:
    """Implements `StageHost`."""

    def __init__(self, around: Surroundings, post: Post) -> None:
        self._around, self._post = around, post
        self._news: deque[JobEvent] = deque()
        self._wires: dict[Attempt, Wires] = {}
        self._ended: set[Attempt] = set()
        self._beat_ms = 0.0  # from one heartbeat of the driver to the next
        self._beat_due_ms = 0.0
        self.slots: list[Slot] = []  # without those whose end every other process knows
        self.is_driver_dead = False

    def start(self, address: SlotAddress, slot_count: int) -> None:
        self._beat_ms = address.heartbeat.interval_ms
        wires = self._wires[address.attempt] = Wires()
        for number in range(slot_count):
            self.slots.append(Slot(address, number, wires.of(number), self._around))

    def cancel(self, address: SlotAddress) -> None:
        pass  # its slots end with their connections

    def living(self) -> list[Slot]:
        return [slot for slot in self.slots if not slot.is_over]

    def turns(self) -> list[Turn]:
        turns: list[Turn] = [self._tell_news] if self._news else []
        if self._around.clock.now_ms >= self._beat_due_ms and not self.is_driver_dead:
            turns.append(self._beat)
        for slot in self.slots:
            if slot.is_dead:
                turns.append(partial(self._mourn, slot))
                turns += self._deliveries_of(slot)  # what it sent before is on its way
            elif slot.is_cut_off or self.is_driver_dead:
                turns += self._last_turns_of(slot)
            elif slot.has_dialled:
                turns += slot.turns()
                turns += self._deliveries_of(slot)
            else:
                turns.append(partial(self._let_in, slot))
        return turns

    def end(self) -> None:
        for slot in self.slots:
            slot.die()

    def _beat(self) -> None:
        """A driver has a thread for this."""
        self._beat_due_ms = self._around.clock.now_ms + self._beat_ms
        for slot in self.slots:
            if slot.has_dialled and not slot.is_cut_off:
                slot.send(Beat())

    def _last_turns_of(self, slot: Slot) -> list[Turn]:
        """Returns the turns of a slot whose driver died or gave it up, as it is about to notice."""
        if not slot.has_dialled:
            return [partial(self._end, slot)]
        late = [partial(self._act_late, turn) for turn in slot.turns()]
        return [*late, *self._deliveries_of(slot), partial(self._notice, slot)]

    def _deliveries_of(self, slot: Slot) -> list[Turn]:
        return [partial(self._deliver, slot)] if slot.outbox and not slot.is_silent else []

    def _let_in(self, slot: Slot) -> None:
        self._tell(SlotArrived(slot.attempt, slot.dial(), slot))  # type: ignore[arg-type]

    def _act_late(self, turn: Turn) -> None:
        self._around.dice.seen["zombie acted"] += 1
        turn()

    def _deliver(self, slot: Slot) -> None:
        """Delivers a few frames at once, as a connection does, even after the slot's end."""
        for _ in range(min(3, len(slot.outbox))):
            message = SLOT_DECODER.decode(slot.outbox.popleft())
            slot.heard_ms = self._around.clock.now_ms
            self._around.dice.seen["late message"] += slot.is_cut_off
            self._around.dice.seen["last message"] += slot.is_dead
            self._tell(SlotSpoke(slot.attempt, slot.number, message))

    def _notice(self, slot: Slot) -> None:
        if (
            not slot.is_silent
            and not slot.is_stopped
            and self._around.rng.random() < NOTICES_ITS_END
        ):
            self._end(slot)

    def _end(self, slot: Slot) -> None:
        slot.die()
        self.slots.remove(slot)
        self._end_stage_if_over(slot.attempt, "its slots have ended")

    def _mourn(self, slot: Slot) -> None:
        """Follows up a killed process, in any order.

        Its peers lose their channels, its driver learns of it, and its stage ends.
        """
        self.slots.remove(slot)
        self._wires[slot.attempt].cut(slot.number)
        for peer in self.slots:
            if peer.attempt == slot.attempt and not peer.is_over and peer.deployment is not None:
                peer.say(PeerLost(problem=f"slot {slot.number} is gone"))
        if slot.has_dialled and not slot.is_silent:
            self._news.append(SlotGone(slot.attempt, slot.number, "killed"))
        self._news.append(StageEnded(slot.attempt, "a slot was killed"))
        self._end_stage_if_over(slot.attempt, "a slot was killed")

    def _end_stage_if_over(self, attempt: Attempt, why: str) -> None:
        theirs = [slot for slot in self.slots if slot.attempt == attempt]
        if attempt not in self._ended and all(slot.is_over for slot in theirs):
            self._ended.add(attempt)
            self._news.append(StageEnded(attempt, why))

    def _tell_news(self) -> None:
        index = self._around.rng.randrange(len(self._news))
        event = self._news[index]
        del self._news[index]
        self._tell(event)

    def _tell(self, event: JobEvent) -> None:
        if not self.is_driver_dead:
            self._post(event)


class Door:
    """Implements `ControlDoor`: slots need no socket here."""

    def __init__(self, heartbeat: Heartbeat) -> None:
        self._heartbeat = heartbeat

    def open_for(self, attempt: Attempt) -> SlotAddress:
        return SlotAddress("simulated", 1, "token", attempt, self._heartbeat, SlotNetworking())

    def close(self) -> None:
        pass
