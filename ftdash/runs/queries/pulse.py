"""How a run has been doing recently, in the few numbers that fit the page of all pipelines.

A handful of small reads for each run, all by an index, once per news of the run: all viewers get
the same answer.
"""

from datetime import datetime, timedelta
from functools import lru_cache

from django.utils import timezone

from ftdash.checkpoints.models import COMPLETE, Checkpoint, CheckpointStatus
from ftdash.jobs.models import Recovery, Run
from ftdash.metrics.queries.loads import by_vertex, newest_loads
from ftdash.runs.fleet_answers import RunPulse
from ftdash.runs.queries.measured import measured
from ftdash.runs.queries.run_view import records_to_replay
from pipelines.domain.checkpoint_failures import CheckpointFailureReason

DURATIONS_MAX = 30
PULSES_MAX = 256
"""How many runs' pulses are kept, each until the run's next news."""

RECENT = timedelta(minutes=10)
WITH_THE_ATTEMPT = {
    CheckpointFailureReason.CHECKPOINT_COORDINATOR_SUSPEND.name,
    CheckpointFailureReason.CHECKPOINT_COORDINATOR_SHUTDOWN.name,
}
"""Such a checkpoint did not fail by itself: its attempt did, which is reported elsewhere."""


def run_pulse(run: Run) -> RunPulse:
    """As of the run's last report."""
    return _pulse(run, run.version, run.last_event_at)


@lru_cache(maxsize=PULSES_MAX)
def _pulse(run: Run, version: int, heard_at: datetime | None) -> RunPulse:
    """A run always equals itself; the other two arguments distinguish its news."""
    del version
    now = timezone.now() if heard_at is None else heard_at
    durations, failed = _checkpoints(run)
    operator, ratio = _most_backpressured(run)
    known, to_replay = measured(run.pipeline), records_to_replay(run)
    recent = Recovery.objects.filter(run=run, started_at__gt=now - RECENT)
    return RunPulse(
        durations_ms=durations,
        failed_in_row=len(failed),
        failed_why=CheckpointFailureReason[failed[0]].value if failed else "",
        backpressured_operator=operator,
        backpressured_ratio=ratio,
        recent_recovery_count=recent.count(),
        records_to_replay=to_replay,
        to_recover_ms=known.until_caught_up_ms(to_replay),
        recovery_count=len(known.recoveries_ms),
    )


def _checkpoints(run: Run) -> tuple[list[float], list[str]]:
    """Durations oldest first; reasons of those that failed since, newest first."""
    ended = Checkpoint.objects.filter(run=run).exclude(status=CheckpointStatus.IN_PROGRESS)
    newest = ended.order_by("-sequence").values_list("status", "end_to_end_ms", "reason_name")
    durations: list[float] = []
    failed: list[str] = []
    for status, end_to_end_ms, reason in newest[:DURATIONS_MAX]:
        if status in COMPLETE and end_to_end_ms is not None:
            durations.append(end_to_end_ms)
        elif status == CheckpointStatus.FAILED and not (durations or reason in WITH_THE_ATTEMPT):
            failed.append(reason)
    return durations[::-1], failed


def _most_backpressured(run: Run) -> tuple[str | None, float | None]:
    if run.is_terminal:
        return None, None
    ratios = {
        vertex: sum(load.backpressured_ratio for load in loads) / len(loads)
        for vertex, loads in by_vertex(newest_loads(run.pk)).items()
    }
    worst = max(ratios, key=lambda vertex: ratios[vertex], default=None)
    return worst, None if worst is None else ratios[worst]
