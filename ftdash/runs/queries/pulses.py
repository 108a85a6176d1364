"""The few numbers of each run's recent past on the page of all pipelines, for many runs at once.

It asks the same few queries for any number of runs, all by an index, and only once per news of a
run: all viewers get the same answer.
"""

import random
from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime, timedelta
from itertools import takewhile
from statistics import median_high

from cachetools import LRUCache, TLRUCache
from django.db.models import DateTimeField, DurationField, ExpressionWrapper, F, Q, Value
from django.db.models.expressions import Combinable
from django.db.models.functions import Coalesce
from django.utils import timezone

from ftdash.among import Among, among
from ftdash.checkpoints.models import COMPLETE, Checkpoint, CheckpointStatus
from ftdash.jobs.models import Recovery
from ftdash.metrics import load_rules
from ftdash.metrics.load_rules import Finding, LoadMoment
from ftdash.metrics.models import Sample
from ftdash.metrics.queries import loads as samples
from ftdash.metrics.queries.loads import TimedLoads, by_vertex, minutes_of, successive_loads
from ftdash.runs.fleet_answers import NewestRun, RunPulse
from ftdash.runs.queries.planning import SAMPLES_MAX, recoveries_ms_of
from ftdash.runs.queries.runs import behind, to_recover_ms
from pipelines.domain.checkpoint_failures import CheckpointFailureReason
from pipelines.points.verdict import Measured

DURATIONS_MAX = 30
PULSES_MAX = 5_000
"""How many runs' pulses are kept, each until the run's next news."""

RECENT = timedelta(minutes=10)
BACKPRESSURED_FOR = timedelta(seconds=20)
WITH_THE_ATTEMPT = {
    CheckpointFailureReason.CHECKPOINT_COORDINATOR_SUSPEND.name,
    CheckpointFailureReason.CHECKPOINT_COORDINATOR_SHUTDOWN.name,
}
"""Such a checkpoint did not fail by itself: its attempt did, which is reported elsewhere."""

SAMPLED_FOR = timedelta(seconds=2 * SAMPLES_MAX)
"""How long before its newest report a run's samples count. A run reports once a second."""

MEASURED_FOR_S = 60.0
"""How long a run's measured speeds are kept, on average.

They are medians of two minutes and of recoveries, and cost more queries than the rest of a pulse.
"""

News = tuple[int, int, datetime | None]
_known: LRUCache[int, tuple[News, RunPulse]] = LRUCache(PULSES_MAX)
_speeds: TLRUCache[tuple[int, int, str], Measured] = TLRUCache(
    # Random, so that those of many runs do not end at once.
    PULSES_MAX,
    ttu=lambda _, __, now_s: now_s + MEASURED_FOR_S * random.uniform(0.5, 1.5),
)


def run_pulses(runs: Sequence[NewestRun]) -> dict[int, RunPulse]:
    """Returns the pulses by primary key of the run, as of its last report."""
    news = {run.pk: (run.pk, run.version, run.last_event_at) for run in runs}
    kept = {pk: _known[pk] for pk in news if pk in _known}
    new = [run for run in runs if run.pk not in kept or kept[run.pk][0] != news[run.pk]]
    found = {pk: pulse for pk, (_, pulse) in kept.items()} | (_read(new) if new else {})
    for run in new:
        _known[run.pk] = (news[run.pk], found[run.pk])
    return found


def forget() -> None:
    """Forgets all pulses, so that each is read again."""
    _known.clear()
    _speeds.clear()
    _completed.clear()
    samples.forget()


def _read(runs: list[NewestRun]) -> dict[int, RunPulse]:
    living = [run for run in runs if not run.is_terminal]
    checkpoints, recoveries = _checkpoints(runs), _recent_recoveries(runs)
    minutes = minutes_of([run.pk for run in living])
    going_on, known = _oldest_under_way(living), _measured_lately(living)
    return {
        run.pk: _pulse(
            run,
            checkpoints[run.pk],
            recoveries.get(run.pk, 0),
            minutes.get(run.pk, []),
            going_on.get(run.pk),
            known.get(run.pk, Measured()),
        )
        for run in runs
    }


Ended = tuple[int | None, str, float | None, str, int | None]
"""A checkpoint's id, status, duration, reason and records read. Lists are newest first."""

_ENDED = ("checkpoint_id", "status", "end_to_end_ms", "reason_name", "source_records")
_completed: LRUCache[int, tuple[int | None, list[tuple[int, Ended]]]] = LRUCache(PULSES_MAX)
"""Maps a run's key to the id of its newest checkpoint at the time of reading, and to the rows."""


def _pulse(
    run: NewestRun,
    ended: list[Ended],
    recent_recoveries: int,
    minute: list[TimedLoads],
    going_on_since: datetime | None,
    known: Measured,
) -> RunPulse:
    shown = ended[:DURATIONS_MAX]
    durations = [ms for _, status, ms, _, _ in shown if ms is not None and status in COMPLETE]
    in_row = takewhile(lambda each: each[1] == CheckpointStatus.FAILED, shown)
    failed = [reason for _, _, _, reason, _ in in_row if reason not in WITH_THE_ATTEMPT]
    newest = (each[-1] for each in ended if each[0] == run.last_checkpoint_id is not None)
    since = next(newest, run.restored_records)
    to_replay = None if run.is_terminal else behind(run, since)
    operator, ratio = _most_backpressured(minute)
    durations.reverse()
    return RunPulse(
        durations_ms=durations,
        failed_in_row=len(failed),
        failed_why=CheckpointFailureReason[failed[0]].value if failed else "",
        backpressured_operator=operator,
        backpressured_ratio=ratio,
        is_backpressured_long=bool(minute) and minute[-1].at - minute[0].at >= BACKPRESSURED_FOR,
        findings=_findings(run, minute, durations, going_on_since),
        recent_recovery_count=recent_recoveries,
        records_to_replay=to_replay,
        to_recover_ms=to_recover_ms(run, known, to_replay),
        recovery_count=len(known.recoveries_ms),
    )


def _most_backpressured(minute: list[TimedLoads]) -> tuple[str | None, float | None]:
    """Judges the last minute, because a source that catches up is held up only for moments."""
    ratios: dict[str, list[float]] = {}
    for moment in minute:
        for vertex, loads in by_vertex(moment.subtasks).items():
            mean = sum(load.backpressured_ratio for load in loads) / len(loads)
            ratios.setdefault(vertex, []).append(mean)
    least = {vertex: min(of_moments) for vertex, of_moments in ratios.items()}
    worst = max(least, key=lambda vertex: least[vertex], default=None)
    return worst, None if worst is None else least[worst]


def _findings(
    run: NewestRun,
    minute: list[TimedLoads],
    durations: list[float],
    going_on_since: datetime | None,
) -> list[Finding]:
    """Returns the most pressing first. Only a suspicion makes it read more samples."""
    if not minute:
        return []
    now = run.last_event_at or timezone.now()
    age_ms = None
    if going_on_since is not None:
        age_ms = max(0.0, (now - going_on_since).total_seconds() * 1000)
    moments, uneven = _moments(minute), load_rules.skewed_now(minute[-1].subtasks)
    found = [
        load_rules.source_away(minute[-1].subtasks),
        load_rules.stuck_code(minute[-1].subtasks),
        load_rules.skew(_moments(successive_loads(run.pk))) if uneven else None,
        load_rules.behind(moments),
        load_rules.slow_checkpoints(durations, age_ms),
        load_rules.watermark_still(moments),
    ]
    return [each for each in found if each is not None]


def _moments(samples: list[TimedLoads]) -> list[LoadMoment]:
    return [LoadMoment(each.at.timestamp(), each.subtasks) for each in samples]


def _oldest_under_way(runs: list[NewestRun]) -> dict[int, datetime]:
    """Maps each run's key to the time at which its attempt's oldest open checkpoint began.

    A run without one has no entry.
    """
    going_on = Checkpoint.objects.filter(_of(runs), status=CheckpointStatus.IN_PROGRESS)
    rows = going_on.filter(attempt=F("run__attempt")).order_by("-sequence")
    return {pk: at for pk, at in rows.values_list("run_id", "trigger_at") if at is not None}


def _checkpoints(runs: list[NewestRun]) -> dict[int, list[Ended]]:
    """Returns the newest that have ended, with those that were refused before they had an id."""
    found = {run.pk: list(rows) for run, rows in zip(runs, _completed_of(runs), strict=True)}
    recent = timezone.now() - RECENT
    is_new = Q(checkpoint_id__gt=_before_newest()) | Q(checkpoint_id=None, trigger_at__gt=recent)
    failed = Checkpoint.objects.filter(_of(runs), is_new, status=CheckpointStatus.FAILED)
    for pk, *row in failed.order_by().values_list("run_id", "sequence", *_ENDED):
        found[pk].append((row[0], tuple(row[1:])))
    return {pk: [row for _, row in sorted(rows, reverse=True)] for pk, rows in found.items()}


def _completed_of(runs: list[NewestRun]) -> list[list[tuple[int, Ended]]]:
    """Returns the completed checkpoints of each run, each with its sequence.

    They are read again only when the run has a newer one, because nothing else adds to them.
    """
    known = {run.pk: _completed[run.pk] for run in runs if run.pk in _completed}
    new: dict[int, list[tuple[int, Ended]]] = {
        run.pk: []
        for run in runs
        if run.pk not in known or known[run.pk][0] != run.last_checkpoint_id
    }
    complete = Checkpoint.objects.filter(among("run", new), status__in=COMPLETE)
    rows = complete.filter(checkpoint_id__gt=_before_newest()).order_by()
    for pk, *row in rows.values_list("run_id", "sequence", *_ENDED):
        new[pk].append((row[0], tuple(row[1:])))
    known |= {run.pk: (run.last_checkpoint_id, new[run.pk]) for run in runs if run.pk in new}
    _completed.update({pk: known[pk] for pk in new})
    return [known[run.pk][1] for run in runs]


def _before_newest() -> Combinable:
    """Compares ids, which have an index, and not ranks, which need a look at all rows."""
    return Coalesce(F("run__last_checkpoint_id"), Value(0)) - DURATIONS_MAX


def _recent_recoveries(runs: list[NewestRun]) -> dict[int, int]:
    now = timezone.now()
    heard = min((run.last_event_at for run in runs if run.last_event_at), default=now)
    rows = Recovery.objects.filter(_of(runs), started_at__gt=heard - RECENT).order_by()
    since = {run.pk: (run.last_event_at or now) - RECENT for run in runs}
    counts: dict[int, int] = defaultdict(int)
    for run, started_at in rows.values_list("run_id", "started_at"):
        counts[run] += started_at > since[run]
    return counts


def _measured_lately(runs: list[NewestRun]) -> dict[int, Measured]:
    """Returns `_measured`, at most about `MEASURED_FOR_S` old, and newer than the last recovery."""
    keys = {run.pk: (run.pk, run.attempt, run.status) for run in runs}
    new = [run for run in runs if keys[run.pk] not in _speeds]
    read = _measured(new) if new else {}
    for run in new:
        _speeds[keys[run.pk]] = read.get(run.pk, Measured())
    return {run.pk: _speeds.get(keys[run.pk], Measured()) for run in runs}


def _measured(runs: list[NewestRun]) -> dict[int, Measured]:
    """Like `planning.measured`, for runs that have recovered; the others have no such estimate."""
    recoveries = recoveries_ms_of([run.pipeline_id for run in runs])
    recovered = [run for run in runs if recoveries.get(run.pipeline_id)]
    samples = Sample.objects.filter(_of(recovered), records_per_s__gt=0)
    recent = samples.filter(at__gt=_before_report()).order_by("-sequence")
    rates: dict[int, list[float]] = defaultdict(list)
    for run_pk, rate in recent.values_list("run_id", "records_per_s"):
        if len(rates[run_pk]) < SAMPLES_MAX:
            rates[run_pk].append(rate)
    return {
        run.pk: Measured(
            recoveries_ms=recoveries[run.pipeline_id],
            records_per_s=median_high(rates[run.pk]) if rates[run.pk] else None,
        )
        for run in recovered
    }


def _before_report() -> Combinable:
    """A silent run is measured by its last reports."""
    began = F("run__last_event_at") - Value(SAMPLED_FOR, output_field=DurationField())
    return ExpressionWrapper(began, output_field=DateTimeField())


def _of(runs: list[NewestRun]) -> Among:
    return among("run", [run.pk for run in runs])
