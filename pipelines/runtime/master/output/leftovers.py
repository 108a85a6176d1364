"""A run's claims to its targets, and the removal of unfinished output that runs left there.

A run makes a claim once, and stores it in its directory before the target sees it. So a driver that
follows a dead one knows whether the run has ever had a target, and never takes it over a second
time (`domain.ownership`).

Output that was written, staged or prepared for a checkpoint that never completed stays in the
target when its run is cancelled or killed: no later checkpoint commits it. Before a run writes, it
discards what earlier runs of its pipeline left; when it ends, it discards its own. Only the run
that holds the target may do so; the target checks that. A recovery point needs the output that its
committables name: a run that restores it commits that output first. A point that cannot be read
does not count as absent: its run is then in doubt, and its output stays.
"""

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import msgspec

from pipelines.bus.journal import UndecodableEvent, newest_event
from pipelines.bus.journal_segments import segments_of
from pipelines.bus.lease import Lease, is_driven
from pipelines.connectors.sink import HoldsTarget, LeavesUnfinished, Sink, Unfinished
from pipelines.disk.files import make_durable, replace_atomically
from pipelines.domain.clock import waiting_at_most
from pipelines.domain.errors import UNDECODABLE, Rejected, Retryable, TargetTaken
from pipelines.domain.events import (
    CheckpointCompleted,
    Event,
    LeftoversDiscarded,
    LeftoversKept,
    SettingsChanged,
    TargetTakenOver,
)
from pipelines.domain.ids import RunId, Uid
from pipelines.domain.ownership import Claim, Holder
from pipelines.domain.run import MEMORY, RunDirectory, RunSpec, SnapshotPlaces, scheme_of
from pipelines.domain.settings.parsing import parse_settings
from pipelines.domain.snapshots import Json, Manifest
from pipelines.storage.store import CheckpointStore


class InDoubt(Exception):
    """It is not known which output the points of a run need. The message is a sentence."""


@dataclass(frozen=True, slots=True)
class Need:
    """`names`: the output that points need. `doubts`: for each run in doubt, the reason."""

    names: frozenset[str] = frozenset()
    doubts: Mapping[RunId, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NeededOutput:
    """Finds the output that points need, for the driver of the run in `own`.

    The first of `storage_roots` contains the directories of all runs.
    """

    own: RunDirectory
    store: CheckpointStore
    storage_roots: Collection[str]

    def of(self, runs: Collection[RunId], start: str | None) -> Need:
        """Returns the output that points of these runs, or the point at `start`, need.

        Only a run's own points name its unfinished output: a run that restores one of them commits
        that output before it takes a point of its own.
        """
        names: set[str] = set()
        doubts: dict[RunId, str] = {}
        for run_id in runs:
            run = RunDirectory(self.own.path.parent / run_id)
            try:
                names |= self._named_by_run(run, start)
            except InDoubt as doubt:
                doubts[run_id] = str(doubt)
        return Need(frozenset(names), doubts)

    def _named_by_run(self, run: RunDirectory, start: str | None) -> set[str]:
        """Checks the lease first: a run without a driver adds no point while this reads."""
        try:
            if not run.spec_file.exists():
                raise InDoubt(f"This installation knows nothing of run {run.run_id}.")
            if run.run_id != self.own.run_id and is_driven(run):
                raise InDoubt(f"The driver of run {run.run_id} has not ended.")
            points = {
                point for places in self._places(run) for point in self._points(places, run)
            } | ({start} if start is not None else set())
            return {name for point in points for name in named_by(self.store.manifest(point))}
        except (Retryable, Rejected, OSError, UndecodableEvent, *UNDECODABLE) as error:
            raise InDoubt(f"The points of run {run.run_id} cannot be read: {error}") from error

    def _places(self, run: RunDirectory) -> list[SnapshotPlaces]:
        """Returns the places of the run's points, by its first settings and by its present ones."""
        spec = msgspec.json.decode(run.spec_file.read_bytes(), type=RunSpec)
        changed = newest_event(run.journal_file, SettingsChanged)
        given = [spec.settings, *([changed.settings] if changed is not None else [])]
        return [SnapshotPlaces.of(run, parse_settings(settings).storage) for settings in given]

    def _points(self, places: SnapshotPlaces, run: RunDirectory) -> Iterator[str]:
        of_all_runs = places.checkpoints.rpartition("/")[0]
        for root, filled in ((places.checkpoints, of_all_runs), (places.savepoints,) * 2):
            if scheme_of(root) == MEMORY:
                continue  # these points ended with their driver
            names = self.store.names(root)
            if not names:
                self._check_mounted(root, filled, run)
            own = [name for name in names if places.checkpoint_id_of(name) is not None]
            yield from self.store.published(root, among=own)

    def _check_mounted(self, root: str, filled: str, run: RunDirectory) -> None:
        """Raises InDoubt if an empty `root` may be on an unmounted disk. Then `filled`, which also
        contains points of other runs, is empty, too."""
        home = next(iter(self.storage_roots))
        if scheme_of(root) or root.startswith(f"{home.rstrip('/')}/") or self.store.names(filled):
            return
        if _may_have_points(root, run):
            raise InDoubt(
                f"Run {run.run_id} has completed checkpoints, and {root} is empty: see that the"
                " storage is mounted."
            )


def _may_have_points(root: str, run: RunDirectory) -> bool:
    """Returns True if the journal knows a point below `root`. A journal whose oldest segments are
    gone keeps only the newest point, so there any point counts."""
    is_cut_short = any(segment.base for segment in segments_of(run.journal_file))
    newest = newest_event(
        run.journal_file,
        CheckpointCompleted,
        lambda event: is_cut_short or event.path.startswith(f"{root}/"),
    )
    return newest is not None


def named_by(manifest: Manifest) -> Iterator[str]:
    """Yields all texts in the committables of a point; the names of output are among them."""
    for subtask in manifest.subtasks:
        for operator in subtask.operators:
            yield from texts_in(operator.committables)
            yield from texts_in(operator.quarantined)


def texts_in(value: Json) -> Iterator[str]:
    """Yields the texts in plain JSON, without the names of fields."""
    match value:
        case str():
            yield value
        case list():
            for each in value:
                yield from texts_in(each)
        case dict():
            for each in value.values():
                yield from texts_in(each)


RUNS_NAMED_MAX = 20
"""The limit of runs that one event names."""

PATIENCE_AT_THE_END_S = 10.0
"""The time limit for one request to a target when only the clean-up of the run is left."""

NEEDED = "A recovery point needs them: a run that restores it commits them."

log = logging.getLogger("ftdash.driver")


@dataclass(frozen=True, slots=True)
class Share:
    """Unfinished output of one kind, discarded if `why_kept` is None."""

    what: str
    why_kept: str | None
    items: tuple[Unfinished, ...]

    @property
    def runs(self) -> tuple[RunId, ...]:
        return tuple(sorted({item.run_id for item in self.items}))

    @property
    def size_bytes(self) -> int | None:
        sizes = [item.size_bytes for item in self.items]
        known = [size for size in sizes if size is not None]
        return sum(known) if len(known) == len(sizes) else None


def shares(found: Iterable[Unfinished], need: Need) -> list[Share]:
    """Groups output by its fate: kept if a point needs it or its run is in doubt. Pure."""
    by_fate: dict[tuple[str, str | None], list[Unfinished]] = {}
    for item in found:
        why_kept = NEEDED if item.name in need.names else need.doubts.get(item.run_id)
        if why_kept is None or not item.is_ended_by_writers:
            by_fate.setdefault((item.what, why_kept), []).append(item)
    return [Share(*fate, tuple(items)) for fate, items in by_fate.items()]


class Leftovers:
    """Handles all targets of one run. `emit` writes to its journal.

    `check_held` raises if another driver has the run, which may have begun to write meanwhile.
    """

    def __init__(
        self,
        run_id: RunId,
        needed: NeededOutput,
        emit: Callable[[Event], None],
        check_held: Callable[[], None] = lambda: None,
    ) -> None:
        self._run_id = run_id
        self._needed = needed
        self._emit = emit
        self._check_held = check_held

    def discard_earlier(self, sinks: Iterable[tuple[Uid, Sink]], start: str | None) -> None:
        """Discards the leftovers of other runs before this run, which starts at `start`, writes.

        Raises TargetTaken if another run holds a target, and Retryable.
        """
        for uid, sink in sinks:
            if isinstance(sink, LeavesUnfinished):
                try:
                    found = [each for each in sink.unfinished() if each.run_id != self._run_id]
                    self._discard(uid, sink, found, start)
                except TargetTaken:
                    raise
                except Rejected as refusal:
                    self._say_refused(uid, sink, refusal)

    def discard_own(self, sinks: Iterable[tuple[Uid, Sink]]) -> None:
        """Discards the leftovers of this run, once none of its subtasks writes any more. If a
        target does not answer, or another run has taken it, the pipeline's next run does this."""
        for uid, sink in sinks:
            if isinstance(sink, LeavesUnfinished):
                try:
                    with waiting_at_most(PATIENCE_AT_THE_END_S):
                        found = [each for each in sink.unfinished() if each.run_id == self._run_id]
                        self._discard(uid, sink, found, None)
                except (Retryable, Rejected) as error:
                    self._say_refused(uid, sink, error)

    def _discard(
        self, uid: Uid, sink: LeavesUnfinished, found: Collection[Unfinished], start: str | None
    ) -> None:
        if not found:
            return
        need = self._needed.of(sorted({each.run_id for each in found}), start)
        for share in shares(found, need):
            if share.why_kept is not None:
                self._say_kept(uid, sink, share, share.why_kept)
                continue
            self._check_held()
            names = [item.name for item in share.items]
            self._say_discarded(uid, sink, share, sink.discard(names, self._run_id))

    def _say_kept(self, uid: Uid, sink: LeavesUnfinished, share: Share, why: str) -> None:
        kept = LeftoversKept(
            sink=uid,
            target=_target_of(sink),
            what=share.what,
            why=why,
            count=len(share.items),
            runs=share.runs[:RUNS_NAMED_MAX],
            run_count=len(share.runs),
        )
        self._emit(kept)

    def _say_discarded(self, uid: Uid, sink: LeavesUnfinished, share: Share, count: int) -> None:
        discarded = LeftoversDiscarded(
            sink=uid,
            target=_target_of(sink),
            what=share.what,
            count=count,
            runs=share.runs[:RUNS_NAMED_MAX],
            run_count=len(share.runs),
            size_bytes=share.size_bytes,
        )
        self._emit(discarded)

    def _say_refused(self, uid: Uid, sink: LeavesUnfinished, error: Exception) -> None:
        log.warning("What was left in the target of %s stays: %s", uid, error)
        why = f"It could not be cleaned up, which the next run of the pipeline tries again: {error}"
        kept = LeftoversKept(sink=uid, target=_target_of(sink), what="unfinished output", why=why)
        self._emit(kept)


def _target_of(sink: object) -> str:
    return sink.target if isinstance(sink, HoldsTarget) else ""


class TargetClaims:
    """The claims of one run, for one of its drivers."""

    def __init__(self, spec: RunSpec, lease: Lease, emit: Callable[[Event], None]) -> None:
        self._run = Holder(
            run_id=spec.run_id, installation=spec.installation, started_by=spec.started_by
        )
        self._lease = lease
        self._emit = emit
        self._claims: dict[Uid, Claim] | None = None

    def hold(self, sinks: Iterable[tuple[Uid, Sink]]) -> None:
        """Call before an attempt begins. 1. Find the holders of targets not claimed yet. 2. Write
        the claims. 3. Hold all targets. 4. Report the targets that were taken from another run.

        Raises TargetTaken, Retryable, Rejected, LeaseLost.
        """
        held = {uid: sink for uid, sink in sinks if isinstance(sink, HoldsTarget)}
        claims = self._known()
        new = {
            uid: Claim.after(sink.holder(), self._run, sink.target)
            for uid, sink in held.items()
            if uid not in claims
        }
        if new:
            self._keep(claims | new)
        for uid, sink in held.items():
            sink.hold((claims | new)[uid])
        for uid, claim in new.items():
            self._say(uid, held[uid].target, claim)

    def followed(self, uid: Uid) -> RunId | None:
        """Returns the run that held the target before this one, or None if none is known."""
        claim = self._known().get(uid)
        return None if claim is None or claim.follows is None else claim.follows.run_id

    def _known(self) -> dict[Uid, Claim]:
        if self._claims is None:
            file = self._lease.run_directory.targets_file
            try:
                self._claims = msgspec.json.decode(file.read_bytes(), type=dict[Uid, Claim])
            except FileNotFoundError:
                self._claims = {}
            except UNDECODABLE as error:
                raise Rejected(
                    f"{file} does not say what the run may write to: {error}."
                ) from error
            except OSError as error:
                raise Retryable(f"The claims of the run cannot be read: {error}") from error
        return self._claims

    def _keep(self, claims: dict[Uid, Claim]) -> None:
        self._lease.check_held()
        file = self._lease.run_directory.targets_file
        try:
            replace_atomically(file, msgspec.json.encode(claims))
            make_durable(file.parent)
        except OSError as error:
            raise Retryable(f"The claims of the run cannot be kept: {error}") from error
        self._claims = claims

    def _say(self, uid: Uid, target: str, claim: Claim) -> None:
        """Reports a takeover, but not one between runs of the same installation."""
        before = claim.follows
        if before is not None and before.installation != self._run.installation:
            event = TargetTakenOver(
                sink=uid,
                target=target,
                from_run=before.run_id,
                from_installation=before.installation,
                epoch=claim.holder.epoch,
            )
            self._emit(event)
