"""A driver's work on the storage of its run, for tests in which it dies in the middle.

It runs the real parts of the master that touch points, one after another on one thread. A death at
any step ends all of them.
"""

from collections.abc import Callable, Collection
from concurrent.futures import Executor, Future
from types import SimpleNamespace
from typing import Any

import msgspec

from pipelines.domain.ids import Attempt, CheckpointId, Uid
from pipelines.domain.run import SnapshotPlaces
from pipelines.domain.snapshots import (
    FileHandle,
    Manifest,
    OperatorSnapshot,
    StateFormat,
    StateHandle,
    StatePart,
)
from pipelines.protocol.restart import Choice, choose_point
from pipelines.protocol.retention import RetainedPoint, RetainedPoints, shared_name
from pipelines.runtime.faults import Faults
from pipelines.runtime.master.checkpoints.point_files import PointFiles
from pipelines.runtime.master.checkpoints.shared_file_deletion import SharedFilesHost
from pipelines.runtime.master.start.starting_point import own_points
from pipelines.storage.state_file import encoded, file_name
from pipelines.storage.store import CheckpointStore, Publication, shared_location
from tests.unit.runtime.fakes import SCHEMA, batch_of, keys_of
from tests.unit.runtime.points import manifest_of


class Driver:
    def __init__(
        self,
        store: CheckpointStore,
        places: SnapshotPlaces,
        attempt: Attempt,
        *,
        retained: int = 1,
        given_up: Collection[str] = (),
    ) -> None:
        self._places = places
        self._attempt = attempt
        self._store = store
        found = tuple(own_points(places, self._store))
        self.points = RetainedPoints(retained, found)
        context = SimpleNamespace(
            places=places,
            store=self._store,
            executor=Inline(),
            lease=SimpleNamespace(is_current=lambda _: True),
            post=lambda _: None,
            faults=Faults(),
        )
        self._files = PointFiles(context, given_up)  # type: ignore[arg-type]
        self._shared = SharedFilesHost(
            self._store, places.checkpoints, context.executor, context.lease.is_current, found
        )

    def chosen(self) -> RetainedPoint:
        """Returns the point to restore. The test fails if there is none or one is refused."""
        found = choose_point(self.points.newest_first(), self.problem_of)
        assert isinstance(found, Choice)
        assert found.refused == ()
        assert found.point is not None
        return found.point

    def problem_of(self, point: RetainedPoint) -> str | None:
        damages = self._store.verify(point.location)
        return damages[0].problem if damages else None

    def restored(self, point: RetainedPoint) -> list[int]:
        """Returns the ids of the checkpoints whose rows the point's files contain."""
        files = self._store.manifest(point.location).state_files()
        batches = [b for file in files for b in self._store.read_batches(point.location, file)]
        return [key for batch in batches for key in keys_of(batch)]

    def sweep(self, first_new_id: CheckpointId) -> None:
        self._files.sweep(self._attempt, first_new_id)
        self._shared.sweep(self._attempt)

    def take(self, checkpoint_id: CheckpointId) -> None:
        self._shared.on_triggered(checkpoint_id)
        manifest = self._written(checkpoint_id)
        location = self._places.checkpoint(checkpoint_id)
        assert self._store.publish(location, manifest) is Publication.PUBLISHED
        for point in self.points.on_completed(RetainedPoint(checkpoint_id, location)):
            self._discard(point)
        self._shared.on_completed(self._attempt, manifest)

    def delete_given_up(self) -> None:
        self._files.delete_given_up()

    def leave_unfinished(self, checkpoint_id: CheckpointId) -> None:
        self._shared.on_triggered(checkpoint_id)
        self._written(checkpoint_id)

    def keep(self, count: int) -> None:
        for point in reversed(self.points.newest_first()[count:]):
            self._discard(point)

    def expected(self) -> set[str]:
        """Returns the names of the retained points' files, below the run's checkpoint directory."""
        names = set()
        for point in self.points.newest_first():
            own = point.location.rpartition("/")[2]
            manifest = self._store.manifest(point.location)
            files = {f"{'shared' if f.is_shared else own}/{f.name}" for f in manifest.state_files()}
            names |= {f"{own}/manifest.json", *files}
        return names

    def _written(self, checkpoint_id: CheckpointId) -> Manifest:
        """Writes a file of its own and a shared one; refers to the newest shared one before."""
        location = self._places.checkpoint(checkpoint_id)
        stem = f"rows-a{self._attempt}"
        own = self._write(location, stem, checkpoint_id)
        name = shared_name(checkpoint_id, self._attempt, "rows")
        new = self._write_bytes(shared_location(location), name, checkpoint_id)
        shared = [*self._newest_shared(), msgspec.structs.replace(new, is_shared=True)]
        states = [
            _state("own", own, []),
            _state("shared", shared[0], [StatePart(name="", file=file) for file in shared[1:]]),
        ]
        operator = OperatorSnapshot(uid=Uid("both"), states=states)
        changes: dict[str, Any] = {"checkpoint_id": checkpoint_id, "attempt": self._attempt}
        return manifest_of([[operator]], run_id=self._places.run_id, **changes)

    def _write(self, location: str, stem: str, checkpoint_id: CheckpointId) -> FileHandle:
        rows = [batch_of([(checkpoint_id, 1)])]
        return self._store.write_batches(location, stem, SCHEMA, rows, open_format=False)

    def _write_bytes(self, location: str, stem: str, checkpoint_id: CheckpointId) -> FileHandle:
        """Writes the same rows as ready pieces of bytes, like a file of a database."""
        pieces = encoded(SCHEMA, [batch_of([(checkpoint_id, 1)])], open_format=False)
        name = file_name(stem, open_format=False)
        return self._store.write_file(location, name, map(bytes, pieces))

    def _newest_shared(self) -> list[FileHandle]:
        for point in self.points.newest_first():
            files = self._store.manifest(point.location).state_files()
            return [file for file in files if file.is_shared][-1:]
        return []

    def _discard(self, point: RetainedPoint) -> None:
        then = self._shared.on_discarded(self._attempt, point)
        self._files.discard_retained(self._attempt, point, then)


class Inline(Executor):
    """Runs each call at once, so that a death ends everything."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        done: Future[Any] = Future()
        done.set_result(fn(*args, **kwargs))
        return done


def _state(name: str, file: FileHandle, parts: list[StatePart]) -> StateHandle:
    return StateHandle(
        state=name,
        kind="table",
        file=file,
        key_groups=(0, 127),
        rows=1,
        schema={},
        format=StateFormat.DELTAS if parts else StateFormat.ROWS,
        parts=parts,
    )
