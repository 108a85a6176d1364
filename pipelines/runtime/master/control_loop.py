"""Whether the control loop of a driver gets on, for the threads that speak for it meanwhile.

The loop writes the journal, so it stands still while the disk does. That is no reason to end the
slots: heartbeats to them and the driver's sign of life come from threads of their own. They ask
here, and fall silent when the loop has stood still for too long. Then the slots end themselves, and
the control plane replaces the driver.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from pipelines.domain.clock import Clock

LONG_STEP_MAX_MS = 600_000.0
"""Before the first turn, between two attempts and at the end there is work that takes minutes, such
as reading a large point. `tick` is called as it gets on."""


class ControlLoop:
    """Written by the loop's thread; read by any."""

    def __init__(self, clock: Clock, timeout_ms: float) -> None:
        self._clock = clock
        self._timeout_ms = timeout_ms
        self._moved_ms = clock.monotonic_ms()
        self._long_steps = 1  # until the first turn

    def on_turn(self) -> None:
        self._long_steps = 0
        self.tick()

    def tick(self) -> None:
        self._moved_ms = self._clock.monotonic_ms()

    @contextmanager
    def long_step(self) -> Iterator[None]:
        """While no attempt runs."""
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
