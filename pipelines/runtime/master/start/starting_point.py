"""Decides, with `protocol.restart`, where an attempt starts, and prepares the sinks for it.

A run can start from its own retained points, or from the requested one. This module reads them from
storage, verifies them, and reports each point that it refuses; `protocol.restart` makes the choice.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pipelines.connectors.files.quarantine import quarantine_of
from pipelines.connectors.sink import Sink
from pipelines.domain.errors import CorruptSnapshot, FailureKind, Rejected, Retryable, kind_of
from pipelines.domain.events import (
    Event,
    OutputSuperseded,
    RestorePointRefused,
    RestoreProgress,
)
from pipelines.domain.gaps import Gap
from pipelines.domain.ids import CheckpointId, RunId, Uid
from pipelines.domain.run import MEMORY, RunSpec, SnapshotPlaces, scheme_of
from pipelines.domain.settings import CheckpointingMode, Settings
from pipelines.domain.snapshots import Manifest
from pipelines.domain.status import CheckpointKind, ClaimMode
from pipelines.points.contents import source_records_of
from pipelines.points.fit import PointFit
from pipelines.points.published_output import Start
from pipelines.protocol.compatibility import compare
from pipelines.protocol.restart import Choice, NoUsablePoint, choose_point
from pipelines.protocol.retention import RetainedPoint, RetainedPoints
from pipelines.runtime.master.output.run_ledger import LedgerStart
from pipelines.storage.store import CheckpointStore, Damage, WatchVerification
from pipelines.stream import Pipeline


def own_points(places: SnapshotPlaces, store: CheckpointStore) -> list[RetainedPoint]:
    """Returns the points that earlier drivers of this run published, by the names in the storage.

    A point whose manifest cannot be read stays in the list under its directory's name. So the run
    refuses it visibly when its turn comes, and does not silently skip it.

    Raises:
        Retryable: the storage does not answer.
    """
    points = []
    for root in (places.checkpoints, places.savepoints):
        ids = {name: places.checkpoint_id_of(name) for name in store.names(root)}
        own = {name: checkpoint_id for name, checkpoint_id in ids.items() if checkpoint_id}
        for location in store.published(root, among=own):
            name = location.rpartition("/")[2]
            points.append(RetainedPoint(own[name], location, name.startswith("savepoint-")))
    return points


def claimed_point(spec: RunSpec, store: CheckpointStore) -> list[RetainedPoint]:
    """Returns the point that the run was restored from, if the run claimed it and it exists."""
    if spec.restore_from is None or spec.claim_mode is not ClaimMode.CLAIM:
        return []
    try:
        manifest = store.manifest(spec.restore_from)
    except CorruptSnapshot:
        return []  # deleted long ago, or damaged; the choice of a point reports relevant damage
    return [RetainedPoint(manifest.checkpoint_id, spec.restore_from, is_claimed=True)]


def next_checkpoint_id(
    places: SnapshotPlaces, store: CheckpointStore, spec: RunSpec, newest_triggered: CheckpointId
) -> CheckpointId:
    """Returns an id above all that any attempt of this run may have used, complete or not.

    `newest_triggered` comes from the journal. Ids in the storage count, too, because the journal
    may lose its last lines when the machine fails.
    """
    names = [*store.names(places.checkpoints), *store.names(places.savepoints)]
    used = [places.checkpoint_id_of(name) or 0 for name in names]
    return CheckpointId(max([spec.first_checkpoint_id - 1, newest_triggered, *used]) + 1)


def verifier(
    store: CheckpointStore,
    fit: PointFit,
    watch: WatchVerification,
    on_damaged: Callable[[RetainedPoint, Sequence[Damage]], None],
    on_unfit: Callable[[RetainedPoint, Rejected], None],
) -> Callable[[RetainedPoint], str | None]:
    """Returns a function that says why a point cannot be used, or None if it can.

    The function reads every byte of the point and reports to `watch` after each file. It passes all
    damages to `on_damaged`, or the reason why a whole point does not fit to `on_unfit`. It raises
    Retryable if the answer is not known now.
    """

    def problem_of(point: RetainedPoint) -> str | None:
        check_mounted(store, point.location)
        damages = store.verify(point.location, watch)
        if damages:
            check_mounted(store, point.location)
            on_damaged(point, damages)
            return damages[0].problem
        try:
            fit.check(store.manifest(point.location), point.location)
        except Rejected as error:
            on_unfit(point, error)
            return str(error)
        return None

    return problem_of


def check_mounted(store: CheckpointStore, location: str) -> None:
    """Distinguishes a damaged point from an unmounted disk, whose directory is empty or absent.
    Call before and after you read the point, because the disk may come back meanwhile.

    Raises Retryable if the disk is not mounted: the point may be whole.
    """
    root = location.rstrip("/").rpartition("/")[0]
    if not scheme_of(root) and not store.names(root):
        raise Retryable(
            f"{location} is missing, and {root} is empty: see that the storage is mounted."
        )


def requested_point(spec: RunSpec, store: CheckpointStore) -> RetainedPoint | None:
    """Returns the requested point, or None. Raises CorruptSnapshot if it is damaged."""
    if spec.restore_from is None:
        return None
    check_mounted(store, spec.restore_from)
    try:
        manifest = store.manifest(spec.restore_from)
    except CorruptSnapshot:
        check_mounted(store, spec.restore_from)
        raise
    is_savepoint = manifest.kind is CheckpointKind.SAVEPOINT
    return RetainedPoint(manifest.checkpoint_id, spec.restore_from, is_savepoint)


class EndsNotReady(Exception):
    """No slot of the attempt was started, because a source or a target does not answer, or because
    a point that was given up could not be deleted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartingPoint:
    """Where an attempt starts: at `point`, or at the beginning if it is None.

    `lineage` ends with the point itself.
    """

    point: RetainedPoint | None
    lineage: tuple[tuple[RunId, CheckpointId], ...]
    source_records: int  # how many records the sources had read at the point
    is_own: bool = False
    """The run itself took the point, so a start there is a recovery. A point that a person
    requested is not its own, whether the run has claimed it or not."""
    dropped_states: tuple[tuple[Uid, str], ...] = ()  # not restored, which the run allows
    ledger: LedgerStart = field(default_factory=LedgerStart)
    output: Start = field(default_factory=Start)
    gaps: tuple[Gap, ...] = ()  # missing input that the start skips
    moved: Manifest | None = None  # with positions behind these gaps; None if there are none

    @property
    def location(self) -> str | None:
        return self.point.location if self.point else None

    @property
    def checkpoint_id(self) -> CheckpointId | None:
        return self.point.checkpoint_id if self.point else None

    def ancestors_of(self, run_id: RunId) -> list[tuple[RunId, CheckpointId]]:
        """Returns the lineage without this run: each ancestor, up to its last checkpoint in it."""
        return [ancestor for ancestor in self.lineage if ancestor[0] != run_id]


def forgets_state(settings: Settings, start: StartingPoint | None) -> bool:
    """Returns True if the attempt must drop its state: a recovery in mode at most once.

    Results of the state may have been emitted already. Sources continue behind every record that
    they may have emitted."""
    is_own = start is not None and start.is_own
    return is_own and settings.barriers.mode is CheckpointingMode.AT_MOST_ONCE


@dataclass(frozen=True, slots=True, kw_only=True)
class StartingPointChooser:
    spec: RunSpec
    pipeline: Pipeline
    store: CheckpointStore
    emit: Callable[[Event], None]
    may_fall_back: bool = True  # to an older point, if the newest does not verify
    quarantine: str = ""  # the directory of the quarantines of all sources
    watch: Callable[[RestoreProgress], None] = lambda progress: None  # follows the reading
    on_damages: Callable[[RetainedPoint, Sequence[Damage]], None] = lambda point, damages: None
    on_whole: Callable[[RetainedPoint], None] = lambda point: None  # a marked point is whole
    check_held: Callable[[], None] = lambda: None  # raises if the lease is lost

    def choose(self, points: RetainedPoints, *, reads_on: bool = True) -> StartingPoint:
        """Returns the newest own point that verifies, or the requested one if the run has none yet.
        It reads a point that is marked as damaged only if no other can be used.

        If `reads_on` is False, the sources need not have the records after the point any more.

        Raises:
            Rejected: the requested point belongs elsewhere or does not fit.
            CorruptSnapshot: points exist and none can be used. The run does not start from the
                beginning then, because that would double output.
        """
        kept = points.every_newest_first()
        has_own = any(not point.is_claimed for point in kept)
        fit = PointFit.of(self.spec, self.pipeline, reads_on=reads_on)
        requested = None if has_own else self._requested(fit)
        own = points.candidates() if self.may_fall_back else kept
        candidates = own or ([requested] if requested else [])
        damages: dict[RetainedPoint, Sequence[Damage]] = {}
        unfit: dict[RetainedPoint, Rejected] = {}
        problem_of = verifier(self.store, fit, self.watch, damages.__setitem__, unfit.__setitem__)
        found = choose_point(candidates, problem_of, may_fall_back=self.may_fall_back)
        for refused in found.refused:
            location = refused.point.location
            why_unfit = unfit.get(refused.point)
            kind = FailureKind.POINT_DAMAGED if why_unfit is None else kind_of(why_unfit)
            self.emit(RestorePointRefused(path=location, message=refused.problem, kind=kind))
            if refused.point in kept:
                points.on_damaged(refused.point, refused.problem)
                self.on_damages(refused.point, damages.get(refused.point, ()))
        if isinstance(found, NoUsablePoint):
            why = unfit.get(found.refused[0].point)  # None if it is damaged
            raise CorruptSnapshot(self._why_none(found)) from why
        self._say_what_was_passed_over(found, points)
        is_own = found.point is not None and found.point in kept and not found.point.is_claimed
        return self._described(found.point, fit, is_own=is_own)

    def _say_what_was_passed_over(self, found: Choice, points: RetainedPoints) -> None:
        """Reports newer points that were not read because they were marked before."""
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
        """Reports checkpoints lost with the previous driver's memory. Call in a driver that follows
        another one."""
        if scheme_of(places.checkpoints) != MEMORY:
            return
        message = (
            "The checkpoints of this run were in the memory of the driver that ended and are lost"
            f" with it; the run starts from {start.location or 'the beginning'}, and output that"
            " came after that is set aside."
        )
        kind = FailureKind.DRIVER_LOST
        self.emit(RestorePointRefused(path=places.checkpoints, message=message, kind=kind))

    def targets(self) -> Iterator[tuple[Uid, Sink]]:
        """Yields every target of the run, with the uid of its sink or its quarantine's source."""
        yield from self.pipeline.sinks.items()
        yield from self._quarantines()

    def rewind_sinks(self, start: StartingPoint) -> None:
        """Sets aside output that the starting point does not include, so that nothing doubles.

        Raises EndsNotReady.
        """
        try:
            self._rewind_sinks(start)
        except Retryable as error:
            raise EndsNotReady(f"The attempt cannot begin: {error}") from error

    def _rewind_sinks(self, start: StartingPoint) -> None:
        """Checks the lease first: a successor may have committed output that this driver's point
        does not include."""
        for uid, sink in self.targets():
            self.check_held()
            superseded = sink.rewind(list(start.lineage), self.spec.run_id)
            if superseded is not None and superseded.items:
                event = OutputSuperseded(
                    sink=uid, files=superseded.items, moved_to=superseded.moved_to
                )
                self.emit(event)

    def _quarantines(self) -> Iterator[tuple[Uid, Sink]]:
        """Yields the quarantines that exist: a source without a poison record has none."""
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
        stored = self.store.manifest(point.location)
        manifest, gaps = fit.past_gaps(stored, point.location)
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
            gaps=gaps,
            moved=manifest if gaps else None,
        )
