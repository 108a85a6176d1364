"""How long a recovery took until the run ran again: one formula for pages, monitors, estimates."""

from datetime import datetime
from typing import Any

from pipelines.domain.status import RecoveryPhase

_PHASES = [phase.value for phase in RecoveryPhase]
UP_TO_RUNNING = frozenset(_PHASES[: _PHASES.index(RecoveryPhase.RESTORE.value) + 1])


def to_running_ms(running_at: datetime | None, phases: list[dict[str, Any]]) -> float | None:
    """From the failure to all subtasks running; None: not yet. Takes fields of a recovery."""
    if running_at is None:
        return None
    reached = (each for each in phases if each["phase"] in UP_TO_RUNNING)
    return float(sum(phase["duration_ms"] for phase in reached))
