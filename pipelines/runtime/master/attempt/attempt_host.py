"""Tracks which slots of one attempt are connected, deployed and running, and ends them."""

import contextlib
import os
import signal
import socket
from dataclasses import dataclass
from enum import Enum, auto

from pipelines.domain.errors import check
from pipelines.domain.events import RestoreProgress
from pipelines.domain.ids import Attempt
from pipelines.domain.status import KillMoment
from pipelines.protocol.commit import CommitPermit
from pipelines.runtime.control import (
    Begin,
    Completed,
    ControlLink,
    Deploy,
    Die,
    FromSlot,
    Hello,
    Message,
    Peer,
)


class Readiness(Enum):
    """How far all slots have come."""

    CONNECTING = auto()
    DEPLOYING = auto()
    BEGINNING = auto()
    RUNNING = auto()


@dataclass(slots=True)
class _Slot:
    hello: Hello
    link: ControlLink[FromSlot]
    progress: RestoreProgress | None = None  # of its deployment, as last reported
    is_deployed: bool = False
    is_running: bool = False
    has_ended: bool = False


class AttemptHost:
    """Guarantee: after `end` no slot of this attempt can speak, and each exits by itself."""

    def __init__(self, attempt: Attempt, slot_count: int, now_ms: float) -> None:
        self.attempt = attempt
        self.moved_ms = now_ms
        """The monotonic time of the attempt's last progress towards running."""
        self._slot_count = slot_count
        self._slots: dict[int, _Slot] = {}

    @property
    def readiness(self) -> Readiness:
        slots = self._slots.values()
        if len(slots) < self._slot_count:
            return Readiness.CONNECTING
        if not all(slot.is_deployed for slot in slots):
            return Readiness.DEPLOYING
        return Readiness.RUNNING if all(s.is_running for s in slots) else Readiness.BEGINNING

    @property
    def connected_count(self) -> int:
        return len(self._slots)

    @property
    def undeployed(self) -> list[int]:
        """Connected slots that are still loading."""
        return sorted(number for number, slot in self._slots.items() if not slot.is_deployed)

    @property
    def restoring(self) -> RestoreProgress | None:
        """The sum over all slots; None if no slot is loading state."""
        progress = [slot.progress for slot in self._slots.values() if slot.progress is not None]
        if self.readiness is not Readiness.DEPLOYING or not any(p.total_files for p in progress):
            return None
        return RestoreProgress(
            read_bytes=sum(p.read_bytes for p in progress),
            total_bytes=sum(p.total_bytes for p in progress),
            read_files=sum(p.read_files for p in progress),
            total_files=sum(p.total_files for p in progress),
        )

    @property
    def have_all_ended(self) -> bool:
        return len(self._slots) == self._slot_count and all(
            slot.has_ended for slot in self._slots.values()
        )

    def on_arrived(self, hello: Hello, link: ControlLink[FromSlot], now_ms: float) -> None:
        self._slots[hello.slot] = _Slot(hello, link)
        self.moved_ms = now_ms

    def on_restoring(self, slot: int, progress: RestoreProgress, now_ms: float) -> None:
        self._slots[slot].progress = progress
        self.moved_ms = now_ms

    def on_deployed(self, slot: int, now_ms: float) -> None:
        self._slots[slot].is_deployed = True
        self.moved_ms = now_ms

    def on_running(self, slot: int, now_ms: float) -> None:
        check(self._slots[slot].is_deployed, "a slot is deployed before it runs", slot=slot)
        self._slots[slot].is_running = True
        self.moved_ms = now_ms

    def on_ended(self, slot: int) -> None:
        self._slots[slot].has_ended = True

    def has_ended(self, slot: int) -> bool:
        return slot in self._slots and self._slots[slot].has_ended

    def peers(self) -> list[Peer]:
        return [
            Peer(slot=number, host=slot.hello.host, port=slot.hello.data_port)
            for number, slot in sorted(self._slots.items())
        ]

    def pid_of(self, slot: int) -> int | None:
        return self._slots[slot].hello.pid if slot in self._slots else None

    def heard_ms(self, slot: int) -> float | None:
        return self._slots[slot].link.heard_ms if slot in self._slots else None

    def silent_since(self, deadline_ms: float) -> list[int]:
        """Returns the connected slots whose last message came before `deadline_ms`."""
        return [
            number
            for number, slot in self._slots.items()
            if not slot.has_ended and slot.link.heard_ms < deadline_ms
        ]

    def deploy(self, deployment: Deploy) -> None:
        here, wanted = self.connected_count, self._slot_count
        check(here == wanted, "slots are deployed once all are connected", here=here)
        self.broadcast(deployment)

    def begin(self) -> None:
        check(not self.undeployed, "slots begin once all are deployed", missing=self.undeployed)
        self.broadcast(Begin())

    def announce_completed(self, permit: CommitPermit) -> None:
        """Has sinks commit, so it takes the proof that they may."""
        check(permit.attempt == self.attempt, "a permit is for its own attempt", permit=permit)
        self.broadcast(Completed(permit=permit))

    def broadcast(self, message: Message) -> None:
        for number in self._slots:
            self.send(number, message)

    def send(self, slot: int, message: Message) -> None:
        """Ignores a slot that is gone: the thread that reads from it reports that."""
        with contextlib.suppress(OSError):
            self._slots[slot].link.send(message)

    def kill(self, slot: int, moment: KillMoment, within_s: float) -> None:
        """Sends SIGKILL if the slot is on this machine and must die now; else it kills itself."""
        hello = self._slots[slot].hello
        if moment is KillMoment.NOW and hello.host in _own_hosts():
            os.kill(hello.pid, signal.SIGKILL)
        else:
            self.send(slot, Die(moment=moment, within_s=within_s))

    def end(self) -> None:
        """Closing the control connection ends a slot, wherever it runs."""
        for slot in self._slots.values():
            slot.link.close()


def _own_hosts() -> set[str]:
    return {"127.0.0.1", "localhost", "::1", socket.gethostname()}
