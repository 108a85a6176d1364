"""Facts about recovery points across the runs of a pipeline: which one to restore, and the lineage.

Says how fit each recovery point is, and which one to restore, with the reason: it reads rows, and
checks if manifests exist; `pipelines.points.verdict` recommends one.

The lineage is the tree of runs and recovery points: which run was restored from which point of
which run. A run is one line, and its points are ordered by completion. A point is older than
another only within a line or along the forks between them; across runs, ids say nothing. A restore
sets aside the output that was committed after its point. It is counted from the ledgers of the runs
in between; it is unknown if their rows no longer reach back to the point.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

import msgspec
from django.db.models import Q

from ftdash.checkpoints.answers import RecoveryPoint
from ftdash.checkpoints.models import COMPLETE, Checkpoint, CheckpointStatus
from ftdash.checkpoints.projector import ROWS_KEPT
from ftdash.checkpoints.queries import checkpoints as checkpoint_queries
from ftdash.checkpoints.queries.guarantee import LedgerLine, ledger
from ftdash.jobs.models import Pipeline, PointInspection, Request, Run
from ftdash.runs.queries.planning import measured
from ftdash.times import epoch_ms
from pipelines.domain.commands import STARTS
from pipelines.domain.settings.parsing import DEFINITIONS
from pipelines.points.verdict import Candidate, Fitness, Measured, recommended


@dataclass(frozen=True, slots=True)
class PointReading:
    """How far a worker has read the point since a person asked for that."""

    files_read: int
    files: int | None  # None: it has not begun
    bytes_read: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FitPoint:
    point: RecoveryPoint
    fitness: Fitness
    problem: str  # why it is refused; empty if it is not
    verified_at: datetime | None  # by schedule, or for a person who was about to restore it
    is_on_line: bool  # the newest run descends from it
    records_to_replay: int | None
    estimated_ms: float | None  # until everything that was read before is read again
    reading: PointReading | None  # None: no worker reads it now
    is_recommended: bool


@dataclass(frozen=True, slots=True)
class PointChoice:
    """`points` are newest first."""

    points: list[FitPoint]
    reason: str  # for the recommended one, or for none; sentences
    recovery_count: int  # the number of measured recoveries behind the estimates

    @property
    def recommended(self) -> FitPoint | None:
        return next((each for each in self.points if each.is_recommended), None)


@dataclass(frozen=True, slots=True)
class _Looked:
    """A point with everything on record about it."""

    point: RecoveryPoint
    inspection: PointInspection | None

    @property
    def problem(self) -> str:
        return self.point.problem or self._found_problem

    @property
    def verified_at(self) -> datetime | None:
        seen = self.inspection
        read = seen.ended_at if seen and not seen.problem else None
        return max((at for at in (self.point.verified_at, read) if at is not None), default=None)

    @property
    def fitness(self) -> Fitness:
        if not self.point.is_present:
            return Fitness.GONE
        if self.problem:
            return Fitness.REFUSED
        return Fitness.VERIFIED if self.verified_at else Fitness.UNREAD

    @property
    def reading(self) -> PointReading | None:
        seen = self.inspection
        if seen is None or seen.ended_at is not None:
            return None
        return msgspec.convert(seen, PointReading, from_attributes=True)

    @property
    def _found_problem(self) -> str:
        """The problem that a reading found, unless a later scheduled one found it whole."""
        seen, verified_at = self.inspection, self.point.verified_at
        if seen is None or not seen.problem or seen.ended_at is None:
            return ""
        return "" if verified_at and verified_at > seen.ended_at else seen.problem


def point_choice(pipeline_name: str, limit: int = 50) -> PointChoice | None:
    """Returns None if there is no such pipeline."""
    pipeline = Pipeline.objects.filter(name=pipeline_name).first()
    if pipeline is None:
        return None
    points = checkpoint_queries.recovery_points(pipeline_name, limit)
    wanted = [point.path for point in points]
    seen = {each.path: each for each in PointInspection.objects.filter(path__in=wanted)}
    looked = [_Looked(point, seen.get(point.path)) for point in points]
    known, line = measured(pipeline, with_source_records=True), newest_line(pipeline)
    candidates = [_candidate(each, known, line) for each in looked]
    found = recommended(candidates)
    return PointChoice(
        points=[
            _fit(each, candidate, known, is_recommended=index == found.index)
            for index, (each, candidate) in enumerate(zip(looked, candidates, strict=True))
        ],
        reason=found.reason,
        recovery_count=len(known.recoveries_ms),
    )


def newest_line(pipeline: Pipeline) -> dict[str, int | None]:
    """Maps the newest run and its ancestors to their last checkpoints on the line; None: all."""
    return _line_of(_newest_with_output(pipeline))


def _line_of(run: Run | None) -> dict[str, int | None]:
    found: dict[str, int | None] = {}
    up_to: int | None = None
    while run is not None and run.run_id not in found:
        found[run.run_id] = up_to
        up_to = run.first_checkpoint_id - 1
        run = Run.objects.filter(pk=run.parent_id).first() if run.parent_id else None
    return found


_BEGAN_EMPTY = Q(restored_from=None, last_checkpoint_id=None)
"""A run from the beginning that has committed nothing."""


def _newest_with_output(pipeline: Pipeline) -> Run | None:
    """Returns the newest run; if its start was undone, the run whose output is back."""
    runs = pipeline.runs.select_related("parent").order_by("-number")
    newest = runs.first()
    if newest is None or not newest.start_undone:
        return newest
    return runs.exclude(_BEGAN_EMPTY).first()


def _candidate(each: _Looked, known: Measured, line: dict[str, int | None]) -> Candidate:
    point = each.point
    up_to = line.get(point.run_id, -1)
    return Candidate(
        name=f"{point.kind.lower()} {point.checkpoint_id} of run {point.run_number}",
        completed_ms=epoch_ms(point.completed_at),
        is_on_line=up_to is None or point.checkpoint_id <= up_to,
        fitness=each.fitness,
        records_to_replay=known.records_after(point.source_records),
    )


def _fit(each: _Looked, candidate: Candidate, known: Measured, *, is_recommended: bool) -> FitPoint:
    return FitPoint(
        point=each.point,
        fitness=each.fitness,
        problem=each.problem,
        verified_at=each.verified_at,
        is_on_line=candidate.is_on_line,
        records_to_replay=candidate.records_to_replay,
        estimated_ms=known.until_caught_up_ms(candidate.records_to_replay),
        reading=each.reading,
        is_recommended=is_recommended,
    )


POINTS_PER_RUN_MAX = 200
_DEFAULTS = {definition.key: definition.default for definition in DEFINITIONS}


@dataclass(frozen=True, slots=True)
class LineagePoint:
    checkpoint_id: int
    kind: str
    completed_at: datetime
    path: str | None
    is_available: bool  # neither replaced nor disposed of
    forks: list[str]  # ids of the runs that were restored from it


@dataclass(frozen=True, slots=True, kw_only=True)
class LineageRun:
    """A run in the lineage. `points` are in the order of completion.

    They are all points with a fork, and the newest of the others.
    """

    run_id: str
    pipeline: str
    number: int
    depth: int  # restores since the first run of its tree
    state: str
    created_at: datetime
    parent_run_id: str | None
    restored_from: str | None
    restored_checkpoint_id: int | None
    claim_mode: str | None  # None: not restored
    code: str  # the package that it ran, with version and digest; empty: an installed one
    started_by: str  # empty: not known
    why: str  # in that person's words
    changes: list[str]  # since the run that it was restored from: code, settings, operators
    tree_restored_from: str | None
    """The point from which the first run of its tree was restored: one of an unknown run.

    None means that the first run started from the beginning.
    """
    points: list[LineagePoint]


def lineage(pipeline: str, runs_max: int | None = None) -> list[LineageRun] | None:
    """Returns the trees with a run of the pipeline, each run before its forks, oldest first.

    A restore may cross pipelines, so a tree also shows runs of others. With `runs_max`, returns
    only the newest of them, and always the pipeline's own newest. None means that there is no such
    pipeline.
    """
    if not Pipeline.objects.filter(name=pipeline).exists():
        return None
    runs = Run.objects.select_related("pipeline").order_by("created_at", "pk").in_bulk()
    forks: dict[int | None, list[Run]] = {}
    for run in runs.values():
        forks.setdefault(run.parent_id, []).append(run)
    own = sorted(
        (run for run in runs.values() if run.pipeline.name == pipeline),
        key=lambda run: run.number,
    )
    roots = {_root_of(run, runs).pk for run in own}
    found = list(_trees([runs[pk] for pk in sorted(roots)], forks))
    shown = set(sorted((node.run.pk for node in found), reverse=True)[:runs_max])
    shown.update(run.pk for run in own[-1:])
    starts = Request.objects.filter(kind__in=STARTS, run__in=shown)
    start_of = {start.run_id: start for start in starts}
    return [
        _described(
            node,
            runs.get(node.run.parent_id or 0),
            forks.get(node.run.pk, []),
            start_of.get(node.run.pk),
        )
        for node in found
        if node.run.pk in shown
    ]


@dataclass(frozen=True, slots=True)
class _Node:
    run: Run
    root: Run
    depth: int


def _trees(roots: list[Run], forks: dict[int | None, list[Run]]) -> Iterator[_Node]:
    """Yields each run before its forks. A tree may be deeper than Python's recursion limit."""
    waiting = [_Node(root, root, 0) for root in reversed(roots)]
    while waiting:
        node = waiting.pop()
        yield node
        children = reversed(forks.get(node.run.pk, []))
        waiting += [_Node(fork, node.root, node.depth + 1) for fork in children]


def _root_of(run: Run, runs: dict[int, Run]) -> Run:
    while run.parent_id is not None:
        run = runs[run.parent_id]
    return run


def _changes(run: Run, parent: Run | None) -> Iterator[str]:
    if parent is None:
        return
    if run.code != parent.code:
        before, now = (each.code_described or "an installed package" for each in (parent, run))
        yield f"code: {before} → {now}"
    yield from _changed(parent.settings, run.settings, _DEFAULTS)
    yield from _changed(parent.parameters, run.parameters, {})
    if run.renamed_uids:
        yield f"renamed: {', '.join(f'{a} → {b}' for a, b in sorted(run.renamed_uids.items()))}"
    if run.accepted_gaps:
        yield f"input accepted as lost: {'; '.join(run.accepted_gaps)}"
    before_uids, uids = _uids(parent), _uids(run)
    before_uids = {run.renamed_uids.get(uid, uid) for uid in before_uids}
    if not before_uids or not uids:
        return  # one of them never started
    if added := sorted(uids - before_uids):
        yield f"added: {', '.join(added)}"
    if dropped := sorted(before_uids - uids):
        yield f"dropped: {', '.join(dropped)}"


def _changed(
    before: dict[str, str], now: dict[str, str], defaults: dict[str, str]
) -> Iterator[str]:
    for name in sorted(before.keys() | now.keys()):
        old, new = (each.get(name, defaults.get(name, "not set")) for each in (before, now))
        if old != new:
            yield f"{name}: {old or 'not set'} → {new or 'not set'}"


def _uids(run: Run) -> set[str]:
    return {uid for vertex in run.vertices for uid in vertex["operators"]}


def _described(
    node: _Node, parent: Run | None, forks: list[Run], request: Request | None
) -> LineageRun:
    run = node.run
    return LineageRun(
        run_id=run.run_id,
        pipeline=run.pipeline.name,
        number=run.number,
        depth=node.depth,
        state=run.status,
        created_at=run.created_at,
        parent_run_id=parent.run_id if parent else None,
        restored_from=run.restored_from,
        restored_checkpoint_id=run.first_checkpoint_id - 1 if run.restored_from else None,
        claim_mode=run.claim_mode if run.restored_from else None,
        code=run.code_described,
        started_by="" if request is None else request.requester,
        why="" if request is None else request.reason,
        changes=list(_changes(run, parent)),
        tree_restored_from=node.root.restored_from,
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


def rows_after(path: str, pipeline: Pipeline) -> int | None:
    """Counts the rows that all sinks together committed after the point at `path`.

    None means that the number is not known, or that the newest run does not descend from the point.
    """
    point = Checkpoint.objects.filter(path=path).select_related("run").first()
    line = newest_line(pipeline)
    if point is None or point.checkpoint_id is None or point.run.run_id not in line:
        return None
    up_to = line[point.run.run_id]
    if up_to is not None and up_to < point.checkpoint_id:
        return None  # a restore has since gone back to another point of its run
    total = 0
    for run_id, last_id in line.items():  # newest first; their checkpoint ids continue
        lines = _lines_after(run_id, point.checkpoint_id)
        if lines is None:
            return None
        kept = [each for each in lines if last_id is None or each.checkpoint_id <= last_id]
        total += sum(_rows(each) for each in kept)
        if run_id == point.run.run_id:
            break
    return total


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedOutput:
    """The output that one sink has committed on the newest line.

    `is_whole` is False if there is more before it.
    """

    sink: str
    rows: int
    first_at: datetime
    last_at: datetime
    is_whole: bool


def committed_output(pipeline: Pipeline) -> list[CommittedOutput]:
    """Returns the output by sink, without the sinks that have committed no row."""
    return _committed_on(newest_line(pipeline))


def output_to_put_back(pipeline: Pipeline) -> list[CommittedOutput]:
    """Returns the output, by sink, that was visible before the newest run started over."""
    newest, *_ = pipeline.runs.order_by("-number")[:1]
    earlier = pipeline.runs.filter(number__lt=newest.number).exclude(_BEGAN_EMPTY)
    return _committed_on(_line_of(earlier.select_related("parent").order_by("-number").first()))


def _committed_on(runs: dict[str, int | None]) -> list[CommittedOutput]:
    found: dict[str, CommittedOutput] = {}
    for run_id, last_id in runs.items():
        lines = ledger(run_id, ROWS_KEPT).lines
        is_whole = len(lines) < ROWS_KEPT
        for line in lines:
            if not _rows(line) or (last_id is not None and line.checkpoint_id > last_id):
                continue
            for output in line.outputs:
                if output.rows:
                    each = CommittedOutput(
                        sink=output.sink,
                        rows=output.rows,
                        first_at=line.at,
                        last_at=line.at,
                        is_whole=is_whole,
                    )
                    known = found.get(output.sink)
                    found[output.sink] = each if known is None else _together(known, each)
    return [found[sink] for sink in sorted(found)]


def _together(one: CommittedOutput, other: CommittedOutput) -> CommittedOutput:
    return CommittedOutput(
        sink=one.sink,
        rows=one.rows + other.rows,
        first_at=min(one.first_at, other.first_at),
        last_at=max(one.last_at, other.last_at),
        is_whole=one.is_whole and other.is_whole,
    )


def _lines_after(run_id: str, checkpoint_id: int) -> list[LedgerLine] | None:
    """Returns None if some of the lines were deleted, or there is no ledger."""
    lines = ledger(run_id, ROWS_KEPT).lines
    after = [line for line in lines if line.checkpoint_id > checkpoint_id]
    is_whole = bool(lines) and (len(lines) < ROWS_KEPT or len(after) < len(lines))
    return after if is_whole else None


def _rows(line: LedgerLine) -> int:
    if line.is_void or not line.is_committed:
        return 0
    return sum(output.rows for output in line.outputs)
