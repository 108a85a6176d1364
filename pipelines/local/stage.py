"""The slots of one driver in its own process, and the door by which they come in."""

from collections import Counter
from collections.abc import Callable, Mapping

from pipelines.domain.ids import Attempt, Uid
from pipelines.domain.run import SlotNetworking
from pipelines.domain.settings import Heartbeat
from pipelines.local.slot import LocalNetwork, LocalSlot, Surroundings
from pipelines.runtime.master.job_events import (
    JobEvent,
    SlotArrived,
    SlotGone,
    SlotSpoke,
    StageEnded,
)
from pipelines.runtime.networking import SlotAddress


class LocalStages:
    """Implements `StageHost`. A stage ends with its first lost slot, as Spark's does."""

    def __init__(self, around: Surroundings, post: Callable[[JobEvent], None]) -> None:
        self._around = around
        self._post = post
        self._slots: list[LocalSlot] = []  # of the newest attempt
        self._network = LocalNetwork()
        self._attempt: Attempt | None = None  # None: no stage is open
        self._passed: Mapping[tuple[Uid, str], int] = {}  # by the newest slots, once they ended

    def statistics(self) -> Mapping[tuple[Uid, str], int]:
        """{(vertex, "in" or "out"): records} of the newest attempt, over all slots."""
        if not self._slots:
            return self._passed
        passed: Counter[tuple[Uid, str]] = Counter()
        for slot in self._slots:
            passed.update(slot.statistics())
        return passed

    def start(self, address: SlotAddress, parallelism: int) -> None:
        network = self._network = LocalNetwork()
        numbers = range(parallelism)
        self._slots = [LocalSlot(address, each, network, self._around) for each in numbers]
        self._attempt = address.attempt
        for slot in self._slots:
            self._post(SlotArrived(slot.attempt, slot.hello, slot))  # type: ignore[arg-type]

    def cancel(self, address: SlotAddress) -> None:
        if self._attempt == address.attempt:
            self._end("it was cancelled")

    def take_turn(self) -> bool:
        """One turn of each slot, and the delivery of what it said. False: all of them wait."""
        is_busy = False
        for slot in self._slots:
            is_busy = (not slot.is_dead and not slot.has_ended and slot.take_turn()) or is_busy
            while slot.outbox:
                self._post(SlotSpoke(slot.attempt, slot.number, slot.outbox.popleft()))
        return self._look() or is_busy

    def end(self) -> None:
        """The driver has ended, and its slots with it."""
        self._passed = self.statistics()
        self._network.close()
        for slot in self._slots:
            slot.die()
        self._slots = []

    def _look(self) -> bool:
        """Whether the stage has ended by now."""
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
    """Implements `ControlDoor`: slots need no socket."""

    def __init__(self, heartbeat: Heartbeat) -> None:
        self._heartbeat = heartbeat

    def open_for(self, attempt: Attempt) -> SlotAddress:
        return SlotAddress("local", 1, "local", attempt, self._heartbeat, SlotNetworking())

    def close(self) -> None:
        pass
