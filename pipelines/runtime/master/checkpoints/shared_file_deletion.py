"""Deletes the files that `protocol.retention` names, outside the job master's thread.

Defines which files of a manifest are shared. A file that cannot be deleted stays as garbage until
the next sweep; that is worth a warning and is no failure.
"""

import logging
import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import Executor

from pipelines.domain.errors import CorruptSnapshot, Rejected, Retryable
from pipelines.domain.ids import Attempt, CheckpointId
from pipelines.domain.snapshots import Manifest, SubtaskSnapshot
from pipelines.domain.status import CheckpointKind
from pipelines.protocol.retention import RetainedPoint, SharedFiles
from pipelines.storage.store import CheckpointStore, shared_location

log = logging.getLogger(__name__)


class SharedFilesHost:
    """The shared directory of one run. Called on the job master's thread."""

    def __init__(
        self,
        store: CheckpointStore,
        checkpoints: str,
        executor: Executor,
        owns_run: Callable[[Attempt], bool],
        points: Iterable[RetainedPoint],
    ) -> None:
        """Reads the manifests of `points`, which an earlier driver has left. A point that cannot be
        read now keeps every file that it may refer to, until retention gives it up."""
        self._store = store
        self._location = shared_location(f"{checkpoints}/chk-0")
        self._executor = executor
        self._owns_run = owns_run
        self._files = SharedFiles(dict(_retained(store, points)))
        self._machine = threading.Lock()  # sweeps also use it, on the executor
        self._has_failures = False  # since the last sweep

    @property
    def confirmed_id(self) -> CheckpointId:
        """The newest checkpoint that is certainly complete, for the barrier of the next one."""
        with self._machine:
            return self._files.confirmed_id

    @property
    def needed(self) -> frozenset[str]:
        """Files that no sweep deletes: a retained checkpoint, or one under way, may refer to them.
        Excludes the files of a checkpoint whose manifest could not be read."""
        with self._machine:
            return self._files.needed

    @property
    def has_unread(self) -> bool:
        """True if the manifest of a retained checkpoint could not be read."""
        with self._machine:
            return self._files.has_unread

    def files_of(self, checkpoint_id: CheckpointId) -> frozenset[str]:
        """Returns the shared files of a retained checkpoint if its manifest could be read."""
        with self._machine:
            return self._files.files_of(checkpoint_id)

    def on_triggered(self, checkpoint_id: CheckpointId) -> None:
        with self._machine:
            self._files.on_triggered(checkpoint_id)

    def on_acknowledged_late(self, attempt: Attempt, snapshot: SubtaskSnapshot) -> None:
        """Deletes the files of an acknowledgement that arrives after its checkpoint has ended."""
        names = set(shared_names([snapshot]))
        if names:
            with self._machine:
                stray = self._files.on_listed(names)
            self._delete(attempt, stray)

    def on_completed(self, attempt: Attempt, manifest: Manifest) -> None:
        """Deletes files that no checkpoint needs any more. After a failure, it also looks for files
        that were written but never acknowledged."""
        checkpoint_id = manifest.checkpoint_id
        with self._machine:
            if manifest.kind is CheckpointKind.SAVEPOINT:
                names = self._files.on_aborted(checkpoint_id, ())  # it shares nothing
            else:
                names = self._files.on_completed(checkpoint_id, shared_names(manifest.subtasks))
        self._delete(attempt, names)
        if self._has_failures:
            self._has_failures = False
            self.sweep(attempt)

    def on_aborted(
        self,
        attempt: Attempt,
        checkpoint_id: CheckpointId,
        acknowledged: Collection[str],
        *,
        may_be_complete: bool = False,
    ) -> None:
        """`acknowledged`: the shared files that subtasks wrote for the checkpoint, or that it
        refers to. If `may_be_complete`, its manifest may exist, so its files wait for the next
        sweep."""
        written = () if may_be_complete else acknowledged
        with self._machine:
            names = self._files.on_aborted(checkpoint_id, written)
        self._has_failures = True
        self._delete(attempt, names)

    def on_discarded(self, attempt: Attempt, point: RetainedPoint) -> Callable[[], None]:
        """Returns a function that deletes the files. Call it, on any thread, once the checkpoint's
        manifest is deleted: until then a restore may still need the files."""
        if point.is_claimed or point.is_savepoint:
            return lambda: None  # it has no files in this run's shared directory
        return lambda: self._let_go(attempt, point.checkpoint_id)

    def _let_go(self, attempt: Attempt, checkpoint_id: CheckpointId) -> None:
        with self._machine:
            was_unread = self._files.is_unread(checkpoint_id)
            names = self._files.on_discarded(checkpoint_id)
        self._delete_now(attempt, names)
        if was_unread:
            self._sweep(attempt)

    def sweep(self, attempt: Attempt) -> None:
        """Deletes the files of earlier attempts and failed checkpoints, acknowledged or not."""
        self._executor.submit(self._sweep, attempt)

    def _sweep(self, attempt: Attempt) -> None:
        try:
            found = self._store.names(self._location)
        except (Retryable, Rejected, OSError) as error:
            log.warning("%s could not be swept: %s", self._location, error)
            return
        with self._machine:
            names = self._files.on_listed(found)
        self._delete_now(attempt, names)

    def _delete(self, attempt: Attempt, names: list[str]) -> None:
        if names:
            self._executor.submit(self._delete_now, attempt, names)

    def _delete_now(self, attempt: Attempt, names: list[str]) -> None:
        """Checks the lease first: once a successor owns the run, the files are the successor's."""
        if not names or not self._owns_run(attempt):
            return
        try:
            self._store.delete(self._location, names)
        except (Retryable, Rejected, OSError) as error:
            log.warning("files in %s could not be deleted: %s", self._location, error)


def discard_claimed(store: CheckpointStore, location: str) -> None:
    """Deletes a point of another run, and its shared files that no other point there needs.

    Finds out which files the other points need before it deletes anything. If that cannot be known,
    the shared files stay. Raises Retryable if the storage fails.
    """
    root, _, name = location.rstrip("/").rpartition("/")
    own = _names_of_point(store, location)
    neighbours = [point for point in store.published(root) if point.rpartition("/")[2] != name]
    needed = [_names_of_point(store, point) for point in neighbours] if own else []
    store.discard(location)
    if own is None or None in needed:
        log.warning(
            "Files in %s stay: not every point there can be read", shared_location(location)
        )
    elif own:
        others = {name for names in needed for name in names or ()}
        store.delete(shared_location(location), sorted(own - others))


def _retained(
    store: CheckpointStore, points: Iterable[RetainedPoint]
) -> Iterator[tuple[CheckpointId, set[str] | None]]:
    for point in points:
        if point.is_savepoint or point.is_claimed:
            continue
        try:
            names = _names_of_point(store, point.location)
        except Retryable as error:
            log.warning("Files that %s may refer to stay: %s", point.location, error)
            names = None
        yield point.checkpoint_id, names


def _names_of_point(store: CheckpointStore, location: str) -> set[str] | None:
    """Returns None if a damaged manifest hides which files the point needs. Raises Retryable."""
    try:
        return set(shared_names(store.manifest(location).subtasks))
    except CorruptSnapshot as damage:
        log.warning("Files that %s may refer to stay: %s", location, damage)
        return None


def shared_names(snapshots: Iterable[SubtaskSnapshot]) -> Iterator[str]:
    """Yields the names of the files that other checkpoints may also refer to."""
    for snapshot in snapshots:
        for operator in snapshot.operators:
            for state in operator.states:
                yield from (file.name for file in state.files if file.is_shared)
