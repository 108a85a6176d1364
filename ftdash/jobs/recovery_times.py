"""How long a recovery took until the run ran again: one sum for pages, monitors and estimates."""

from ftdash.jobs.models import Recovery
from pipelines.domain.status import RecoveryPhase

_PHASES = [phase.value for phase in RecoveryPhase]
UP_TO_RUNNING = frozenset(_PHASES[: _PHASES.index(RecoveryPhase.RESTORE.value) + 1])


def to_running_ms(recovery: Recovery) -> float | None:
    """From the failure to all subtasks running; None: they do not run yet."""
    if recovery.running_at is None:
        return None
    phases = (each for each in recovery.phases if each["phase"] in UP_TO_RUNNING)
    return float(sum(phase["duration_ms"] for phase in phases))
