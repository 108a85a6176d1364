"""The event log: one line for each row of other apps, read newest first, a page at a time.

`SOURCES` lists the kinds of rows, each with its columns and its sentence. A page takes a few rows
of each kind and merges them by time. It continues at the place of the previous page's last line,
not at a page number. So new lines shift nothing, and the thousandth page costs no more than the
first.
"""

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from itertools import islice
from typing import Any

from django.db.models import Q, QuerySet
from django.utils import timezone

from ftdash.accounts.models import NO_REQUEST, REFUSED_REQUEST, AdminAction
from ftdash.alerts.delivery import written
from ftdash.alerts.models import Alert, Watched
from ftdash.checkpoints.models import ROUTINE, Audit, Checkpoint, CheckpointStatus
from ftdash.flink_clusters.models import (
    FlinkAction,
    FlinkActionKind,
    FlinkActionState,
    FlinkEvent,
    FlinkEventKind,
    FlinkJob,
)
from ftdash.formats import size
from ftdash.gameday.models import Fault, GameDay, GameDayState, GameDayVerdict
from ftdash.incidents.causes import ADVICE, Cause
from ftdash.incidents.models import Incident
from ftdash.jobs.damage import text_of
from ftdash.jobs.models import (
    DamageFinding,
    Failure,
    Leftover,
    QuarantinedRecord,
    Recovery,
    RepeatedOutput,
    Request,
    RequestPhase,
    RestoreRefusal,
    StatusChange,
    SupersededOutput,
    TargetTakeover,
    ZombieRefusal,
)
from ftdash.lab.models import Lab, LabState
from ftdash.watching.models import (
    QueryWork,
    RunEvent,
    RunEventKind,
    WatchedIncident,
    WorkKind,
    WorkState,
)
from ftdash.watching.queries.incidents import PARTS
from pipelines.domain.commands import LabelSavepoint, SavepointCommand

FIRST_YEAR, LAST_YEAR = 1970, 2999
"""Outside these years, a database may be unable to express the moment in UTC."""

ROWS_MAX = 2**63
NAME_SHOWN = 80  # of a Flink job, whose name may be a whole query


class LineKind(StrEnum):
    ACTION = "action"  # what a person asked for, or was refused
    STATUS = "status"
    FAILURE = "failure"
    RECOVERY = "recovery"
    CHECKPOINT = "checkpoint"  # and savepoints
    REFUSAL = "refusal"  # of a damaged point, or of an attempt that is over
    DAMAGE = "damage"  # to files that checkpoints share
    OUTPUT = "output set aside"
    REPEATED = "output published again"
    CLEAN_UP = "clean-up"  # of output that was never committed
    TAKEOVER = "takeover"  # of a target that another installation's run held
    QUARANTINE = "quarantine"
    AUDIT = "audit"
    GAME_DAY = "game day"
    LAB = "lab"
    ALERT = "alert"
    INCIDENT = "incident"
    QUERY = "watched query"  # its runs, and work on its files
    FLINK = "watched Flink job"  # what happened to it, and what was asked of it
    SETTING = "setting"  # of people, tokens, alerts, retention and packages


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """`actor` is empty if no person requested it; `pipeline` is empty if it concerns all."""

    at: datetime
    kind: LineKind
    what: str
    outcome: str
    pipeline: str
    run_id: str
    actor: str
    why: str
    source: int  # index in `SOURCES`
    row: int
    incident: int | None = None  # the incident that the line belongs to


@dataclass(frozen=True, slots=True)
class EventFilter:
    """None matches everything. `since` is included, `until` is not."""

    pipeline: str | None = None
    kind: LineKind | None = None
    actor: str | None = None
    with_routine: bool = True  # False leaves out periodic checkpoints that did not fail
    since: datetime | None = None
    until: datetime | None = None


@dataclass(frozen=True, slots=True)
class Cursor:
    """The last line of a page: later lines are older, or have the same time and come after it."""

    at: datetime
    source: int
    row: int

    @classmethod
    def behind(cls, line: Line) -> "Cursor":
        return cls(line.at, line.source, line.row)

    @classmethod
    def parse(cls, text: str) -> "Cursor | None":
        """Returns None if `text` is not a cursor."""
        parts = text.split("~")
        try:
            at, source, row = datetime.fromisoformat(parts[0]), int(parts[1]), int(parts[2])
        except (ValueError, IndexError):
            return None
        is_possible = at.tzinfo is not None and FIRST_YEAR <= at.year <= LAST_YEAR
        return cls(at, source, row) if is_possible and 0 <= row < ROWS_MAX else None

    def __str__(self) -> str:
        return f"{self.at.isoformat()}~{self.source}~{self.row}"


RUN, PIPELINE = "run__pipeline", "pipeline"


@dataclass(frozen=True, slots=True)
class Description:
    what: str
    outcome: str = ""
    why: str = ""
    incident: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """`time` is a column that is never null. `actor` is empty if there is none.

    `parts` are read along with the row; `routine` selects the rows that are not remarkable.
    """

    kind: LineKind
    rows: Callable[[], QuerySet[Any]]
    time: str
    describe: Callable[[Any], Description]
    parts: tuple[str, ...] = (RUN,)
    actor: str = ""
    routine: Q | None = None

    @property
    def pipeline(self) -> str:
        """The column that leads to the pipeline; empty if there is none."""
        return next((part for part in (RUN, PIPELINE) if part in self.parts), "")


def _ended(label: Any, why: str) -> str:
    return f"{label}: {why}" if why else str(label)


def _request(row: Request) -> Description:
    outcome = _ended(RequestPhase(row.phase).label, row.message)
    return Description(f"asked for: {row.command.action}{_naming(row)}", outcome, row.reason)


def _naming(row: Request) -> str:
    """Returns the name that a savepoint had then; its label may have changed since."""
    command = row.command
    if isinstance(command, LabelSavepoint):
        called = f"called {command.label!r}" if command.label else "called by no name"
        return f": {command.path} is {called}"
    if isinstance(command, SavepointCommand) and command.label:
        return f", to be called {command.label!r}"
    return ""


def _status(row: StatusChange) -> Description:
    return Description(f"the run is {row.status}", why=row.reason)


def _failure(row: Failure) -> Description:
    where = f" in {row.vertex}[{row.subtask}]" if row.vertex else ""
    return Description(f"{row.cause}{where}")


def _recovery(row: Recovery) -> Description:
    since = row.restored_checkpoint_id
    origin = f"checkpoint {since}" if since else "the beginning"
    outcome = "all subtasks run again" if row.running_at else "not running again"
    return Description(f"recovery to attempt {row.attempt} from {origin}", outcome)


def _checkpoint(row: Checkpoint) -> Description:
    name = f" {row.checkpoint_id}" if row.checkpoint_id else ""
    took = f" in {row.end_to_end_ms:,.0f} ms" if row.end_to_end_ms is not None else ""
    outcome = (
        f"completed{took}, discarded since"
        if row.status == CheckpointStatus.DISCARDED
        else f"{CheckpointStatus(row.status).label}{took}"
    )
    return Description(
        f"{row.kind.lower()}{name}", outcome, f"{row.reason_text} {row.message}".strip()
    )


def _superseded(row: SupersededOutput) -> Description:
    return Description(f"{row.files} outputs of {row.sink} were set aside", row.moved_to)


def _repeated(row: RepeatedOutput) -> Description:
    count = "an unknown number of" if row.records is None else f"{row.records:,}"
    bound = "up to " if row.is_at_most and row.records is not None else ""
    what = f"{row.sink} publishes {bound}{count} records again to {row.target}"
    return Description(what, "readers see them twice")


def _leftover(row: Leftover) -> Description:
    count = f"{row.count} " if row.count else ""
    volume = f" ({size(row.size_bytes)})" if row.size_bytes is not None else ""
    what = f"{count}{row.what}{volume} of {row.sink} in {row.target}"
    outcome = "kept" if row.why_kept else "cleaned up"
    left_by = f": left by {row.left_by}" if row.left_by else ""
    return Description(what, f"{outcome}{left_by}", row.why_kept)


def _takeover(row: TargetTakeover) -> Description:
    what = f"{row.target} was taken over for {row.sink}"
    return Description(what, f"{row.loser} may not write there any more")


def _quarantined(row: QuarantinedRecord) -> Description:
    what = f"record {row.offset} of {row.split} is not given to {row.operator} any more"
    return Description(what, why=row.error)


def _zombie(row: ZombieRefusal) -> Description:
    why = f"attempt {row.zombie_attempt} is over" if row.zombie_attempt else "a stranger"
    return Description(row.what, f"refused: {why}")


def _damage(row: DamageFinding) -> Description:
    found = text_of(row)
    return Description(found.what, found.outcome, row.message)


def _audit(row: Audit) -> Description:
    if row.ended_at is None:
        return Description("requested an audit", "under way")
    if row.report is None:
        return Description("requested an audit", f"failed: {row.problem}")
    found = "as recorded" if row.report["is_as_recorded"] else "not as recorded"
    return Description("requested an audit", f"the output is {found}")


def _game_day(row: GameDay) -> Description:
    label = GameDayVerdict(row.verdict).label if row.verdict else GameDayState(row.state).label
    slot = f", slot {row.slot}" if row.slot is not None else ""
    what = f"game day {row.pk}: {Fault(row.fault).label}{slot}"
    return Description(what, _ended(label, row.why), row.reason)


def _lab(row: Lab) -> Description:
    outcome = _ended(LabState(row.state).label, row.message)
    return Description(f"requested lab {row.pk}", outcome, row.reason)


def _alert(row: Alert) -> Description:
    outcome = f"cleared: {row.cleared_because}" if row.cleared_at else "still firing"
    watched = Watched(row.watched)
    found, bound = written(watched, row.fired_value), written(watched, row.fire_above)
    what = f"alert: {row.rule_name}, at {found} above {bound}"
    return Description(what, outcome, row.acknowledged_reason, row.incident_id)


def _incident(row: Incident) -> Description:
    signs = f" ({row.count} signs)" if row.count > 1 else ""
    outcome = f"over: {row.closed_because}" if row.closed_at else "it is open"
    return Description(
        f"incident: {ADVICE[Cause(row.cause)].title}{signs}", outcome, row.text, row.pk
    )


def _setting(row: AdminAction) -> Description:
    detail = f" ({row.detail})" if row.detail else ""
    outcome = f"refused: {row.refusal}" if row.refusal else "done"
    return Description(f"{row.what} {row.subject}{detail}", outcome, row.reason)


def _query_event(row: RunEvent) -> Description:
    message = f"{row.error_class} {row.message.partition(chr(10))[0]}".strip()
    outcome = f"run {row.run_id} {RunEventKind(row.kind).label}"
    return Description(f"the query {row.query.name}", outcome, message)


def _query_work(row: QueryWork) -> Description:
    outcome = _ended(WorkState(row.state).label, row.problem)
    return Description(f"query {row.query.name}: {WorkKind(row.kind).label}", outcome, row.reason)


def _flink_event(row: FlinkEvent) -> Description:
    kind = FlinkEventKind(row.kind).label
    said = row.text.strip().partition("\n")[0]
    return Description(f"{_flink_job(row.job)}: {kind} {row.title}", row.place, said)


def _flink_action(row: FlinkAction) -> Description:
    outcome = _ended(FlinkActionState(row.state).label, row.problem)
    action = FlinkActionKind(row.kind).label
    return Description(f"{_flink_job(row.job)}: asked for {action}", outcome, row.reason)


def _flink_job(row: FlinkJob) -> str:
    return f"Flink job {row.name[:NAME_SHOWN]} ({row.cluster.name})"


def _watched_incident(row: WatchedIncident) -> Description:
    outcome = "open" if row.closed_at is None else "over: no longer seen"
    what = f"{row.subject_kind} {row.subject}: {ADVICE[Cause(row.cause)].title}"
    return Description(what, outcome, row.text)


SOURCES = (
    Source(
        kind=LineKind.ACTION,
        rows=Request.objects.all,
        time="created_at",
        describe=_request,
        parts=(PIPELINE, "run"),
        actor="requester",
    ),
    Source(kind=LineKind.STATUS, rows=StatusChange.objects.all, time="at", describe=_status),
    Source(kind=LineKind.FAILURE, rows=Failure.objects.all, time="at", describe=_failure),
    Source(
        kind=LineKind.RECOVERY, rows=Recovery.objects.all, time="started_at", describe=_recovery
    ),
    Source(
        kind=LineKind.CHECKPOINT,
        rows=Checkpoint.objects.all,
        time="trigger_at",
        describe=_checkpoint,
        routine=ROUTINE,
    ),
    Source(
        kind=LineKind.REFUSAL,
        rows=RestoreRefusal.objects.all,
        time="at",
        describe=lambda row: Description(row.message, "refused", row.path),
    ),
    Source(kind=LineKind.DAMAGE, rows=DamageFinding.objects.all, time="at", describe=_damage),
    Source(kind=LineKind.REFUSAL, rows=ZombieRefusal.objects.all, time="at", describe=_zombie),
    Source(
        kind=LineKind.OUTPUT, rows=SupersededOutput.objects.all, time="at", describe=_superseded
    ),
    Source(kind=LineKind.REPEATED, rows=RepeatedOutput.objects.all, time="at", describe=_repeated),
    Source(kind=LineKind.CLEAN_UP, rows=Leftover.objects.all, time="at", describe=_leftover),
    Source(kind=LineKind.TAKEOVER, rows=TargetTakeover.objects.all, time="at", describe=_takeover),
    Source(
        kind=LineKind.QUARANTINE,
        rows=QuarantinedRecord.objects.all,
        time="at",
        describe=_quarantined,
    ),
    Source(
        kind=LineKind.AUDIT,
        rows=Audit.objects.all,
        time="created_at",
        describe=_audit,
        actor="requester",
    ),
    Source(
        kind=LineKind.GAME_DAY,
        rows=GameDay.objects.all,
        time="asked_at",
        describe=_game_day,
        parts=(PIPELINE, "run"),
        actor="requester",
    ),
    Source(
        kind=LineKind.LAB,
        rows=Lab.objects.all,
        time="asked_at",
        describe=_lab,
        parts=(),
        actor="requested_by",
    ),
    Source(
        kind=LineKind.ALERT,
        rows=Alert.objects.all,
        time="fired_at",
        describe=_alert,
        parts=(PIPELINE,),
        actor="acknowledged_by",
    ),
    Source(
        kind=LineKind.SETTING,
        rows=lambda: AdminAction.objects.filter(NO_REQUEST),
        time="at",
        describe=_setting,
        parts=(),
        actor="who",
    ),
    Source(
        kind=LineKind.INCIDENT,
        rows=Incident.objects.all,
        time="opened_at",
        describe=_incident,
        parts=(PIPELINE, "run"),
    ),
    Source(
        kind=LineKind.QUERY,
        rows=RunEvent.objects.all,
        time="at",
        describe=_query_event,
        parts=("query",),
    ),
    Source(
        kind=LineKind.QUERY,
        rows=QueryWork.objects.all,
        time="created_at",
        describe=_query_work,
        parts=("query",),
        actor="requester",
    ),
    Source(
        kind=LineKind.INCIDENT,
        rows=WatchedIncident.objects.all,
        time="opened_at",
        describe=_watched_incident,
        parts=PARTS,
    ),
    Source(
        kind=LineKind.FLINK,
        rows=FlinkEvent.objects.all,
        time="at",
        describe=_flink_event,
        parts=("job__cluster",),
    ),
    Source(
        kind=LineKind.FLINK,
        rows=FlinkAction.objects.all,
        time="created_at",
        describe=_flink_action,
        parts=("job__cluster",),
        actor="requester",
    ),
    Source(
        kind=LineKind.ACTION,
        rows=lambda: AdminAction.objects.filter(what=REFUSED_REQUEST),
        time="at",
        describe=_setting,
        parts=(),
        actor="who",
    ),
)
"""A stored request is the line of its own row, so its entry in the audit log is no line."""


BATCH = 500


@dataclass(frozen=True, slots=True)
class LogPage:
    """`older` is where the next page begins; None: there are no older lines."""

    now: datetime
    lines: list[Line]
    older: str | None


def log_page(filters: EventFilter, cursor: Cursor | None, limit: int) -> LogPage:
    found = _lines(filters, cursor, limit + 1)
    older = str(Cursor.behind(found[limit - 1])) if len(found) > limit else None
    return LogPage(timezone.now(), found[:limit], older)


def whole_log(filters: EventFilter) -> Iterator[list[Line]]:
    """Yields every line, newest first, a batch at a time; reads each row once."""
    each = [_all_of(source, index, filters) for index, source in _sources(filters)]
    merged = heapq.merge(*each, key=_place)
    while lines := list(islice(merged, BATCH)):
        yield lines


def actors() -> list[str]:
    """Returns all people who ever asked for something."""
    found: set[str] = set()
    for source in SOURCES:
        if source.actor:
            names = source.rows().order_by().values_list(source.actor, flat=True)
            found.update(names.distinct())
    return sorted(found - {""})


def _lines(filters: EventFilter, cursor: Cursor | None, limit: int) -> list[Line]:
    each = [
        [_line(row, index, source) for row in _rows(source, index, filters, cursor)[:limit]]
        for index, source in _sources(filters)
    ]
    return list(islice(heapq.merge(*each, key=_place), limit))


def _all_of(source: Source, index: int, filters: EventFilter) -> Iterator[Line]:
    """Reads the lines in batches, each from where the previous one ended.

    No query stays open between batches, because several threads may ask for them.
    """
    cursor: Cursor | None = None
    while True:
        lines = [_line(row, index, source) for row in _rows(source, index, filters, cursor)[:BATCH]]
        yield from lines
        if len(lines) < BATCH:
            return
        cursor = Cursor.behind(lines[-1])


def _sources(filters: EventFilter) -> Iterator[tuple[int, Source]]:
    """Returns the sources that may have matching lines, each with its index in `SOURCES`."""
    return ((index, each) for index, each in enumerate(SOURCES) if _may_have(each, filters))


def _may_have(source: Source, filters: EventFilter) -> bool:
    """A filter by person or pipeline excludes sources that have none."""
    is_of_kind = filters.kind in (None, source.kind)
    has_actor = filters.actor is None or bool(source.actor)
    has_pipeline = filters.pipeline is None or bool(source.pipeline)
    return is_of_kind and has_actor and has_pipeline


def _rows(source: Source, index: int, filters: EventFilter, cursor: Cursor | None) -> QuerySet[Any]:
    rows = source.rows().select_related(*source.parts).order_by(f"-{source.time}", "-pk")
    if filters.pipeline is not None:
        rows = rows.filter(**{f"{source.pipeline}__name": filters.pipeline})
    if filters.actor is not None:
        rows = rows.filter(**{source.actor: filters.actor})
    if source.routine is not None and not filters.with_routine:
        rows = rows.exclude(source.routine)
    if filters.since is not None:
        rows = rows.filter(**{f"{source.time}__gte": filters.since})
    if filters.until is not None:
        rows = rows.filter(**{f"{source.time}__lt": filters.until})
    return rows if cursor is None else rows.filter(_behind(source, index, cursor))


def _behind(source: Source, index: int, cursor: Cursor) -> Q:
    older = Q(**{f"{source.time}__lt": cursor.at})
    up_to = Q(**{f"{source.time}__lte": cursor.at})
    if index == cursor.source:
        # With this bound, the database enters the index at that time. With only an OR of two
        # conditions, it reads the index from its beginning.
        return up_to & (older | Q(pk__lt=cursor.row))
    return up_to if index > cursor.source else older


def _line(row: Any, index: int, source: Source) -> Line:
    description = source.describe(row)
    run = getattr(row, "run", None)
    pipeline = row.pipeline if source.pipeline == PIPELINE else run.pipeline if run else None
    return Line(
        at=getattr(row, source.time),
        kind=source.kind,
        what=description.what,
        outcome=description.outcome,
        pipeline=pipeline.name if pipeline else "",
        run_id=run.run_id if run else "",
        actor=getattr(row, source.actor) if source.actor else "",
        why=description.why,
        source=index,
        row=row.pk,
        incident=description.incident,
    )


def _place(line: Line) -> tuple[float, int, int]:
    """Sorts newest first; at equal times by the order of the sources, then the newest row."""
    return -line.at.timestamp(), line.source, -line.row
