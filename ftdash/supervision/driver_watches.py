"""Looks at the signs of life of the drivers, and remembers between two looks.

In the memory of this process: a worker that starts knows nothing yet, so it gives every driver its
whole time. Durations are of this process's monotonic clock, which stands still while the machine
sleeps. Decides nothing: `pipelines.protocol.driver_watch` does.
"""

import threading
import time
from collections.abc import Callable, Collection

from ftdash.formats import age
from ftdash.jobs.directories import run_directory
from ftdash.jobs.models import Run
from pipelines.bus.lease import Owner
from pipelines.bus.signs_of_life import newest_sign
from pipelines.domain.settings.parsing import parse_settings
from pipelines.protocol.driver_watch import DriverWatch, Hung, Lives, Silent


def _monotonic_ms() -> float:
    return time.monotonic() * 1000.0


class DriverWatches:
    """One watch per run. Thread-safe: two rounds may come at the same time."""

    def __init__(self, now_ms: Callable[[], float] = _monotonic_ms) -> None:
        self._now_ms = now_ms
        self._watches: dict[int, DriverWatch] = {}  # by the key of the run's row
        self._lock = threading.Lock()

    def look(self, run: Run, owner: Owner) -> Lives | Silent | Hung:
        """Raises OSError when the sign cannot be read: that says nothing about the driver."""
        if owner.epoch == 0:  # of a version that shows no signs of life
            return Lives()
        sign = newest_sign(run_directory(run))
        timeout_ms = _timeout_of(run)
        with self._lock:
            watch = self._watches.setdefault(run.pk, DriverWatch())
            return watch.on_look(owner.epoch, sign, self._now_ms(), timeout_ms)

    def keep_only(self, run_keys: Collection[int]) -> None:
        """The others have ended."""
        with self._lock:
            for key in self._watches.keys() - set(run_keys):
                del self._watches[key]


def _timeout_of(run: Run) -> float:
    """In milliseconds. Not sooner than heartbeat.timeout: by then the slots of a driver that was
    stopped have ended themselves, wherever they run. Raises Rejected."""
    settings = parse_settings(run.settings_now)
    return max(settings.driver_timeout_ms, settings.heartbeat_timeout_ms)


def silence_of(found: Silent) -> str:
    """For the page of the pipeline."""
    return (
        f"The driver has {found.trouble.value} for {age(found.for_ms)}; it is replaced after"
        f" {age(found.limit_ms)} (see heartbeat.driver-timeout)."
    )
