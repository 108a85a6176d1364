"""Remembers damage for a run: the damaged files, and the points that are unusable because of them.

Every finder of damage reports it here. Each damaged file is recorded once: in the journal, where
the next driver of the run finds it, and by a mark on each point that refers to the file.
`protocol.retention` decides which files increments may build on, `protocol.restart` which point a
recovery takes.
"""

from collections.abc import Callable, Collection, Sequence

from pipelines.domain.events import DamageRemembered, Event, RestorePointRefused
from pipelines.domain.ids import BUILD_ON_NOTHING, NO_CHECKPOINT, CheckpointId
from pipelines.domain.snapshots import Manifest
from pipelines.domain.status import DamageFinder
from pipelines.protocol.retention import DamagedFiles, RetainedPoint, RetainedPoints
from pipelines.runtime.master.checkpoints.shared_file_deletion import SharedFilesHost, shared_names
from pipelines.storage.store import Damage


class DamageMemory:
    """Called on the job master's thread."""

    def __init__(
        self,
        points: RetainedPoints,
        shared: SharedFilesHost,
        emit: Callable[[Event], None],
        remembered: Collection[str] = (),
    ) -> None:
        """`remembered`: the files that earlier drivers of the run have recorded and reported."""
        self._points = points
        self._shared = shared
        self._emit = emit
        self._files = DamagedFiles(remembered)
        self._forget()
        for point, names in self._referring(self._files.remembered):
            points.on_damaged(point, _refers_to(names))

    @property
    def remembered(self) -> frozenset[str]:
        return self._files.remembered

    # Findings.

    def on_found(
        self, point: RetainedPoint, damages: Sequence[Damage], by: DamageFinder, said: str
    ) -> None:
        """Marks `point`, which does not verify, with the reason `said`. If retention has deleted it
        meanwhile, only its files matter: other points may share them."""
        is_kept = point in self._points.every_newest_first()
        if is_kept and self._points.damage_of(point) != said:
            self._points.on_damaged(point, said)
            self._emit(RestorePointRefused(path=point.location, message=said))
        self.on_damages(point, damages, by)

    def on_damages(self, point: RetainedPoint, damages: Sequence[Damage], by: DamageFinder) -> None:
        """Like `on_found`, but leaves it to the caller to report that `point` does not verify."""
        if _shares(point):
            self._on_damaged_files([damage for damage in damages if damage.is_shared], by)

    def _on_damaged_files(self, damages: Sequence[Damage], by: DamageFinder) -> None:
        """Remembers damaged files of the run's shared directory. Ignores files that no checkpoint
        needs: they were deleted on purpose."""
        needed = self._shared.needed
        problems = {each.file: each.problem for each in damages if each.file in needed}
        new = self._files.on_found(problems)
        if not new:
            return
        referring = self._referring(frozenset(new))
        self._emit(
            DamageRemembered(
                files=new,
                points=[point.location for point, _ in referring],
                found_by=by,
                message=problems[new[0]],
                remembered=sorted(self.remembered),
            )
        )
        for point, names in referring:
            self._mark(point, names)

    def on_whole(self, points: Collection[RetainedPoint], known: Collection[str]) -> None:
        """Every byte of these points was read and found whole; `known` was remembered meanwhile."""
        names = [self._shared.files_of(p.checkpoint_id) for p in points if _shares(p)]
        mended = self._files.on_whole(frozenset().union(*names).intersection(known))
        if mended:
            self._emit(DamageRemembered(mended=mended, remembered=sorted(self.remembered)))
        for point in points:
            refers = _shares(point) and self._damaged_of(point.checkpoint_id)
            if not refers:
                self._points.on_whole(point)

    def on_read_whole(self, point: RetainedPoint) -> None:
        """A recovery has read the marked point and found it whole."""
        self.on_whole([point], self.remembered)

    # Consequences for checkpoints.

    def confirmed_id(self) -> CheckpointId:
        """Returns the checkpoint that the next barrier names as complete: the newest completed one,
        or BUILD_ON_NOTHING if that one is damaged."""
        confirmed_id = self._shared.confirmed_id
        if confirmed_id == NO_CHECKPOINT:
            return confirmed_id
        whole = [p.checkpoint_id for p in self._points.newest_first() if not p.is_claimed]
        begins_anew = self._files.must_begin_anew(self._shared.files_of(confirmed_id))
        return BUILD_ON_NOTHING if begins_anew or confirmed_id not in whole else confirmed_id

    def problem_of(self, manifest: Manifest) -> str | None:
        """Returns why this manifest must not be published, or None if no file of it is damaged."""
        names = self._files.damaged_among(shared_names(manifest.subtasks))
        if not names:
            return None
        self._files.on_refused()
        return f"{_refers_to(names)} The next checkpoint writes its content again."

    def on_missing(self, damages: Sequence[Damage]) -> None:
        """Files of a checkpoint were missing when its manifest was about to be written."""
        self._files.on_refused()
        self._on_damaged_files(damages, DamageFinder.CHECKPOINT)

    def on_completed(self, point: RetainedPoint) -> str | None:
        """Returns why the completed point cannot be used, or None if no file of it is damaged."""
        self._forget()
        if not _shares(point):
            return None
        self._files.on_completed(self._shared.files_of(point.checkpoint_id))
        names = self._damaged_of(point.checkpoint_id)
        return _refers_to(names) if names else None

    def _mark(self, point: RetainedPoint, names: Sequence[str]) -> None:
        if self._points.damage_of(point) is None:
            self._points.on_damaged(point, _refers_to(names))
            self._emit(RestorePointRefused(path=point.location, message=_refers_to(names)))

    def _referring(self, files: frozenset[str]) -> list[tuple[RetainedPoint, list[str]]]:
        """Returns the retained points that need any of the files, each with those files."""
        found = [
            (point, sorted(files & self._shared.files_of(point.checkpoint_id)))
            for point in self._points.every_newest_first()
            if _shares(point)
        ]
        return [(point, names) for point, names in found if names]

    def _damaged_of(self, checkpoint_id: CheckpointId) -> list[str]:
        return self._files.damaged_among(self._shared.files_of(checkpoint_id))

    def _forget(self) -> None:
        if not self._shared.has_unread:
            self._files.on_needed(self._shared.needed)


def _shares(point: RetainedPoint) -> bool:
    """Returns True if the point uses the run's shared files. A savepoint has its own files, and a
    claimed point those of another run."""
    return not (point.is_savepoint or point.is_claimed)


def _refers_to(names: Sequence[str]) -> str:
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return f"It refers to {names[0]}{more}, which was found damaged."
