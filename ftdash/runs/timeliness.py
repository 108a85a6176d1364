"""When a run is late with what it does once per interval: one rule for pages and alerts.

How long a recovery took until the run ran again: one formula for pages, monitors, estimates.
"""

from datetime import datetime
from typing import Any

from ftdash.jobs.models import Run
from pipelines.domain.settings.parsing import parse_settings
from pipelines.domain.status import RecoveryPhase

LATE_AFTER_INTERVALS = 3
"""For a run whose interval is so long that the general bound would always be exceeded."""


def checkpoint_interval_s(run: Run) -> float | None:
    """None: it completes checkpoints only on request."""
    interval_ms = parse_settings(run.settings_now).checkpoint_interval_ms
    return None if interval_ms is None else interval_ms / 1000


def late_after_s(interval_s: float | None, general_s: float) -> float:
    """`general_s`, or that many intervals if that is longer."""
    return max(general_s, LATE_AFTER_INTERVALS * (interval_s or 0.0))


_PHASES = [phase.value for phase in RecoveryPhase]
UP_TO_RUNNING = frozenset(_PHASES[: _PHASES.index(RecoveryPhase.RESTORE.value) + 1])


def to_running_ms(running_at: datetime | None, phases: list[dict[str, Any]]) -> float | None:
    """From the failure to all subtasks running; None: not yet. Takes fields of a recovery."""
    if running_at is None:
        return None
    reached = (each for each in phases if each["phase"] in UP_TO_RUNNING)
    return float(sum(phase["duration_ms"] for phase in reached))
