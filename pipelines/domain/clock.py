"""Time as something passed in: durations from `monotonic_ms`, wall time for two purposes only.

Wall time is displayed, and it is the processing time of authors' pipelines.
"""

from typing import Protocol


class Clock(Protocol):
    def monotonic_ms(self) -> float:
        """Never goes back; only differences have a meaning."""
        ...

    def wall_ms(self) -> int:
        """Milliseconds since the epoch, UTC. For display and processing time, nothing else."""
        ...
