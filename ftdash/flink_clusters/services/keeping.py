"""Keeps the answers of clusters as rows. Newer answers change a row, and none deletes it.

Every answer may come again: keeping it twice changes nothing. A checkpoint that has ended stays
ended.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

import msgspec
from django.db import transaction
from django.db.models import F, Q

from ftdash.flink_clusters.bodies import (
    Checkpoints,
    CheckpointStatistics,
    FailureEntry,
    JobOverview,
    Metric,
    Pressure,
    Restored,
    Settings,
    SubtaskPart,
    Vertex,
)
from ftdash.flink_clusters.models import (
    FlinkCheckpoint,
    FlinkCheckpointStatus,
    FlinkCluster,
    FlinkEvent,
    FlinkEventKind,
    FlinkJob,
)
from ftdash.times import moment
from pipelines.domain.texts import storable

TEXT_LENGTH_MAX = 20_000
TITLE_LENGTH_MAX = 500
ANSWER_FIELDS_MAX = 60
FORGOTTEN = "Flink no longer lists the job"


def keep_version(row: FlinkCluster, version: str) -> None:
    FlinkCluster.objects.filter(pk=row.pk).update(flink_version=version[:40])


def keep_list(row: FlinkCluster, listed: Sequence[JobOverview], now: datetime) -> None:
    """Stores new jobs, new states, and which jobs the cluster has forgotten."""
    with transaction.atomic():
        known = {each.jid: each for each in FlinkJob.objects.filter(cluster=row)}
        for each in listed:
            job = known.pop(each.jid, None)
            if job is None:
                job = FlinkJob(
                    cluster=row, jid=each.jid, started_at=_moment(each.start_time) or now
                )
            _keep_overview(job, each, now)
        for job in known.values():
            if job.forgotten_at is None:
                job.forgotten_at = now
                job.save(update_fields=["forgotten_at"])
                _note(job, FlinkEventKind.STATE, now, FORGOTTEN)


def _keep_overview(job: FlinkJob, listed: JobOverview, now: datetime) -> None:
    before, state = job.state, listed.state[:20]
    job.name, job.state = plain(listed.name), state
    job.listed_at, job.forgotten_at = now, None
    job.ended_at = _moment(listed.end_time)
    job.save()
    if before != state:
        at = _moment(listed.last_modification) or now
        _note(job, FlinkEventKind.STATE, at, f"{before} → {state}" if before else state)


def keep_vertices(job: FlinkJob, vertices: Sequence[Vertex]) -> None:
    job.vertices = msgspec.to_builtins(list(vertices))
    job.save(update_fields=["vertices"])


def vertices_of(job: FlinkJob) -> list[Vertex]:
    return msgspec.convert(job.vertices, list[Vertex])


def keep_exceptions(job: FlinkJob, entries: Iterable[FailureEntry]) -> None:
    for each in entries:
        place = filter(None, (each.task_name, each.task_manager_id or each.endpoint))
        _note(
            job,
            FlinkEventKind.EXCEPTION,
            moment(each.timestamp),
            each.exception_name,
            text=each.stacktrace,
            place=", ".join(place),
        )


def keep_settings(job: FlinkJob, settings: Settings) -> None:
    """Stores Flink's answer unchanged, except for nested parts."""
    plain = {k: v for k, v in settings.items() if isinstance(v, str | int | float | bool)}
    kept = settings.get("externalization")
    if isinstance(kept, dict):
        plain |= {f"externalization_{k}": v for k, v in kept.items() if isinstance(v, bool)}
    job.settings = dict(sorted(plain.items())[:ANSWER_FIELDS_MAX])
    job.save(update_fields=["settings"])


def keep_no_checkpoints(job: FlinkJob) -> None:
    if job.takes_checkpoints is not False:
        job.takes_checkpoints = False
        job.save(update_fields=["takes_checkpoints"])


def keep_checkpoints(job: FlinkJob, answer: Checkpoints, now: datetime) -> None:
    found = answer.all()
    ids = [each.id for each in found]
    with transaction.atomic():
        rows = FlinkCheckpoint.objects.filter(job=job, checkpoint_id__in=ids)
        known = {row.checkpoint_id: row for row in rows}
        for each in found:
            _keep_checkpoint(job, known.get(each.id), each, now)
        rows.update(said_at=now)
        job.takes_checkpoints, job.counts = True, msgspec.to_builtins(answer.counts)
        job.save(update_fields=["takes_checkpoints", "counts"])
        if answer.latest.restored is not None:
            _keep_restore(job, answer.latest.restored)


def _keep_checkpoint(
    job: FlinkJob, row: FlinkCheckpoint | None, said: CheckpointStatistics, now: datetime
) -> None:
    if row is None:
        row = FlinkCheckpoint(job=job, checkpoint_id=said.id, said_at=now)
    elif row.status != FlinkCheckpointStatus.IN_PROGRESS and row.is_discarded == said.discarded:
        return  # it has ended, and nothing about it changes but its files
    is_over = said.status != FlinkCheckpointStatus.IN_PROGRESS
    ended_ms = said.failure_timestamp or said.latest_ack_timestamp
    row.status = FlinkCheckpointStatus(said.status)
    row.checkpoint_type = (said.checkpoint_type or "")[:30]
    row.is_savepoint, row.savepoint_format = said.is_savepoint, (said.savepoint_format or "")[:20]
    row.triggered_at = moment(said.trigger_timestamp)
    row.ended_at = _moment(ended_ms) if is_over else None
    row.duration_ms = _known(said.end_to_end_duration)
    row.state_bytes, row.uploaded_bytes = _known(said.state_size), _known(said.checkpointed_size)
    row.processed_bytes = _known(said.processed_data)
    row.persisted_bytes = _known(said.persisted_data)
    row.subtask_count, row.acknowledged_count = said.num_subtasks, said.num_acknowledged_subtasks
    row.external_path, row.is_discarded = plain(said.external_path), said.discarded
    row.failure = plain(said.failure_message)
    row.save()


def _keep_restore(job: FlinkJob, restored: Restored) -> None:
    what = "savepoint" if restored.is_savepoint else "checkpoint"
    path = plain(restored.external_path)
    title = f"{what} {restored.id}"
    _note(job, FlinkEventKind.RESTORED, moment(restored.restore_timestamp), title, text=path)


def detailed_among(job: FlinkJob, found: Iterable[CheckpointStatistics]) -> list[int]:
    """Returns the ids of the checkpoints whose subtasks were asked for."""
    rows = FlinkCheckpoint.objects.filter(job=job, checkpoint_id__in=[each.id for each in found])
    return list(rows.exclude(has_subtasks=None).values_list("checkpoint_id", flat=True))


def keep_subtasks(job: FlinkJob, checkpoint_id: int, parts: list[SubtaskPart] | None) -> None:
    """`parts` is None if Flink has forgotten them."""
    columns: dict[str, Any] = {"has_subtasks": parts is not None}
    if parts is not None:
        columns["subtasks"] = msgspec.to_builtins(parts)
        columns["alignment_ms"] = max((each.alignment_ms for each in parts), default=None)
    FlinkCheckpoint.objects.filter(job=job, checkpoint_id=checkpoint_id).update(**columns)


def keep_pressure(
    job: FlinkJob, found: Sequence[Pressure], metrics: Iterable[Metric], now: datetime
) -> None:
    """If nothing is found, Flink is gathering its figures now, so the next look asks again."""
    restarts = [each.value for each in metrics if each.id == "numRestarts"]
    if restarts and restarts[0].isdecimal():
        job.restart_count = int(restarts[0])
    if found:
        job.pressure, job.pressure_at = msgspec.to_builtins(list(found)), now
    job.save(update_fields=["restart_count", "pressure", "pressure_at"])


def make_known(*, flink_cluster: int = 0, flink_job: int = 0) -> None:
    """Takes the key of the cluster, or of one of its jobs; makes open pages ask again."""
    mine = FlinkCluster.objects.filter(Q(pk=flink_cluster) | Q(jobs__pk=flink_job))
    FlinkCluster.objects.filter(pk__in=mine.values("pk")).update(version=F("version") + 1)


def _note(
    job: FlinkJob,
    kind: FlinkEventKind,
    at: datetime,
    title: str,
    *,
    text: str = "",
    place: str = "",
) -> None:
    """Stores the event once, however often the cluster reports it."""
    FlinkEvent.objects.get_or_create(
        job=job,
        kind=kind,
        at=at,
        title=plain(title)[:TITLE_LENGTH_MAX],
        defaults={"text": plain(text), "place": plain(place)[:1_000]},
    )


def plain(text: str | None) -> str:
    return storable(text or "")[:TEXT_LENGTH_MAX]


def _moment(epoch_ms: int) -> datetime | None:
    """Flink writes -1 for a time that has not come."""
    return None if epoch_ms <= 0 else moment(epoch_ms)


def _known(figure: int | None) -> int | None:
    return None if figure is None or figure < 0 else figure
