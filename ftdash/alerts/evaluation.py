"""Judges every rule for every pipeline, and records which alerts fired and cleared, each once.

Any worker may run a round at any time, and two may do so at once. A round first takes the
readings of all rules, with a fixed number of queries. It then judges them under the lock of one
row, in the order in which they were taken. A change to a rule takes that lock too. One transaction
writes standings, alerts and the messages about them. `delivery` sends the messages later: the
commit calls a worker, and if none answers, the next beat delivers.

While an alert fires, each round updates its value and looks for the incident that explains it. A
silence holds its message back: if the alert still fires when the silence is over, the message goes
out then. An alert that cleared under a silence sends none.

A pipeline that was stopped on purpose, or has not run yet, has nothing to alert about. One that
failed stays late. Readings that only a living driver reports are unknown while it is silent. The
pages use the same rules to decide which checkpoints failed, and when one is late.

An alert says that a number is too large; an incident says why. So one incident often explains
several alerts: after a failure no checkpoint completes, and the sink commits nothing.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from django.conf import settings
from django.db import transaction
from django.db.models import Count, F, OuterRef, Q, QuerySet, Subquery
from django.db.models.functions import Coalesce
from django.utils import timezone

from ftdash.alerts.hysteresis import Absent, Band, Effect, Phase, Reading, Standing, at_first, judge
from ftdash.alerts.models import (
    Alert,
    AlertRule,
    Channel,
    Delivery,
    Evaluation,
    News,
    RuleStanding,
    Silence,
    Watched,
)
from ftdash.checkpoints.models import Checkpoint, CheckpointStatus
from ftdash.checkpoints.queries.checkpoints import waiting_since
from ftdash.errands import Errand, publish_on_commit
from ftdash.incidents.causes import OF_FAILURES, Cause
from ftdash.incidents.models import Incident
from ftdash.jobs.models import Pipeline, Recovery, Run
from ftdash.metrics.models import Sample
from ftdash.runs.queries.freshness import checkpoint_interval_s, late_after_s
from ftdash.runs.queries.pulses import WITH_THE_ATTEMPT
from ftdash.runs.queries.runs import newest_runs
from ftdash.watching.models import WatchedIncident
from ftdash.watching.services import incidents as watched_incidents
from pipelines.domain.status import JobStatus

LATELY = timedelta(minutes=10)
ONCE_AN_INTERVAL = (Watched.SINCE_CHECKPOINT, Watched.SINCE_OUTPUT)
SILENCED = ("rule", "pipeline", "query", "flink_cluster")
"""The relations that a query reads along with a silence."""

_OVER = (JobStatus.FINISHED.value, JobStatus.CANCELED.value)


@dataclass(frozen=True, slots=True)
class PipelineReadings:
    """`interval_s` is the time between periodic checkpoints, or None if there are none."""

    pipeline: Pipeline
    values: Mapping[Watched, Reading]
    interval_s: float | None


@dataclass(frozen=True, slots=True)
class _Counts:
    failed_in_row: int
    failed_lately: int
    restarts_lately: int
    damaged_points: int


def readings(now: datetime) -> list[PipelineReadings]:
    """Returns the readings as of `now`, ordered by the name of the pipeline."""
    found = newest_runs()
    live = [run.pk for _, run in found if run is not None and run.status not in _OVER]
    counts, samples, waits = _counts(live, now), _newest_samples(live), waiting_since(live)
    return [
        _readings(pipeline, run, counts[run.pk], samples.get(run.pk), waits.get(run.pk, now), now)
        if run is not None and run.pk in counts
        else PipelineReadings(pipeline, dict.fromkeys(Watched, Absent.OVER), None)
        for pipeline, run in found
    ]


def _readings(
    pipeline: Pipeline,
    run: Run,
    counts: _Counts,
    sample: Sample | None,
    waits_since: datetime,
    now: datetime,
) -> PipelineReadings:
    interval_s = checkpoint_interval_s(run)
    values = _values(run, counts, sample, now)
    values[Watched.COMMIT_WAIT] = _seconds(now, waits_since)
    if interval_s is None:
        values |= dict.fromkeys(ONCE_AN_INTERVAL, Absent.UNASKED)
    return PipelineReadings(pipeline, values, interval_s)


def _values(
    run: Run, counts: _Counts, sample: Sample | None, now: datetime
) -> dict[Watched, Reading]:
    began_at = run.started_at or run.created_at
    return {
        Watched.FAILED_RUN: float(run.status == JobStatus.FAILED.value),
        Watched.DAMAGED_POINTS: float(counts.damaged_points),
        Watched.SINCE_CHECKPOINT: _seconds(now, run.last_completed_at or began_at),
        Watched.SINCE_OUTPUT: _seconds(now, run.last_committed_at or began_at),
        Watched.FAILED_IN_ROW: float(counts.failed_in_row),
        Watched.FAILED_LATELY: float(counts.failed_lately),
        Watched.RESTARTS_LATELY: float(counts.restarts_lately),
        Watched.BUFFERED_BYTES: _buffered_bytes(run, sample, now),
        Watched.EVENT_TIME_LAG: _event_time_lag(run, now),
        Watched.RECORDS_BEHIND: _records_behind(run, sample, now),
    }


def _seconds(now: datetime, since: datetime) -> float:
    return max(0.0, (now - since).total_seconds())


def _buffered_bytes(run: Run, sample: Sample | None, now: datetime) -> Reading:
    newest = _newest_sample(run, sample, now)
    if isinstance(newest, Absent):
        return newest
    return float(sum(subtask["queued_bytes"] for subtask in newest.subtasks))


def _records_behind(run: Run, sample: Sample | None, now: datetime) -> Reading:
    """Sums the backlogs of the sources that know theirs; those of the others are unknown."""
    newest = _newest_sample(run, sample, now)
    if isinstance(newest, Absent):
        return newest
    pending = [each.get("pending_records") for each in newest.subtasks]
    known = [each for each in pending if each is not None]
    return float(sum(known)) if known else Absent.UNKNOWN


def _newest_sample(run: Run, sample: Sample | None, now: datetime) -> Sample | Absent:
    if run.status == JobStatus.FAILED.value:
        return Absent.OVER
    if sample is None or _seconds(now, sample.at) > settings.SILENT_AFTER_S:
        return Absent.UNKNOWN
    return sample


def _event_time_lag(run: Run, now: datetime) -> Reading:
    if run.watermark_ms is None:
        return Absent.UNKNOWN
    return max(0.0, now.timestamp() - run.watermark_ms / 1000)


def _counts(runs: list[int], now: datetime) -> dict[int, _Counts]:
    failed = Checkpoint.objects.filter(run=OuterRef("pk"), status=CheckpointStatus.FAILED).exclude(
        reason_name__in=WITH_THE_ATTEMPT
    )
    in_row = failed.filter(
        Q(run__last_completed_at=None) | Q(failed_at__gt=F("run__last_completed_at"))
    )
    lately = failed.filter(failed_at__gt=now - LATELY)
    restarts = Recovery.objects.filter(run=OuterRef("pk"), at__gt=now - LATELY)
    rows = Run.objects.filter(pk__in=runs).annotate(
        in_row=_count_of(in_row),
        lately=_count_of(lately),
        restarts=_count_of(restarts),
        damaged=_count_of(_damaged_points(), "run__pipeline"),
    )
    found = rows.values_list("pk", "in_row", "lately", "restarts", "damaged")
    return {key: _Counts(*counted) for key, *counted in found}


def _damaged_points() -> QuerySet[Checkpoint]:
    """Selects the retained ones of all runs of a pipeline: a restore could use any of them."""
    kept = Checkpoint.objects.filter(status=CheckpointStatus.COMPLETED, path__isnull=False)
    return kept.exclude(problem="").filter(run__pipeline=OuterRef("pipeline"))


def _count_of(rows: QuerySet[Any], by: str = "run") -> Coalesce:
    counted = rows.order_by().values(by).annotate(count=Count("pk")).values("count")
    return Coalesce(Subquery(counted), 0)


def _newest_samples(runs: list[int]) -> dict[int, Sample]:
    newest = Sample.objects.filter(run=OuterRef("pk")).order_by("-sequence").values("pk")[:1]
    keys = Run.objects.filter(pk__in=runs).annotate(newest=Subquery(newest)).values("newest")
    return {sample.run_id: sample for sample in Sample.objects.filter(pk__in=keys)}


def fire(
    rule: AlertRule, pipeline: Pipeline, value: float, now: datetime, *, fire_above: float
) -> None:
    """Creates an alert. `fire_above` is the threshold for this pipeline."""
    alert = Alert.objects.create(
        rule=rule,
        rule_name=rule.name,
        watched=rule.watched,
        pipeline=pipeline,
        fire_above=fire_above,
        fired_at=now,
        fired_value=value,
        incident=incident_of(Watched(rule.watched), _open_incidents([pipeline.pk])),
        is_sent=False,
    )
    if silence_of(alert, silences(now)) is None:
        _send_first(alert, now)


def clear(alerts: QuerySet[Alert], because: str, now: datetime) -> None:
    """Clears the open ones of `alerts`; alerts that cleared before stay as they were."""
    for alert in alerts.filter(cleared_at=None):
        still_open = Alert.objects.filter(pk=alert.pk, cleared_at=None)
        if still_open.update(cleared_at=now, cleared_because=because) and alert.is_sent:
            _tell_all(alert, News.CLEARED, now)


def silences(now: datetime) -> list[Silence]:
    """Returns the silences that hold messages back at `now`, the longest first."""
    rows = Silence.objects.filter(ended_at=None, until__gt=now)
    return list(rows.select_related(*SILENCED).order_by("-until", "-pk"))


def silence_of(alert: Alert, found: Collection[Silence]) -> Silence | None:
    """The longest of `found` that covers the alert."""
    covering = (
        each
        for each in found
        if each.rule_id in (None, alert.rule_id) and each.pipeline_id in (None, alert.pipeline_id)
        if each.query_id is None and each.flink_cluster_id is None
    )
    return next(covering, None)


def silence_of_watched(
    found: Collection[Silence], *, query: int | None, flink_cluster: int | None
) -> Silence | None:
    """The longest of `found` that covers the query, or the cluster with all of its jobs."""
    covering = (
        each
        for each in found
        if each.rule_id is None and each.pipeline_id is None
        if each.query_id in (None, query) and each.flink_cluster_id in (None, flink_cluster)
    )
    return next(covering, None)


def follow(values: Mapping[tuple[int | None, int], Reading], now: datetime) -> None:
    """Brings the open alerts up to date: value, incident, and the message that a silence held back.

    `values` has the reading for each rule and pipeline. An unknown value keeps the last known one.
    """
    alerts = list(Alert.objects.filter(cleared_at=None).select_related("incident"))
    if not alerts:
        return
    silent, incidents = silences(now), _open_incidents({alert.pipeline_id for alert in alerts})
    for alert in alerts:
        value = values.get((alert.rule_id, alert.pipeline_id), Absent.UNKNOWN)
        if isinstance(value, float):
            alert.newest_value, alert.newest_at = value, now
        if alert.incident is None or alert.incident.closed_at is not None:
            mine = [row for row in incidents if row.pipeline_id == alert.pipeline_id]
            alert.incident = incident_of(Watched(alert.watched), mine) or alert.incident
        alert.save(update_fields=("newest_value", "newest_at", "incident"))
        if not alert.is_sent and silence_of(alert, silent) is None:
            _send_first(alert, now)


def _open_incidents(pipelines: Collection[int]) -> list[Incident]:
    return list(Incident.objects.filter(pipeline__in=pipelines, closed_at=None))


def _send_first(alert: Alert, now: datetime) -> None:
    """Sends the first message, once for each alert."""
    if Alert.objects.filter(pk=alert.pk, is_sent=False).update(is_sent=True):
        _tell_all(alert, News.FIRED, now)


def tell(channel: Channel, alert: Alert | None, news: News, now: datetime) -> Delivery:
    made = Delivery.objects.create(
        channel=channel, alert=alert, news=news, created_at=now, due_at=now
    )
    publish_on_commit(Errand.DELIVER_ALERTS)
    return made


def _tell_all(alert: Alert, news: News, now: datetime) -> None:
    for channel in Channel.objects.filter(Q(pipeline=None) | Q(pipeline=alert.pipeline_id)):
        tell(channel, alert, news, now)


def _tell_of_watched(now: datetime) -> None:
    """Announces incidents of watched queries and Flink clusters to the channels of all pipelines.

    As with alerts, a silence holds the first message back until the silence is over. An incident
    that closes before then sends none.
    """
    silent = silences(now)
    for incident, is_over in watched_incidents.untold():
        if not is_over and _silence_of_incident(incident, silent) is not None:
            if incident.closed_at is not None:
                watched_incidents.note_told(incident, is_over=False)
                watched_incidents.note_told(incident, is_over=True)
            continue
        if not watched_incidents.note_told(incident, is_over=is_over):
            continue
        news = News.CLEARED if is_over else News.FIRED
        for channel in Channel.objects.filter(pipeline=None):
            Delivery.objects.create(
                channel=channel, watched_incident=incident, news=news, created_at=now, due_at=now
            )
            publish_on_commit(Errand.DELIVER_ALERTS)


def _silence_of_incident(incident: WatchedIncident, found: Collection[Silence]) -> Silence | None:
    job = incident.flink_job
    cluster = incident.flink_cluster_id if job is None else job.cluster_id
    return silence_of_watched(found, query=incident.query_id, flink_cluster=cluster)


BACK_TO_NORMAL = "The value has stayed below the lower threshold."
BECAUSE: dict[Reading, str] = {
    Absent.OVER: "The run is over.",
    Absent.UNASKED: "The run no longer takes periodic checkpoints.",
}
IN_TIME_INTERVALS = 2
"""Between 1, which is normal, and `freshness.LATE_AFTER_INTERVALS`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Judged:
    """One rule for one pipeline, before and after a reading."""

    rule: AlertRule
    pipeline: Pipeline
    band: Band
    reading: Reading
    before: Standing
    standing: Standing
    effect: Effect


def evaluate(now: datetime) -> None:
    """Runs one round. Lets database errors through; the next round starts from the stored state."""
    found = readings(now)
    with transaction.atomic():
        if not _is_my_turn(now):
            return
        judged = _judge_all(found, now)
        _keep_standings(judged)
        for each in judged:
            _carry_out(each, now)
        follow({(each.rule.pk, each.pipeline.pk): each.reading for each in judged}, now)
        _tell_of_watched(now)


def band_of(rule: AlertRule, found: PipelineReadings) -> Band:
    """Returns the rule's band, wider if checkpoints are so rare that they would always be late."""
    band = Band(rule.fire_above, rule.fire_after_s, rule.clear_below, rule.clear_after_s)
    late_s = late_after_s(found.interval_s, band.fire_above)
    if late_s == band.fire_above or rule.watched not in ONCE_AN_INTERVAL:
        return band
    in_time_s = IN_TIME_INTERVALS * (found.interval_s or 0.0)
    return replace(band, fire_above=late_s, clear_below=max(band.clear_below, in_time_s))


def wait_between_rounds() -> Evaluation:
    """Until the caller's transaction ends, only the caller judges rules."""
    Evaluation.objects.get_or_create(pk=1, defaults={"at": datetime.fromtimestamp(0, UTC)})
    return Evaluation.objects.select_for_update().get(pk=1)


def _is_my_turn(now: datetime) -> bool:
    """Returns False if newer readings were judged meanwhile, unless the clock was set back."""
    row = wait_between_rounds()
    if now <= row.at <= timezone.now():
        return False
    row.at = now
    row.save()
    return True


def _judge_all(found: list[PipelineReadings], now: datetime) -> list[_Judged]:
    rows = {(row.rule_id, row.pipeline_id): row for row in RuleStanding.objects.all()}
    return [
        _judge_one(rule, each, rows.get((rule.pk, each.pipeline.pk)), now)
        for rule in AlertRule.objects.filter(is_on=True)
        for each in found
        if rule.pipeline_id in (None, each.pipeline.pk)
    ]


def _judge_one(
    rule: AlertRule, found: PipelineReadings, row: RuleStanding | None, now: datetime
) -> _Judged:
    now_s = now.timestamp()
    before = Standing(Phase(row.phase), row.since.timestamp()) if row else at_first(now_s)
    reading = found.values[Watched(rule.watched)]
    band = band_of(rule, found)
    standing, effect = judge(band, before, reading, now_s)
    return _Judged(
        rule=rule,
        pipeline=found.pipeline,
        band=band,
        reading=reading,
        before=before,
        standing=standing,
        effect=effect,
    )


def _keep_standings(judged: list[_Judged]) -> None:
    """Writes only the changed standings: most rounds write nothing."""
    for each in judged:
        if each.standing == each.before:
            continue
        since = datetime.fromtimestamp(each.standing.since_s, UTC)
        RuleStanding.objects.update_or_create(
            rule=each.rule,
            pipeline=each.pipeline,
            defaults={"phase": each.standing.phase, "since": since},
        )


def _carry_out(judged: _Judged, now: datetime) -> None:
    match judged.effect:
        case Effect.FIRED:
            value = judged.reading if isinstance(judged.reading, float) else 0.0
            above = judged.band.fire_above
            fire(judged.rule, judged.pipeline, value, now, fire_above=above)
        case Effect.CLEARED:
            because = BECAUSE.get(judged.reading, BACK_TO_NORMAL)
            alerts = Alert.objects.filter(rule=judged.rule, pipeline=judged.pipeline)
            clear(alerts, because, now)
        case Effect.NONE:
            return


_SLOW = OF_FAILURES | {
    *(Cause.BACKPRESSURED, Cause.SKEWED, Cause.BEHIND, Cause.SLOW_CHECKPOINTS),
}
_LATE = _SLOW | {
    *(Cause.SILENT, Cause.STUCK, Cause.NO_CHECKPOINT, Cause.CHECKPOINTS_FAIL),
}
_CHECKPOINTS = _SLOW | {Cause.CHECKPOINTS_FAIL, Cause.NO_CHECKPOINT}
EXPLAINED_BY: dict[Watched, frozenset[Cause]] = {
    Watched.FAILED_RUN: OF_FAILURES,
    Watched.DAMAGED_POINTS: frozenset({Cause.POINT_DAMAGED}),
    Watched.SINCE_CHECKPOINT: _LATE,
    Watched.SINCE_OUTPUT: _LATE | {Cause.NO_OUTPUT},
    Watched.COMMIT_WAIT: _LATE | {Cause.NO_OUTPUT},
    Watched.FAILED_IN_ROW: _CHECKPOINTS,
    Watched.FAILED_LATELY: _CHECKPOINTS,
    Watched.RESTARTS_LATELY: OF_FAILURES,
    Watched.BUFFERED_BYTES: _SLOW,
    Watched.EVENT_TIME_LAG: _LATE | {Cause.WATERMARK_STILL},
    Watched.RECORDS_BEHIND: _LATE,
}


def incident_of(watched: Watched, open_ones: Iterable[Incident]) -> Incident | None:
    """Returns the pipeline's open incident that explains the alert, or None if none does.

    A failure takes precedence over any other cause. Of two failures, the newer one counts.
    """
    explaining = [row for row in open_ones if Cause(row.cause) in EXPLAINED_BY[watched]]
    return max(explaining, key=_weight, default=None)


def _weight(row: Incident) -> tuple[bool, float]:
    return Cause(row.cause) in OF_FAILURES, row.last_at.timestamp()
