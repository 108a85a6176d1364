"""Decides whether a slot may still believe that its attempt is the current one.

A slot has been replaced, or will be, if its driver is silent for `heartbeat.timeout` or if the slot
itself was stopped for that long. From then on, nothing it does may count. The job master uses the
same timeout, so slot and master never trust opposite answers. Source: leases (Gray and Cheriton,
1989); Flink's heartbeats between TaskManager and JobManager.
"""

import threading
from collections.abc import Callable

from pipelines.domain.clock import Clock
from pipelines.domain.settings import Heartbeat

LOOKS_PER_TIMEOUT = 5


class Vigil:
    """Guarantee: once it objects, it always objects. Thread-safe.

    The time since the last call of `objection` shows whether the process was stopped. So calls must
    be closer together than the timeout; `Watch` makes them.
    """

    def __init__(self, clock: Clock, heartbeat: Heartbeat) -> None:
        self._clock = clock
        self._timeout_ms = heartbeat.timeout_ms
        self._heard_ms = self._asked_ms = clock.monotonic_ms()
        self._objection: str | None = None
        self._lock = threading.Lock()

    def on_heard(self) -> None:
        self._heard_ms = self._clock.monotonic_ms()

    def objection(self) -> str | None:
        """Returns why this slot has to end, as a clause, or None if it may continue."""
        with self._lock:
            now_ms = self._clock.monotonic_ms()
            stopped_ms, self._asked_ms = now_ms - self._asked_ms, now_ms
            silent_ms = now_ms - self._heard_ms
            if stopped_ms > self._timeout_ms:
                self._objection = f"this process was stopped for {stopped_ms / 1000:.1f} s"
            elif silent_ms > self._timeout_ms:
                self._objection = f"the driver has been silent for {silent_ms / 1000:.1f} s"
            return self._objection


class Watch(threading.Thread):
    """Asks the vigil repeatedly; calls `end` once, when the vigil objects."""

    def __init__(self, vigil: Vigil, heartbeat: Heartbeat, end: Callable[[str], None]) -> None:
        super().__init__(name="vigil", daemon=True)
        self._vigil = vigil
        self._period_s = heartbeat.timeout_ms / LOOKS_PER_TIMEOUT / 1000.0
        self._end = end
        self._closed = threading.Event()

    def run(self) -> None:
        while not self._closed.wait(self._period_s):
            objection = self._vigil.objection()
            if objection is not None:
                self._end(objection)
                return

    def close(self) -> None:
        self._closed.set()
