"""Hosts the lab's slots: processes of this machine, forked from a server that has everything
imported, so that each is up in milliseconds.

A slot does what it does in production; only Spark's placing of slots is missing. A stage ends with
its first lost slot, or when it is cancelled; its other slots have to end by themselves.
"""

import multiprocessing
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from typing import Protocol

from pipelines.runtime.master.job_events import JobEvent, StageEnded
from pipelines.runtime.networking import SlotAddress

POLL_S = 0.01

forks = multiprocessing.get_context("forkserver")


class SlotMain(Protocol):
    """The main function of a slot's process; a module's function, so that it can be named."""

    def __call__(self, address: SlotAddress, slot: int, environment: dict[str, str]) -> None: ...


@dataclass(slots=True)
class SlotProcesses:
    """Implements `StageHost`. Calls `environment` for each slot of a stage."""

    post: Callable[[JobEvent], None]
    main: SlotMain
    environment: Callable[[], dict[str, str]] = dict
    _cancelled: dict[int, threading.Event] = field(default_factory=dict)

    def start(self, address: SlotAddress, parallelism: int) -> None:
        slots: list[BaseProcess] = [
            forks.Process(target=self.main, args=(address, slot, self.environment()), daemon=True)
            for slot in range(parallelism)
        ]
        self._cancelled[address.attempt] = threading.Event()
        threading.Thread(target=self._host, args=(address, slots), daemon=True).start()

    def cancel(self, address: SlotAddress) -> None:
        self._cancelled[address.attempt].set()

    def _host(self, address: SlotAddress, slots: list[BaseProcess]) -> None:
        try:
            for slot in slots:
                slot.start()
        except OSError as error:
            problem = f"a slot could not be started: {error}"
        else:
            problem = self._watched(slots, self._cancelled[address.attempt])
        self.post(StageEnded(address.attempt, problem))

    def _watched(self, slots: list[BaseProcess], is_cancelled: threading.Event) -> str:
        """Waits until the stage ends; returns why, if it did not end well."""
        alive = {slot.sentinel: slot for slot in slots}
        problem = ""
        while alive and not problem and not is_cancelled.is_set():
            ended = connection.wait(list(alive), POLL_S)
            for slot in [alive.pop(sentinel) for sentinel in list(alive) if sentinel in ended]:
                slot.join()
                problem = problem or (f"slot ended with {slot.exitcode}" if slot.exitcode else "")
        return problem
