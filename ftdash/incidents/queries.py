"""The only reader of incidents, and the figures that make their next step exact.

The figures say how much space is left where, and which server is away. They follow from the
arguments; only `free_space_at` asks the system about a disk.
"""

import re
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from django.core.paginator import Paginator
from django.db.models import QuerySet

from ftdash.formats import percent, plural, size
from ftdash.incidents.causes import Advice, Cause, Step, advice_on
from ftdash.incidents.machine import CALM_CHECKPOINTS
from ftdash.incidents.models import Incident
from ftdash.jobs.models import Failure, Run
from ftdash.metrics.queries.loads import resident_bytes_before
from ftdash.requests.storing import problem_with
from ftdash.runs.queries.freshness import is_lost
from ftdash.runs.queries.runs import newest_runs
from pipelines.domain.commands import COMMANDS
from pipelines.domain.status import JobStatus

_PATH = re.compile(r"(?<![\w.])(/[\w.\-/=@+]*[\w\-=@+])")
_PORTS = (  # how clients of PostgreSQL, Redis, Kafka and object stores name unreachable servers
    re.compile(r'at "(?P<host>[^"\s]+)"(?: \([^)]*\))?,? port (?P<port>\d{1,5})'),
    re.compile(
        r"(?<![\d:.\w])(?P<host>\[[0-9a-fA-F:]+\]|[A-Za-z0-9][\w.\-]*):(?P<port>\d{2,5})(?![\d:])"
    ),
)
_OFFSETS_GONE = re.compile(r"offsets ([\d,]+) to ([\d,]+) are gone")  # a source of Kafka says so
_ENTRIES_GONE = re.compile(r"([\d,]+) entries, (\d+-\d+) to (\d+-\d+), are gone")  # one of Redis
_SLOT = re.compile(r"Slot (\d+) \(pid")
_OF_DISKS = frozenset({Cause.DISK_FULL, Cause.DISK_READ_ONLY})


@dataclass(frozen=True, slots=True)
class FreeSpace:
    """The room on one file system, as it is now."""

    mount: str
    free_bytes: int
    total_bytes: int

    @property
    def sentence(self) -> str:
        share = percent(self.free_bytes / self.total_bytes) if self.total_bytes else "nothing"
        return (
            f"{size(self.free_bytes)} of {size(self.total_bytes)} ({share}) are free on"
            f" {self.mount} now."
        )


def path_in(text: str) -> str | None:
    """Returns the first path that a message names, or None if it names none."""
    found = _PATH.search(text)
    return found[1] if found else None


def server_in(text: str) -> str | None:
    """Returns `host:port` of the server that a message is about, or None if it names none."""
    for pattern in _PORTS:
        if found := pattern.search(text):
            return f"{found['host']}:{found['port']}"
    return None


def slot_in(text: str) -> str | None:
    """Returns the number of the slot that a message is about, or None if it is about none."""
    found = _SLOT.match(text)
    return found[1] if found else None


def memory_of(slot: str, resident_bytes: int) -> str:
    """Returns a sentence about the memory that a lost slot was last known to hold."""
    return f"Slot {slot} held {size(resident_bytes)} of memory when it was last heard of."


def figures(cause: Cause, text: str) -> str:
    """Returns one sentence with a figure that a person needs to act, or an empty string."""
    if cause in _OF_DISKS and (path := path_in(text)) is not None:
        space = free_space_at(Path(path))
        return space.sentence if space else ""
    if cause is Cause.INPUT_LOST:
        return _gap(text)
    if cause is Cause.SYSTEM_AWAY and (server := server_in(text)) is not None:
        return f"{server} does not answer."
    return ""


def _gap(text: str) -> str:
    if (gone := _OFFSETS_GONE.search(text)) is not None:
        first, last = (int(each.replace(",", "")) for each in gone.groups())
        count = plural(last - first + 1, "record")
        return f"The gap has up to {count}, offsets {first:,} to {last:,}."
    if (gone := _ENTRIES_GONE.search(text)) is not None:
        count = plural(int(gone[1].replace(",", "")), "record")
        return f"The gap has up to {count}, entries {gone[2]} to {gone[3]}."
    return ""


def free_space_at(path: Path) -> FreeSpace | None:
    """Returns the room on the file system of `path`; None if that is not on this machine."""
    try:
        there = next(each for each in (path, *path.parents) if each.exists())
        if there == Path("/") and len(path.parts) > 2:
            return None
        used = shutil.disk_usage(there)
        mount = next(each for each in (there, *there.parents) if each.is_mount())
    except (OSError, StopIteration):
        return None
    return FreeSpace(str(mount), used.free, used.total)


OPEN_MAX = 50
_BY_ITSELF = (JobStatus.RESTARTING, JobStatus.INITIALIZING, JobStatus.CREATED, JobStatus.FAILING)


@dataclass(frozen=True, slots=True)
class NoteView:
    author: str
    at: datetime
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class IncidentView:
    """One incident, with what a person should do next."""

    key: int
    pipeline: str
    run_id: str | None  # of its newest sign
    cause: Cause
    advice: Advice
    text: str  # its newest sign, as the engine says it
    opened_at: datetime
    last_at: datetime
    count: int  # of its signs
    standing: str  # what holds now, in a sentence
    needs_person: bool
    closed_at: datetime | None
    closed_because: str
    notes: list[NoteView]
    figures: str  # one sentence; empty: there are none
    steps: list[Step]  # those that are possible now, the best first
    restart_at: datetime | None  # when the run continues by itself, while it waits
    next_attempt: int | None  # that begins then

    @property
    def next_step(self) -> str:
        return f"{self.figures} {self.advice.step}".lstrip()

    @property
    def lasted(self) -> timedelta | None:
        return self.closed_at - self.opened_at if self.closed_at else None


@dataclass(frozen=True, slots=True)
class Evidence:
    """The newest failure behind an incident."""

    at: datetime
    attempt: int
    cause: str
    author_trace: str
    record: str
    detail: str


@dataclass(frozen=True, slots=True)
class IncidentHistory:
    """One page, newest first."""

    count: int
    page: int
    pages: int
    rows: list[IncidentView]


def open_incidents(pipeline: str | None = None) -> list[IncidentView]:
    """Returns the open incidents: those that wait for a person first, then the newest."""
    rows = _rows().filter(closed_at=None)
    if pipeline is not None:
        rows = rows.filter(pipeline__name=pipeline)
    return sorted(_views(rows[:OPEN_MAX]), key=lambda each: not each.needs_person)


def history(page: int, per_page: int) -> IncidentHistory:
    """Returns the incidents that are over. A page beyond the last gives the last page."""
    found = Paginator(_rows().exclude(closed_at=None), per_page).get_page(page)
    pages = found.paginator
    return IncidentHistory(pages.count, found.number, pages.num_pages, _views(found))


def incident(key: int) -> IncidentView | None:
    found = _views(_rows().filter(pk=key))
    return found[0] if found else None


def evidence(key: int) -> Evidence | None:
    """Returns None if it was seen without a failure, or the failure's row is deleted by now."""
    row = Incident.objects.filter(pk=key).first()
    if row is None:
        return None
    failures = Failure.objects.filter(run__pipeline=row.pipeline_id, kind=row.cause)
    failure = failures.filter(at__gte=row.opened_at, at__lte=row.last_at).order_by("-at").first()
    if failure is None:
        return None
    return Evidence(
        failure.at,
        failure.attempt,
        failure.cause,
        failure.author_trace,
        failure.record,
        failure.detail,
    )


def _rows() -> QuerySet[Incident]:
    return Incident.objects.select_related("pipeline", "run").prefetch_related("notes")


def advice_of(row: Incident) -> Advice:
    """Returns what a person should do about the incident now."""
    return advices_of([row])[row.pk]


def advices_of(rows: Iterable[Incident]) -> dict[int, Advice]:
    """Returns `advice_of` each, by primary key, with the same few queries for any number."""
    return {row.pk: _advice(row, newest) for row, newest in _with_newest_runs(rows)}


def _with_newest_runs(rows: Iterable[Incident]) -> list[tuple[Incident, Run | None]]:
    """Pairs each incident with the newest run of its pipeline, or None if the incident is over."""
    found = list(rows)
    waiting = {row.pipeline_id for row in found if row.closed_at is None}
    runs = {pipeline.pk: run for pipeline, run in newest_runs(waiting)} if waiting else {}
    return [(row, None if row.closed_at else runs.get(row.pipeline_id)) for row in found]


def _advice(row: Incident, newest: Run | None) -> Advice:
    has_failed = newest is not None and newest.status == JobStatus.FAILED.value
    return advice_on(Cause(row.cause), has_failed=has_failed)


def _views(rows: Iterable[Incident]) -> list[IncidentView]:
    return [_view(row, newest) for row, newest in _with_newest_runs(rows)]


def _view(row: Incident, newest: Run | None) -> IncidentView:
    cause, advice = Cause(row.cause), _advice(row, newest)
    return IncidentView(
        key=row.pk,
        pipeline=row.pipeline.name,
        run_id=row.run.run_id if row.run else None,
        cause=cause,
        advice=advice,
        text=row.text,
        opened_at=row.opened_at,
        last_at=row.last_at,
        count=max(1, row.count),
        standing=_standing(row, newest),
        needs_person=newest is not None and _needs_person(newest, advice),
        closed_at=row.closed_at,
        closed_because=row.closed_because,
        notes=[NoteView(note.author, note.at, note.text) for note in row.notes.all()],
        figures=_figures(row, cause) if row.closed_at is None else "",
        steps=_possible(row, newest, advice),
        restart_at=newest.goes_on_at if newest else None,
        next_attempt=newest.attempt + 1 if newest and newest.goes_on_at else None,
    )


def _figures(row: Incident, cause: Cause) -> str:
    slot = slot_in(row.text) if cause is Cause.SLOT_LOST else None
    if slot is None or row.run is None:
        return figures(cause, row.text)
    held = resident_bytes_before(row.run.pk, row.last_at).get(slot)
    return memory_of(slot, held) if held else ""


def _possible(row: Incident, newest: Run | None, advice: Advice) -> list[Step]:
    """Returns the steps whose requests would not be refused at once."""
    if row.closed_at is not None:
        return []
    return [
        step for step in advice.steps if not problem_with(COMMANDS[step.kind], row.pipeline, newest)
    ]


def _needs_person(run: Run, advice: Advice) -> bool:
    return run.status == JobStatus.FAILED.value or not advice.recovers_alone


def _standing(row: Incident, newest: Run | None) -> str:
    if row.closed_at is not None:
        return f"Over. {row.closed_because}"
    if newest is None:
        return ""
    if not newest.is_terminal and is_lost(newest):
        return "The run continues once its next driver has started."
    match JobStatus(newest.status):
        case JobStatus.FAILED:
            return "The run has failed and waits for a person."
        case JobStatus.RUNNING if row.last_at > newest.created_at and newest.attempt > 1:
            checkpoints = plural(CALM_CHECKPOINTS, "checkpoint")
            return (
                f"The run continues in attempt {newest.attempt}. The incident is over after"
                f" {checkpoints} without another sign."
            )
        case status if status in _BY_ITSELF:
            return f"The run recovers by itself: attempt {newest.attempt} is {status.value}."
        case _:
            return ""
