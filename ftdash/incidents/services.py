"""Opens, continues and closes incidents, and keeps people's notes on them.

The projector judges once a second: it runs without Redis and without a worker, and it has just
folded the drivers' reports. Every round starts from the rows, so a projector that died in between
costs nothing.
"""

from datetime import UTC, datetime

from django.db import transaction
from django.db.models import F, Q
from django.utils import timezone

from ftdash.checkpoints.models import COMPLETE, Checkpoint
from ftdash.incidents.causes import OF_CONCERN, Cause
from ftdash.incidents.machine import CALM_CHECKPOINTS, Closed, Health, Open, Sign, judge
from ftdash.incidents.models import Incident, JudgedFailures
from ftdash.jobs.answers import ShownState
from ftdash.jobs.models import Failure, Pipeline, RestoreRefusal, Run
from ftdash.runs.fleet_answers import PipelineSummary
from ftdash.runs.queries.fleet import fleet
from pipelines.domain.errors import FailureKind, Rejected
from pipelines.domain.settings.parsing import parse_settings

NOTE_LENGTH_MAX = 2_000
_CAUSES = {cause.value for cause in Cause}


def judge_all() -> None:
    """Judges all pipelines once. Raises what the database raises; the next round continues."""
    shown = fleet()
    news = _news()
    open_ones: dict[int, list[Incident]] = {}
    for row in Incident.objects.filter(closed_at=None).select_related("run"):
        open_ones.setdefault(row.pipeline_id, []).append(row)
    keys = dict(Pipeline.objects.values_list("name", "pk"))
    for summary in shown.pipelines:
        pipeline = keys.get(summary.name)
        if pipeline is None:
            continue
        failures, rows = news.get(pipeline, []), open_ones.get(pipeline, [])
        signs = [*map(_sign_of, failures), *_standing(summary, shown.now)]
        if signs or rows:
            _judge_one(pipeline, summary, rows, signs, failures, shown.now)


def note(key: int, author: str, text: str) -> None:
    """Raises Rejected if there is no such incident, or the text is empty or too long."""
    incident = Incident.objects.filter(pk=key).first()
    if incident is None:
        raise Rejected(f"There is no incident {key}.")
    if not text.strip():
        raise Rejected("Write what you have found or done; an empty note says nothing.")
    if len(text) > NOTE_LENGTH_MAX:
        raise Rejected(
            f"A note has at most {NOTE_LENGTH_MAX:,} characters; this has {len(text):,}."
        )
    with transaction.atomic():
        incident.notes.create(author=author, at=timezone.now(), text=text.strip())
        _announce(incident.pipeline_id)


def _news() -> dict[int, list[Failure | RestoreRefusal]]:
    """Returns the failures and damaged points that were not judged yet, by key of the pipeline.

    Each list is oldest first.
    """
    place = "run__pipeline__judgedfailures"
    later_run = Q(run__number__gt=F(f"{place}__run_number"))
    same_run = Q(run__number=F(f"{place}__run_number"), sequence__gt=F(f"{place}__sequence"))
    is_new = Q(**{place: None}) | later_run | same_run
    refused = RestoreRefusal.objects.filter(is_new, kind=FailureKind.POINT_DAMAGED.value)
    failed = Failure.objects.filter(is_new).select_related("run")
    rows: list[Failure | RestoreRefusal] = [*failed, *refused.select_related("run")]
    found: dict[int, list[Failure | RestoreRefusal]] = {}
    for row in sorted(rows, key=lambda row: (row.run.number, row.sequence)):
        found.setdefault(row.run.pipeline_id, []).append(row)
    return found


def _keep_place(pipeline: int, run_number: int, sequence: int) -> None:
    place = {"run_number": run_number, "sequence": sequence}
    JudgedFailures.objects.update_or_create(pipeline_id=pipeline, defaults=place)


def _sign_of(failure: Failure | RestoreRefusal) -> Sign:
    if isinstance(failure, RestoreRefusal):
        is_named = failure.path in failure.message
        text = failure.message if is_named else f"{failure.path}: {failure.message}"
        return Sign(cause=Cause.POINT_DAMAGED, text=text, at_s=failure.at.timestamp())
    cause = failure.kind if failure.kind in _CAUSES else FailureKind.UNKNOWN.value
    return Sign(cause=Cause(cause), text=failure.cause, at_s=failure.at.timestamp())


def _standing(summary: PipelineSummary, now: datetime) -> list[Sign]:
    cause = OF_CONCERN.get(summary.concern)
    if cause is None:
        return []
    return [Sign(cause=cause, text=summary.attention, at_s=now.timestamp(), stands=True)]


def _judge_one(
    pipeline: int,
    summary: PipelineSummary,
    rows: list[Incident],
    signs: list[Sign],
    failures: list[Failure | RestoreRefusal],
    now: datetime,
) -> None:
    by_cause = {Cause(row.cause): row for row in rows}
    run = Run.objects.filter(run_id=summary.run_id).first()
    health = _health(summary, run, min((row.last_at for row in rows), default=now), now)
    after = judge([_open(row) for row in rows], signs, health)
    with transaction.atomic():
        is_changed = False
        for incident in after.open:
            is_changed |= _write(pipeline, run, by_cause.get(incident.cause), incident)
        for closed in after.closed:
            _close(pipeline, run, by_cause.get(closed.incident.cause), closed, now)
            is_changed = True
        if failures:
            newest = failures[-1]
            _keep_place(pipeline, newest.run.number, newest.sequence)
        if is_changed:
            _announce(pipeline)


def _health(summary: PipelineSummary, run: Run | None, since: datetime, now: datetime) -> Health:
    """Reads checkpoints since `since`: an older one says nothing about any of its incidents."""
    if run is None:
        return Health(now_s=now.timestamp())
    completed = Checkpoint.objects.filter(run=run, status__in=COMPLETE, completed_at__gt=since)
    times = completed.order_by("-completed_at").values_list("completed_at", flat=True)
    newest = [at.timestamp() for at in times[:CALM_CHECKPOINTS] if at is not None]
    return Health(
        now_s=now.timestamp(),
        is_running=summary.state is ShownState.RUNNING,
        is_finished=summary.state is ShownState.FINISHED,
        is_canceled=summary.state is ShownState.CANCELED,
        is_periodic=parse_settings(run.settings_now).checkpointing.interval_ms is not None,
        running_since_s=run.started_at.timestamp() if run.started_at else None,
        completed_s=newest,
    )


def _open(row: Incident) -> Open:
    return Open(
        cause=Cause(row.cause),
        text=row.text,
        opened_s=row.opened_at.timestamp(),
        last_s=row.last_at.timestamp(),
        count=row.count,
    )


def _write(pipeline: int, run: Run | None, row: Incident | None, incident: Open) -> bool:
    """Returns True if a page now shows the incident differently."""
    if row is None:
        row = Incident(pipeline_id=pipeline, cause=incident.cause, opened_at=_at(incident.opened_s))
    elif _open(row) == incident:
        return False
    is_news = row.pk is None or row.count != incident.count
    row.run, row.text, row.count = run, incident.text, incident.count
    row.last_at = _at(incident.last_s)
    row.save()
    return is_news


def _close(
    pipeline: int, run: Run | None, row: Incident | None, closed: Closed, now: datetime
) -> None:
    """Also writes an incident whose sign was seen only after all was well again: it is over."""
    if row is None:
        incident = closed.incident
        row = Incident(pipeline_id=pipeline, run=run, cause=incident.cause)
        row.text, row.count = incident.text, incident.count
        row.opened_at, row.last_at = _at(incident.opened_s), _at(incident.last_s)
    row.closed_at, row.closed_because = now, closed.because
    row.save()


def _at(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def _announce(pipeline: int) -> None:
    """Raises the version, which open pages follow."""
    Pipeline.objects.filter(pk=pipeline).update(version=F("version") + 1)
