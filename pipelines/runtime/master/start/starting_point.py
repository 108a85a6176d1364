"""Decides, with `protocol.recovery`, where an attempt starts, and prepares the sinks for it."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pipelines.connectors.files.quarantine import quarantine_of
from pipelines.connectors.sink import Sink
from pipelines.domain.errors import CorruptSnapshot, Retryable
from pipelines.domain.events import (
    Event,
    OutputSuperseded,
    RestorePointRefused,
    RestoreProgress,
)
from pipelines.domain.ids import CheckpointId, RunId, Uid
from pipelines.domain.run import MEMORY, RunSpec, SnapshotPlaces, scheme_of
from pipelines.domain.settings import CheckpointingMode, Settings
from pipelines.points.contents import source_records_of
from pipelines.points.fit import PointFit
from pipelines.points.published_output import Start
from pipelines.protocol.compatibility import compare
from pipelines.protocol.restart import Choice, NoUsablePoint, choose_point
from pipelines.protocol.retention import RetainedPoint, RetainedPoints
from pipelines.runtime.master.output.run_ledger import LedgerStart
from pipelines.runtime.master.start.restore_points import requested_point, verifier
from pipelines.storage.store import CheckpointStore, Damage
from pipelines.stream import Pipeline


class EndsNotReady(Exception):
    """No slot of the attempt was started, because a source of its records or a target of its output
    does not answer, or because a point that was given up could not be deleted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartingPoint:
    """`point` None: from the beginning. `lineage` ends with the point itself."""

    point: RetainedPoint | None
    lineage: tuple[tuple[RunId, CheckpointId], ...]
    source_records: int  # what the sources had read at the point
    is_own: bool = False
    """The run itself took the point, so a start there is a recovery. A point that a person
    requested is not its own, whether the run has claimed it or not."""
    dropped_states: tuple[tuple[Uid, str], ...] = ()  # left behind, because the run allows that
    ledger: LedgerStart = field(default_factory=LedgerStart)
    output: Start = field(default_factory=Start)

    @property
    def location(self) -> str | None:
        return self.point.location if self.point else None

    @property
    def checkpoint_id(self) -> CheckpointId | None:
        return self.point.checkpoint_id if self.point else None

    def ancestors_of(self, run_id: RunId) -> list[tuple[RunId, CheckpointId]]:
        """The lineage outside the run itself: for each run, up to where it belongs."""
        return [ancestor for ancestor in self.lineage if ancestor[0] != run_id]


def forgets_state(settings: Settings, start: StartingPoint | None) -> bool:
    """At most once, a failure costs the state: its results may have come out already. Sources go on
    behind all that they may have emitted."""
    is_own = start is not None and start.is_own
    return is_own and settings.checkpointing_mode is CheckpointingMode.AT_MOST_ONCE


@dataclass(frozen=True, slots=True, kw_only=True)
class StartingPointChooser:
    spec: RunSpec
    pipeline: Pipeline
    store: CheckpointStore
    emit: Callable[[Event], None]
    may_fall_back: bool = True  # to an older point, when the newest does not verify
    quarantine: str = ""  # the directory of the quarantines of all sources
    watch: Callable[[RestoreProgress], None] = lambda progress: None  # the reading of a point
    on_damages: Callable[[RetainedPoint, Sequence[Damage]], None] = lambda point, damages: None
    on_whole: Callable[[RetainedPoint], None] = lambda point: None  # though it was marked
    check_held: Callable[[], None] = lambda: None  # raises when the lease is lost

    def choose(self, points: RetainedPoints, *, reads_on: bool = True) -> StartingPoint:
        """The newest own point that verifies; before there is one, the requested one. A point that
        is marked as damaged is read only if no other can be used.

        Without `reads_on`, the sources need not have the records after the point any more.

        Raises:
            Rejected: the requested point belongs elsewhere or does not fit.
            CorruptSnapshot: points exist and none can be used; starting afresh would double
                output, so the run does not.
        """
        kept = points.every_newest_first()
        has_own = any(not point.is_claimed for point in kept)
        fit = PointFit.of(self.spec, self.pipeline, reads_on=reads_on)
        requested = None if has_own else self._requested(fit)
        own = points.candidates() if self.may_fall_back else kept
        candidates = own or ([requested] if requested else [])
        damages: dict[RetainedPoint, Sequence[Damage]] = {}
        problem_of = verifier(self.store, fit, self.watch, damages.__setitem__)
        found = choose_point(candidates, problem_of, may_fall_back=self.may_fall_back)
        for refused in found.refused:
            location = refused.point.location
            self.emit(RestorePointRefused(path=location, message=refused.problem))
            if refused.point in kept:
                points.on_damaged(refused.point, refused.problem)
                self.on_damages(refused.point, damages.get(refused.point, ()))
        if isinstance(found, NoUsablePoint):
            raise CorruptSnapshot(self._why_none(found))
        self._say_what_was_passed_over(found, points)
        is_own = found.point is not None and found.point in kept and not found.point.is_claimed
        return self._described(found.point, fit, is_own=is_own)

    def _say_what_was_passed_over(self, found: Choice, points: RetainedPoints) -> None:
        """Reports newer points that were marked before, and so were not read now."""
        if found.point is None:
            return
        if points.damage_of(found.point) is not None:
            self.on_whole(found.point)
        refused = {each.point for each in found.refused}
        for point in points.every_newest_first():
            if point == found.point:
                return
            why = points.damage_of(point)
            if why is not None and point not in refused:
                self.emit(RestorePointRefused(path=point.location, message=f"Passed over: {why}"))

    def say_what_memory_lost(self, places: SnapshotPlaces, start: StartingPoint) -> None:
        """Call in a driver that follows another one."""
        if scheme_of(places.checkpoints) != MEMORY:
            return
        message = (
            "The checkpoints of this run were in the memory of the driver that ended and are lost"
            f" with it; the run starts from {start.location or 'the beginning'}, and output that"
            " came after that is set aside."
        )
        self.emit(RestorePointRefused(path=places.checkpoints, message=message))

    def targets(self) -> Iterator[tuple[Uid, Sink]]:
        """All that the run may write to, by the uid of the sink, or of the quarantine's source."""
        yield from self.pipeline.sinks.items()
        yield from self._quarantines()

    def rewind_sinks(self, start: StartingPoint) -> None:
        """Sets aside output that the starting point does not know of, so that nothing doubles.

        Raises EndsNotReady.
        """
        try:
            self._rewind_sinks(start)
        except Retryable as error:
            raise EndsNotReady(f"The attempt cannot begin: {error}") from error

    def _rewind_sinks(self, start: StartingPoint) -> None:
        """A successor may have committed output that this driver's point does not know of."""
        for uid, sink in self.targets():
            self.check_held()
            superseded = sink.rewind(list(start.lineage), self.spec.run_id)
            if superseded is not None and superseded.items:
                event = OutputSuperseded(
                    sink=uid, files=superseded.items, moved_to=superseded.moved_to
                )
                self.emit(event)

    def _quarantines(self) -> Iterator[tuple[Uid, Sink]]:
        """Those that hold something: a source whose records were never at fault has none."""
        for uid in self.pipeline.sources:
            if self.quarantine and (Path(self.quarantine) / uid).exists():
                yield uid, quarantine_of(self.quarantine, uid, self.spec.pipeline)

    def _why_none(self, found: NoUsablePoint) -> str:
        problem = found.refused[0].problem
        if self.may_fall_back:
            return f"No recovery point of this run can be used: {problem}"
        return (
            f"The newest recovery point of this run cannot be used: {problem} It does not go back"
            " to an older one (execution.state-recovery.on-damaged-point = fail, or"
            " execution.checkpointing.mode = AT_MOST_ONCE); choose a point and restore it."
        )

    def _requested(self, fit: PointFit) -> RetainedPoint | None:
        requested = requested_point(self.spec, self.store)
        if requested is not None:
            fit.check(self.store.manifest(requested.location), requested.location)
        return requested

    def _described(
        self, point: RetainedPoint | None, fit: PointFit, *, is_own: bool
    ) -> StartingPoint:
        if point is None:
            return StartingPoint(point=None, lineage=(), source_records=0)
        manifest = self.store.manifest(point.location)
        lineage = (*manifest.ancestors, (manifest.run_id, manifest.checkpoint_id))
        dropped = compare(manifest, fit.target).dropped_states
        return StartingPoint(
            point=point,
            lineage=lineage,
            source_records=source_records_of(manifest),
            is_own=is_own,
            dropped_states=dropped,
            ledger=LedgerStart.at(manifest),
            output=Start.at(manifest),
        )
