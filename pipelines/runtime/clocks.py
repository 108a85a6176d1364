"""The real clock, and processing time derived from any clock. Tests pass in their own clock."""

import time

from pipelines.domain.clock import Clock

_SINCE_BOOT: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class SystemClock:
    """Implements `pipelines.domain.clock.Clock` on the operating system's clocks.

    The monotonic clock includes the time that the machine sleeps. Linux's CLOCK_MONOTONIC, which
    `time.monotonic` reads, stops while a laptop or a virtual machine is suspended: a slot that
    woke up an hour later would not notice that it has been replaced.
    """

    def monotonic_ms(self) -> float:
        return time.clock_gettime(_SINCE_BOOT) * 1000.0

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000


class ProcessingTime:
    """The processing time of operators, in milliseconds since 1970, for timers and times-to-live.

    Guarantee: it never goes back, so a clock that is set back makes timers wait, not fire twice.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._newest_ms = 0

    def now_ms(self) -> int:
        self._newest_ms = max(self._newest_ms, self._clock.wall_ms())
        return self._newest_ms


def thread_processor_ms() -> float:
    """The processor time that the calling thread has taken so far."""
    return time.thread_time() * 1000.0
