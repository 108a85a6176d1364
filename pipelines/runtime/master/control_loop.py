"""Decides whether a driver's control loop gets on, for the threads that speak for it meanwhile.

The loop writes the journal, so it stands still while the disk does. That is no reason to end the
slots: heartbeats to them and the driver's signs of life come from threads of their own. The
heartbeats stop when the loop has stood still for too long, and the slots end themselves. The signs
of life show the control plane how far the loop has come, and it replaces the driver.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager

from pipelines.domain.clock import Clock
from pipelines.domain.run import LONG_STEP_MAX_MS


class ControlLoop:
    """Written by the loop's thread; read by any."""

    def __init__(self, clock: Clock, timeout_ms: float = math.inf) -> None:
        self._clock = clock
        self._timeout_ms = timeout_ms
        self._moved_ms = clock.monotonic_ms()
        self._moves = 0
        self._long_steps = 1  # until the first turn

    @property
    def moves(self) -> int:
        """Grows as the loop gets on."""
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
        """For a step that takes long, while no attempt runs."""
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
