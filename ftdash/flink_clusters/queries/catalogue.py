"""The catalogue of points: savepoints and retained checkpoints of all jobs of a cluster.

Flink knows ten points of a job, and none of a job that it has forgotten. The catalogue has them
all, with everything that Flink has said about each.
"""

from dataclasses import dataclass
from enum import StrEnum

from django.db.models import Q, QuerySet

from ftdash.flink_clusters.models import FlinkCheckpoint, FlinkCheckpointStatus, FlinkJob
from ftdash.flink_clusters.queries import CheckpointBrief, brief_of


class PointKind(StrEnum):
    SAVEPOINT = "savepoint"
    CHECKPOINT = "checkpoint"


class Files(StrEnum):
    """The state of a point's files, as Flink said last.

    Flink says nothing about a savepoint that another program deletes.
    """

    THERE = "there"
    DELETED = "deleted"
    ANY = "any"


@dataclass(frozen=True, slots=True, kw_only=True)
class PointFilter:
    """Empty `jid` and `path`, and `kind` None, match everything. `path` is a part of the path."""

    jid: str = ""
    kind: PointKind | None = None
    files: Files = Files.THERE
    path: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CataloguedPoint:
    jid: str
    job_name: str
    is_forgotten: bool  # the cluster no longer lists the job
    point: CheckpointBrief


@dataclass(frozen=True, slots=True)
class Catalogue:
    rows: list[CataloguedPoint]  # newest first
    page: int
    pages: int
    count: int


def catalogue(name: str, point_filter: PointFilter, *, page: int, per_page: int) -> Catalogue:
    """Returns points of one cluster. A page number beyond the last gives the last page."""
    rows = _rows(name, point_filter)
    count = rows.count()
    pages = max(1, -(-count // per_page))
    page = min(page, pages)
    found = rows[(page - 1) * per_page : page * per_page]
    return Catalogue([_point(each) for each in found], page, pages, count)


def jobs_with_points(name: str) -> list[tuple[str, str]]:
    """Returns (id, name) of each job that has points, the newest job first."""
    with_points = _rows(name, PointFilter(files=Files.ANY)).order_by().values("job")
    rows = FlinkJob.objects.filter(pk__in=with_points)
    return list(rows.values_list("jid", "name"))


def _rows(name: str, point_filter: PointFilter) -> QuerySet[FlinkCheckpoint]:
    rows = FlinkCheckpoint.objects.filter(
        job__cluster__name=name, status=FlinkCheckpointStatus.COMPLETED
    ).exclude(external_path="")
    if point_filter.jid:
        rows = rows.filter(job__jid=point_filter.jid)
    if point_filter.kind is not None:
        rows = rows.filter(is_savepoint=point_filter.kind is PointKind.SAVEPOINT)
    if point_filter.files is not Files.ANY:
        rows = rows.filter(is_discarded=point_filter.files is Files.DELETED)
    if point_filter.path:
        rows = rows.filter(Q(external_path__icontains=point_filter.path))
    return rows.select_related("job").defer("subtasks").order_by("-ended_at", "-pk")


def _point(row: FlinkCheckpoint) -> CataloguedPoint:
    return CataloguedPoint(
        jid=row.job.jid,
        job_name=row.job.name,
        is_forgotten=row.job.forgotten_at is not None,
        point=brief_of(row),
    )
