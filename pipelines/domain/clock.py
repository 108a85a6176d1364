"""Time as something passed in: durations from `monotonic_ms`, wall time for display only."""

from typing import Protocol


class Clock(Protocol):
    def monotonic_ms(self) -> float:
        """Never goes back; only differences mean anything."""
        ...

    def wall_ms(self) -> int:
        """Milliseconds since the epoch, UTC. For display, never for a decision."""
        ...
