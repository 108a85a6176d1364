"""Remembers damage for a run: which files are damaged, and which points cannot be used for it.

Hears of every damaged file, from any finder, and reports it once: in the journal, where the next
driver of the run finds it, and by a mark on each point that refers to the file.
`protocol.retention` decides what may be built on, `protocol.restart` which point a recovery
takes.
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
        """`remembered`: what earlier drivers of the run have recorded and reported."""
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
        """`point` does not verify, for the reason `said`. If retention has deleted it meanwhile,
        only its files matter: other points may share them."""
        is_kept = point in self._points.every_newest_first()
        if is_kept and self._points.damage_of(point) != said:
            self._points.on_damaged(point, said)
            self._emit(RestorePointRefused(path=point.location, message=said))
        self.on_damages(point, damages, by)

    def on_damages(self, point: RetainedPoint, damages: Sequence[Damage], by: DamageFinder) -> None:
        """Like `on_found`, if the caller reports that `point` does not verify."""
        if _shares(point):
            self._on_damaged_files([damage for damage in damages if damage.is_shared], by)

    def _on_damaged_files(self, damages: Sequence[Damage], by: DamageFinder) -> None:
        """In the run's shared directory. A file that no checkpoint needs was deleted on purpose."""
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
        """Every byte of these points was read, while `known` was remembered."""
        names = [self._shared.files_of(p.checkpoint_id) for p in points if _shares(p)]
        mended = self._files.on_whole(frozenset().union(*names).intersection(known))
        if mended:
            self._emit(DamageRemembered(mended=mended, remembered=sorted(self.remembered)))
        for point in points:
            refers = _shares(point) and self._damaged_of(point.checkpoint_id)
            if not refers:
                self._points.on_whole(point)

    def on_read_whole(self, point: RetainedPoint) -> None:
        """A recovery has read the point, which was marked, and found it whole."""
        self.on_whole([point], self.remembered)

    # Consequences for checkpoints.

    def confirmed_id(self) -> CheckpointId:
        """For the barrier of the next checkpoint: the newest completed one, if its files are not
        known to be damaged."""
        confirmed_id = self._shared.confirmed_id
        if confirmed_id == NO_CHECKPOINT:
            return confirmed_id
        whole = [p.checkpoint_id for p in self._points.newest_first() if not p.is_claimed]
        begins_anew = self._files.must_begin_anew(self._shared.files_of(confirmed_id))
        return BUILD_ON_NOTHING if begins_anew or confirmed_id not in whole else confirmed_id

    def problem_of(self, manifest: Manifest) -> str | None:
        """Why this manifest must not be published; None: it refers to nothing damaged."""
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
        """Why the point cannot be used all the same; None: it refers to nothing damaged."""
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
        """The retained points that need some of the files, and which files."""
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
    """Savepoints have their own files, and a claimed point has those of another run."""
    return not (point.is_savepoint or point.is_claimed)


def _refers_to(names: Sequence[str]) -> str:
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return f"It refers to {names[0]}{more}, which was found damaged."
