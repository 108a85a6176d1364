"""Simulated time. Faults may set the wall clock an hour back or forth, never the monotonic one."""

HOUR_MS = 3_600_000


class SimulatedClock:
    """Implements `Clock` for every process of a seed."""

    def __init__(self) -> None:
        self.now_ms = 1_000.0
        self._wall_offset_ms = 1_700_000_000_000

    def monotonic_ms(self) -> float:
        return self.now_ms

    def wall_ms(self) -> int:
        return self._wall_offset_ms + int(self.now_ms)

    def set_wall(self, by_ms: int) -> None:
        self._wall_offset_ms += by_ms
