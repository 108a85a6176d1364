"""Prepares the start of a run's next attempt: chooses the point, reports it, and readies the ends.

Decides with `run_end` whether the run continues at all; `starting_point` decides at which point.
"""

from collections.abc import Collection, Sequence

from pipelines.domain.errors import FailureKind, InvariantViolated, Retryable
from pipelines.domain.events import LedgerBegun, RestorePointRefused, RestoreProgress
from pipelines.domain.gaps import Gap
from pipelines.domain.ids import CheckpointId, RunId, Uid
from pipelines.domain.status import DamageFinder
from pipelines.points.published_output import Published, newest_published, repeats
from pipelines.runtime.master.attempt.watchers import RunWatchers
from pipelines.runtime.master.output.leftovers import Leftovers, NeededOutput, TargetClaims
from pipelines.runtime.master.output.run_ledger import LedgerStart
from pipelines.runtime.master.requests.run_end import RunEnd
from pipelines.runtime.master.run_context import RunContext
from pipelines.runtime.master.start.starting_point import (
    EndsNotReady,
    StartingPoint,
    StartingPointChooser,
    forgets_state,
)
from pipelines.storage.store import Damage


class NextStart:
    """The next start of one run, through all of its attempts."""

    def __init__(self, context: RunContext, watchers: RunWatchers, end: RunEnd) -> None:
        self._context = context
        self._record = record = context.record
        self._watchers = watchers
        self._end = end
        self._chooser = StartingPointChooser(
            spec=context.spec,
            pipeline=context.pipeline,
            store=context.store,
            emit=record.emit,
            may_fall_back=context.settings.may_fall_back,
            quarantine=context.places.quarantine,
            watch=self._on_verified,
            on_damages=lambda point, damages: watchers.checkpoints.damage.on_damages(
                point, damages, DamageFinder.RECOVERY
            ),
            on_whole=watchers.checkpoints.damage.on_read_whole,
            check_held=context.lease.check_held,
        )
        self._claims = TargetClaims(context.spec, context.lease, record.emit)
        directory = context.lease.run_directory
        needed = NeededOutput(directory, context.store, context.storage_roots)
        check_held = context.lease.check_held
        self._leftovers = Leftovers(context.spec.run_id, needed, record.emit, check_held)
        self._has_cleaned_up = False
        self._start: StartingPoint | None = None

    @property
    def start(self) -> StartingPoint | None:
        """The start of the newest attempt, or of the next one; None before the first choice."""
        return self._start

    def choose_first(self, *, resumes: bool) -> None:
        """Chooses for this driver's first attempt. `resumes`: the run had another driver before.
        Raises what `choose` raises."""
        points = self._watchers.checkpoints.points.every_newest_first()
        known = {point.checkpoint_id for point in points if not point.is_claimed}
        start = self._chosen()
        if resumes:
            heard_ms, reached = self._record.last_heard_ms, self._watchers.board.reached_records
            self._say_what_is_gone(known, start)
            reached = max(reached, start.source_records)
            waited_ms = self._context.waited_ms
            self._watchers.recovery.on_failure(heard_ms, reached, waited_ms=waited_ms)
            self._chooser.say_what_memory_lost(self._context.places, start)
        self._decide(start)

    def choose(self) -> None:
        """Raises Rejected if there is no point to start from, Retryable if it cannot find out."""
        self._decide(self._chosen())

    def hold_targets(self) -> None:
        """Call before an attempt gets its number: a run without its targets must not continue.

        Raises TargetTaken if another run has one of them, and EndsNotReady.
        """
        try:
            self._claims.hold(self._chooser.targets())
        except Retryable as error:
            raise EndsNotReady(f"The attempt cannot begin: {error}") from error

    def make_ready(self) -> None:
        """Prepares sources, targets and ledger for an attempt that begins now.

        Raises EndsNotReady."""
        checkpoints, start = self._watchers.checkpoints, self._start
        if start is None:
            raise InvariantViolated("an attempt begins where it was decided")
        self._delete_given_up()
        self._say_what_comes_again(start)
        checkpoints.ancestors = start.ancestors_of(self._context.spec.run_id)
        checkpoints.ledger.begin(start.lineage, start.ledger, self._gaps_of(start))
        self._look_at_sources()
        self._clean_up_once(start)
        self._chooser.rewind_sinks(start)

    def put_back(self, lineage: Sequence[tuple[RunId, CheckpointId]]) -> None:
        """Call instead of `make_ready` if the run reads nothing more. From then on, its targets
        hold the output of `lineage`, and its ledger says so. Raises EndsNotReady."""
        self._delete_given_up()
        self._watchers.checkpoints.ledger.begin(lineage, LedgerStart())
        self._chooser.rewind_sinks(
            StartingPoint(point=None, lineage=tuple(lineage), source_records=0)
        )

    def clean_up_own(self) -> None:
        """Call when no slot of the run writes any more and only the points that it leaves exist."""
        self._context.lease.check_held()
        self._leftovers.discard_own(self._chooser.targets())

    def on_output_lost(self, checkpoint_id: CheckpointId, why: str) -> None:
        """Reports this point and all later ones as unusable: a run that starts from one of them has
        to commit that output first."""
        points = {p.location: p for p in self._watchers.checkpoints.points.every_newest_first()}
        if self._start is not None and self._start.point is not None:
            points[self._start.point.location] = self._start.point
        for location, point in points.items():
            if point.checkpoint_id >= checkpoint_id:
                refused = f"A run that starts from it fails: {why}"
                kind = FailureKind.OUTPUT_LOST
                self._record.emit(RestorePointRefused(path=location, message=refused, kind=kind))

    def on_damage_met(self, file: str | None, why: str) -> bool:
        """A slot could not read the starting point; `file` is None if no single file is at fault.
        Returns True if the run can go back to another point that is not known to be damaged."""
        point = None if self._start is None else self._start.point
        if point is None or self._start is None or not self._start.is_own:
            return False
        damage = self._watchers.checkpoints.damage
        damages = [] if file is None else [Damage(file, why, is_shared=True)]
        damage.on_found(point, damages, DamageFinder.RESTORE, why)
        points = self._watchers.checkpoints.points
        return self._context.settings.may_fall_back and bool(points.newest_first())

    def _on_verified(self, progress: RestoreProgress) -> None:
        """Reports progress to the journal, because reading a large point takes minutes."""
        self._context.loop.tick()
        board, checkpoints = self._watchers.board, self._watchers.checkpoints
        if self._context.clock.monotonic_ms() >= board.due_ms:
            status, done = self._record.status, checkpoints
            sample = board.report(status, done.last_completed_ms, done.last_committed_ms, progress)
            self._record.emit(sample)

    def _say_what_comes_again(self, start: StartingPoint) -> None:
        """Reports output that will be published again. Call before the ledger begins again: the old
        one has the lineage of the newest output."""
        spec, run = self._context.spec, self._context.lease.run_directory

        def published(uid: Uid) -> Published | None:
            return newest_published(run, self._claims.followed(uid) or spec.follows)

        for event in repeats(run, self._context.pipeline.sinks, start.output, published):
            if not self._record.has_said(event):
                self._record.emit(event)

    def _gaps_of(self, start: StartingPoint) -> Sequence[Gap]:
        """Returns the gaps that the run skips now, or that an earlier attempt of it skipped."""
        if not start.is_own:
            return start.gaps
        before = self._context.journal.newest(LedgerBegun)
        return before.gaps if before is not None else ()

    def _delete_given_up(self) -> None:
        """Deletes given-up points first: the next steps may roll back output that they name."""
        self._context.lease.check_held()
        try:
            self._watchers.checkpoints.delete_given_up()
        except Retryable as error:
            raise EndsNotReady(f"The attempt cannot begin: {error}") from error

    def _look_at_sources(self) -> None:
        try:
            self._context.beginning.look(self._context.pipeline.sources)
        except Retryable as error:
            raise EndsNotReady(f"The attempt cannot begin: {error}") from error

    def _clean_up_once(self, start: StartingPoint) -> None:
        """Discards leftovers of earlier runs. Once is enough: while this run holds its targets, no
        earlier run can leave anything more there."""
        if self._has_cleaned_up:
            return
        try:
            self._leftovers.discard_earlier(self._chooser.targets(), start.location)
        except Retryable as error:
            raise EndsNotReady(f"The attempt cannot begin: {error}") from error
        self._has_cleaned_up = True

    def _say_what_is_gone(self, known: Collection[CheckpointId], start: StartingPoint) -> None:
        """Reports that the newest point was deleted; the choice of a point does not notice that."""
        newest = self._record.newest_completed
        if newest is None or newest.checkpoint_id in known:
            return
        message = (
            "It is the newest point of the run and is not there any more: the run goes back to"
            f" {start.location or 'the beginning'}, and output that came after that is set aside."
        )
        self._record.emit(RestorePointRefused(path=newest.path, message=message))

    def _chosen(self) -> StartingPoint:
        points, only_ends = self._watchers.checkpoints.points, self._end.is_due
        start = self._chooser.choose(points, reads_on=not only_ends)
        self._end.check_start(start.location)
        if only_ends and not self._end.is_due:  # its final checkpoint cannot be used
            start = self._chooser.choose(points)
        return start

    def _decide(self, start: StartingPoint) -> None:
        self._start = start
        reads_again = not forgets_state(self._context.settings, start)
        self._watchers.board.on_attempt_ended(start.source_records, reads_again=reads_again)
        self._watchers.recovery.on_decided(
            start.checkpoint_id, start.location, start.source_records, reads_again=reads_again
        )
