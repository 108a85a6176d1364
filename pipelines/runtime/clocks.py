"""The real clock. Tests and the simulation pass in their own."""

import time


class SystemClock:
    """Implements `pipelines.domain.clock.Clock` on the operating system's clocks."""

    def monotonic_ms(self) -> float:
        return time.monotonic() * 1000.0

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000
