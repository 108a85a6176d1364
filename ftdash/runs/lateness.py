"""When a run is late with what it does once per interval: one rule for pages and alerts."""

from ftdash.jobs.models import Run
from pipelines.domain.settings.parsing import parse_settings

LATE_AFTER_INTERVALS = 3
"""For a run whose interval is so long that the general bound would always be exceeded."""


def checkpoint_interval_s(run: Run) -> float | None:
    """None: it completes checkpoints only on request."""
    interval_ms = parse_settings(run.settings_now).checkpoint_interval_ms
    return None if interval_ms is None else interval_ms / 1000


def late_after_s(interval_s: float | None, general_s: float) -> float:
    """`general_s`, or that many intervals if that is longer."""
    return max(general_s, LATE_AFTER_INTERVALS * (interval_s or 0.0))
