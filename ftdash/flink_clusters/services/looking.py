"""Looks at clusters: asks each what is due, one request after the other, and keeps the answers.

A look holds the turn of its cluster, so that no two processes talk to it at once. The same turn
carries out people's actions on its jobs. It writes all rows between requests, never while one is
under way.
"""

import logging
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models import F, Q
from django.utils import timezone

from ftdash.errands import isolated
from ftdash.flink_clusters.bodies import (
    Checkpoints,
    CheckpointStatistics,
    Exceptions,
    JobDetail,
    JobOverview,
    JobsOverview,
    Metric,
    Settings,
    SubtaskPart,
    VertexCheckpoint,
    VertexPressure,
    parts_of,
    pressure_of,
)
from ftdash.flink_clusters.models import FlinkCluster, FlinkJob
from ftdash.flink_clusters.politeness import (
    Wanted,
    is_settled,
    pause_after,
    pause_until_next,
    to_detail,
    wanted,
)
from ftdash.flink_clusters.rest import FlinkRest, Silent, Unknown
from ftdash.flink_clusters.services import actions, keeping
from pipelines.domain.errors import Rejected, Retryable

log = logging.getLogger("ftdash.flink_clusters")

TURN_LASTS = timedelta(seconds=60)
"""Longer than one request may take: a holder that has not renewed its turn by then is dead."""

TASK_BUDGET_S = 10.0
LOOK_BUDGET_S = 20.0
"""The next look does the rest, and begins with the jobs that have waited longest."""

PROBLEM_LENGTH_MAX = 1_000
EXCEPTIONS_MAX = 20


class TurnLost(Retryable):
    """Another process took the turn over, because this one was silent for too long."""


@dataclass(frozen=True, slots=True)
class Turn:
    cluster: int
    holder: str

    def keep(self) -> None:
        """Raises TurnLost if another process has it by now, or the cluster was removed."""
        mine = FlinkCluster.objects.filter(pk=self.cluster, turn_holder=self.holder)
        if not mine.update(turn_until=timezone.now() + TURN_LASTS):
            raise TurnLost("Another process talks to the cluster by now.")


@contextmanager
def turn_of(cluster: int) -> Iterator[Turn | None]:
    """Yields None while another process talks to it. A clock set back makes no process wait."""
    now = timezone.now()
    holder = secrets.token_hex(16)
    until = now + TURN_LASTS
    is_free = Q(turn_holder="") | Q(turn_until__lte=now) | Q(turn_until__gt=until)
    taken = FlinkCluster.objects.filter(is_free, pk=cluster)
    if not taken.update(turn_holder=holder, turn_until=until):
        yield None
        return
    try:
        yield Turn(cluster, holder)
    finally:
        FlinkCluster.objects.filter(pk=cluster, turn_holder=holder).update(turn_holder="")


def look_at_due() -> bool:
    """Look at all clusters that are due. Returns True if this call had no time for some."""
    ends_s = time.monotonic() + TASK_BUDGET_S
    due = FlinkCluster.objects.filter(due_at__lte=timezone.now()).order_by("due_at")
    for key, name in list(due.values_list("pk", "name")):
        if time.monotonic() > ends_s:
            return True
        with isolated(f"The look at the Flink cluster {name}"):
            look(key)
    return False


def key_of(name: str) -> int:
    """Raises Rejected if no cluster of that name is watched."""
    found = FlinkCluster.objects.filter(name=name).values_list("pk", flat=True).first()
    if found is None:
        raise Rejected(f"There is no watched Flink cluster {name!r}; see `watch_flink list`.")
    return int(found)


def look(key: int) -> bool:
    """Returns False if another process looks at the cluster now."""
    with turn_of(key) as turn:
        if turn is None:
            return False
        turn.keep()
        row = FlinkCluster.objects.get(pk=key)
        headers = {row.header_name: row.header_value} if row.header_name else {}
        with FlinkRest(row.address, headers, before_each=turn.keep) as flink:
            try:
                states = _ask_and_keep(row, flink)
            except (Silent, Rejected) as problem:
                _note_failure(row, str(problem))
                actions.end_overdue(row)
            else:
                _note_success(row, states)
    return True


def _note_failure(row: FlinkCluster, problem: str) -> None:
    """Keeps the known facts, and the time when the cluster was last heard."""
    if not row.failed_looks:
        log.warning("The Flink cluster %s: %s", row.name, problem)
    FlinkCluster.objects.filter(pk=row.pk).update(
        problem=problem[:PROBLEM_LENGTH_MAX],
        failed_looks=row.failed_looks + 1,
        due_at=timezone.now() + pause_after(row.failed_looks + 1),
        version=F("version") + 1,
    )


def _note_success(row: FlinkCluster, states: list[str]) -> None:
    now = timezone.now()
    FlinkCluster.objects.filter(pk=row.pk).update(
        heard_at=now,
        problem="",
        failed_looks=0,
        due_at=now + pause_until_next(states),
        version=F("version") + 1,
    )


def _ask_and_keep(row: FlinkCluster, flink: FlinkRest) -> list[str]:
    """Returns the states of the cluster's jobs.

    Raises Silent, or Rejected if it does not answer as Flink does.
    """
    ends_s = time.monotonic() + LOOK_BUDGET_S
    if row.failed_looks or not row.flink_version:
        keeping.keep_version(row, flink.flink_version())
    listed = flink.get("/jobs/overview", JobsOverview).jobs
    keeping.keep_list(row, listed, timezone.now())
    actions.carry_on(row, flink)
    by_jid = {each.jid: each for each in listed}
    known = FlinkJob.objects.filter(cluster=row, jid__in=by_jid)
    for job in known.order_by(F("looked_at").asc(nulls_first=True)):
        if time.monotonic() > ends_s:
            break
        try:
            _look_at_job(job, by_jid[job.jid], flink)
        except Rejected as problem:  # about this job alone
            log.error("The look at the Flink job %s has to wait: %s", job.jid, problem)
    return [each.state for each in listed]


def _look_at_job(job: FlinkJob, listed: JobOverview, flink: FlinkRest) -> None:
    """Raises Silent; Rejected if an answer about this job cannot be used."""
    now = timezone.now()
    wants = wanted(
        listed,
        known_modification=job.last_modification,
        takes_checkpoints=job.takes_checkpoints,
        pressure_at=job.pressure_at,
        now=now,
    )
    if wants.is_nothing:
        return
    is_known = False
    try:
        if wants.everything:
            is_known = is_settled(listed, _read_all_about(job, flink))
        found = _read_checkpoints(job, flink, wants) if wants.checkpoints else None
        if wants.pressure:
            _read_pressure(job, flink, now)
    except Unknown:
        return  # it has gone since it was listed
    if is_known:
        job.last_modification = listed.last_modification
    job.looked_at = now
    job.save(update_fields=["last_modification", "looked_at"])
    if found is not None:
        ended = found.all()
        for each in to_detail(ended, keeping.detailed_among(job, ended)):
            keeping.keep_subtasks(job, each.id, _parts(job, each, flink))


def _read_all_about(job: FlinkJob, flink: FlinkRest) -> int:
    """Returns the time by Flink's clock, in ms since the epoch."""
    path = f"/jobs/{job.jid}"
    detail = flink.get(path, JobDetail)
    keeping.keep_vertices(job, detail.vertices)
    address = f"{path}/exceptions?maxExceptions={EXCEPTIONS_MAX}"
    keeping.keep_exceptions(job, flink.get(address, Exceptions).exception_history.entries)
    return detail.now


def _read_checkpoints(job: FlinkJob, flink: FlinkRest, wants: Wanted) -> Checkpoints | None:
    """Returns None if the job takes no checkpoints: Flink then answers 404."""
    path = f"/jobs/{job.jid}/checkpoints"
    try:
        found = flink.get(path, Checkpoints)
    except Unknown:
        keeping.keep_no_checkpoints(job)
        return None
    if wants.everything or not job.settings:
        keeping.keep_settings(job, flink.get(f"{path}/config", Settings))
    keeping.keep_checkpoints(job, found, timezone.now())
    return found


def _read_pressure(job: FlinkJob, flink: FlinkRest, now: datetime) -> None:
    path = f"/jobs/{job.jid}"
    found = [
        pressure_of(each, flink.get(f"{path}/vertices/{each.id}/backpressure", VertexPressure))
        for each in keeping.vertices_of(job)
    ]
    metrics = flink.get(f"{path}/metrics?get=numRestarts", list[Metric])
    keeping.keep_pressure(job, [each for each in found if each is not None], metrics, now)


def _parts(
    job: FlinkJob, checkpoint: CheckpointStatistics, flink: FlinkRest
) -> list[SubtaskPart] | None:
    """Returns None if Flink has forgotten the subtasks."""
    path = f"/jobs/{job.jid}/checkpoints/details/{checkpoint.id}/subtasks"
    parts: list[SubtaskPart] = []
    try:
        for vertex in keeping.vertices_of(job):
            parts += parts_of(vertex.id, flink.get(f"{path}/{vertex.id}", VertexCheckpoint))
    except Unknown:
        return None
    return parts
