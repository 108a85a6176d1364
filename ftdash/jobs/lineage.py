"""The tree of runs and recovery points: which run was forked from which point of which other run.

A run is one lineage, and its points are ordered by their completion. A point is older than another
only within a lineage or along the forks between them; ids alone say nothing across runs.
"""

from dataclasses import dataclass
from datetime import datetime

from django.db.models import Q

from ftdash.checkpoints.models import COMPLETE, Checkpoint, CheckpointStatus
from ftdash.jobs.models import Pipeline, Run

POINTS_PER_RUN_MAX = 200


@dataclass(frozen=True, slots=True)
class LineagePoint:
    checkpoint_id: int
    kind: str
    completed_at: datetime
    path: str | None
    is_available: bool  # neither replaced nor disposed of
    forks: list[str]  # ids of the runs that were restored from it


@dataclass(frozen=True, slots=True)
class LineageRun:
    """`points` are in the order of their completion: all that somebody forked from, and of the
    others the newest."""

    run_id: str
    pipeline: str
    number: int
    depth: int  # 0: it began at the beginning
    state: str
    created_at: datetime
    parent_run_id: str | None
    restored_from: str | None
    restored_checkpoint_id: int | None
    claim_mode: str | None  # None: not restored
    points: list[LineagePoint]


def lineage(pipeline: str, runs_max: int | None = None) -> list[LineageRun] | None:
    """The trees that hold a run of the pipeline, each run before its forks, oldest first.

    A restore may cross pipelines, so a tree shows runs of others too. With `runs_max` the newest
    of them. None: no such pipeline.
    """
    if not Pipeline.objects.filter(name=pipeline).exists():
        return None
    runs = Run.objects.select_related("pipeline").order_by("created_at", "pk").in_bulk()
    forks: dict[int | None, list[Run]] = {}
    for run in runs.values():
        forks.setdefault(run.parent_id, []).append(run)
    roots = {_root_of(run, runs).pk for run in runs.values() if run.pipeline.name == pipeline}
    waiting = [(0, runs[pk]) for pk in sorted(roots, reverse=True)]
    found: list[tuple[int, Run]] = []
    while waiting:
        depth, run = waiting.pop()
        found.append((depth, run))
        waiting += [(depth + 1, fork) for fork in reversed(forks.get(run.pk, []))]
    newest = set(sorted((run.pk for _, run in found), reverse=True)[:runs_max])
    return [
        _described(run, depth, runs.get(run.parent_id or 0), forks.get(run.pk, []))
        for depth, run in found
        if run.pk in newest
    ]


def _root_of(run: Run, runs: dict[int, Run]) -> Run:
    while run.parent_id is not None:
        run = runs[run.parent_id]
    return run


def _described(run: Run, depth: int, parent: Run | None, forks: list[Run]) -> LineageRun:
    return LineageRun(
        run_id=run.run_id,
        pipeline=run.pipeline.name,
        number=run.number,
        depth=depth,
        state=run.status,
        created_at=run.created_at,
        parent_run_id=parent.run_id if parent else None,
        restored_from=run.restored_from,
        restored_checkpoint_id=run.first_checkpoint_id - 1 if run.restored_from else None,
        claim_mode=run.claim_mode if run.restored_from else None,
        points=_points(run, forks),
    )


def _points(run: Run, forks: list[Run]) -> list[LineagePoint]:
    forked: dict[int, list[str]] = {}
    for fork in forks:
        forked.setdefault(fork.first_checkpoint_id - 1, []).append(fork.run_id)
    rows = Checkpoint.objects.filter(run=run, status__in=COMPLETE, completed_at__isnull=False)
    newest = rows.order_by("-completed_at", "-pk").values_list("pk", flat=True)
    chosen = Q(pk__in=list(newest[:POINTS_PER_RUN_MAX])) | Q(checkpoint_id__in=forked)
    shown = list(rows.filter(chosen))
    shown.sort(key=lambda row: (row.completed_at, row.sequence))
    return [_point(row, forked) for row in shown]


def _point(row: Checkpoint, forked: dict[int, list[str]]) -> LineagePoint:
    checkpoint_id = row.checkpoint_id or 0
    return LineagePoint(
        checkpoint_id=checkpoint_id,
        kind=row.kind,
        completed_at=row.completed_at or row.trigger_at,
        path=row.path,
        is_available=row.status == CheckpointStatus.COMPLETED,
        forks=forked.get(checkpoint_id, []),
    )
