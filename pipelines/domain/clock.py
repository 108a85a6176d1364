"""Time as something passed in: durations from `monotonic_ms`, wall time for two things only.

It is displayed, and it is what authors of pipelines call processing time.
"""

from typing import Protocol


class Clock(Protocol):
    def monotonic_ms(self) -> float:
        """Never goes back; only differences mean anything."""
        ...

    def wall_ms(self) -> int:
        """Milliseconds since the epoch, UTC. For display and processing time, nothing else."""
        ...
