"""The recovery points of a pipeline, how fit each is, and which one to restore, with the reason.

Reads rows, and checks if manifests exist; `pipelines.points.verdict` recommends one.
"""

from dataclasses import dataclass
from datetime import datetime

import msgspec

from ftdash.checkpoints.answers import RecoveryPoint
from ftdash.checkpoints.queries import checkpoints as checkpoint_queries
from ftdash.jobs.models import Pipeline, PointInspection, Run
from ftdash.runs.queries.planning import measured
from ftdash.times import epoch_ms
from pipelines.points.verdict import Candidate, Fitness, Measured, recommended


@dataclass(frozen=True, slots=True)
class PointReading:
    """How far a worker has read it, since a person asked for that."""

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
        """The result of a reading, unless a later scheduled one found the point whole."""
        seen, verified_at = self.inspection, self.point.verified_at
        if seen is None or not seen.problem or seen.ended_at is None:
            return ""
        return "" if verified_at and verified_at > seen.ended_at else seen.problem


def point_choice(pipeline_name: str, limit: int = 50) -> PointChoice | None:
    """None: there is no such pipeline."""
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
    """The newest run and its ancestors: up to which checkpoint each; None: all of them."""
    run = pipeline.runs.select_related("parent").order_by("-number").first()
    found: dict[str, int | None] = {}
    up_to: int | None = None
    while run is not None and run.run_id not in found:
        found[run.run_id] = up_to
        up_to = run.first_checkpoint_id - 1
        run = Run.objects.filter(pk=run.parent_id).first() if run.parent_id else None
    return found


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
