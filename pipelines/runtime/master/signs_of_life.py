"""The driver's thread that reports the progress of its control loop, and notices a lost lease.

The loop writes the journal, so it blocks while the disk does. That is no reason to end the slots:
separate threads send the heartbeats to them and the driver's signs of life. If the loop has been
blocked for too long, the heartbeats stop and the slots end themselves. The signs of life show the
control plane how far the loop has come, and it replaces the driver.

A driver that was stopped may continue in the middle of anything, such as setting output aside. The
loop would notice a lost lease only when it writes the next line of the journal. This thread checks
the lease at most one period after the process continues.
"""

import logging
import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pipelines.bus.lease import Lease, LeaseLost, give_sign
from pipelines.domain.clock import Clock
from pipelines.domain.run import LONG_STEP_MAX_MS, DriverSign


class ControlLoop:
    """The progress of the control loop. The loop's thread writes it; any thread may read it."""

    def __init__(self, clock: Clock, timeout_ms: float = math.inf) -> None:
        self._clock = clock
        self._timeout_ms = timeout_ms
        self._moved_ms = clock.monotonic_ms()
        self._moves = 0
        self._long_steps = 1  # until the first turn

    @property
    def moves(self) -> int:
        """A count that grows as the loop makes progress."""
        return self._moves

    @property
    def is_in_long_step(self) -> bool:
        return self._long_steps > 0

    def set_timeout(self, timeout_ms: float) -> None:
        """Call once the settings of the run are known."""
        self._timeout_ms = timeout_ms

    def on_turn(self) -> None:
        self._long_steps = 0
        self.tick()

    def tick(self) -> None:
        self._moved_ms = self._clock.monotonic_ms()
        self._moves += 1

    @contextmanager
    def long_step(self) -> Iterator[None]:
        """Wrap a step that takes long, while no attempt runs, in this context."""
        self.tick()
        self._long_steps += 1
        try:
            yield
        finally:
            self._long_steps = max(0, self._long_steps - 1)
            self.tick()

    def gets_on(self) -> bool:
        bound_ms = LONG_STEP_MAX_MS if self._long_steps else self._timeout_ms
        return self._clock.monotonic_ms() - self._moved_ms <= bound_ms


PERIOD_S = 1.0

log = logging.getLogger("ftdash.driver")


class SignsOfLife(threading.Thread):
    """Guarantee: gives no sign after another driver has taken the run over. It then calls `on_lost`
    once, on this thread."""

    def __init__(
        self, lease: Lease, loop: ControlLoop, on_lost: Callable[[LeaseLost], None]
    ) -> None:
        super().__init__(name="signs-of-life", daemon=True)
        self._lease = lease
        self._loop = loop
        self._on_lost = on_lost
        self._sequence = 0
        self._closed = threading.Event()

    def run(self) -> None:
        while not self._closed.is_set():
            try:
                self._give()
            except LeaseLost as lost:
                self._on_lost(lost)
                return
            except OSError as error:  # the control plane will see that there is no sign
                log.warning("No sign of life could be written: %s", error)
            self._closed.wait(PERIOD_S)

    def close(self) -> None:
        self._closed.set()

    def __enter__(self) -> "SignsOfLife":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _give(self) -> None:
        self._lease.check_held()
        self._sequence += 1
        sign = DriverSign(
            epoch=self._lease.epoch,
            sequence=self._sequence,
            moves=self._loop.moves,
            is_long_step=self._loop.is_in_long_step,
        )
        give_sign(self._lease.run_directory, sign)
