"""Each kind of file that checkpoints share, damaged in a chain, in files and in an object store.

Both backends write a chain, and the tests damage each of its files in turn. Exactly the points that
refer to the file are marked. The next checkpoint is complete without it, and a recovery takes that
checkpoint.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from pipelines.domain.events import DamageRemembered, Event
from pipelines.domain.ids import BUILD_ON_NOTHING, NO_CHECKPOINT, CheckpointId
from pipelines.domain.snapshots import FileHandle
from pipelines.domain.status import DamageFinder
from pipelines.points.browsing import rows_of
from pipelines.protocol.restart import Choice, choose_point
from pipelines.protocol.retention import RetainedPoint, RetainedPoints
from pipelines.runtime.master.checkpoints.shared_file_deletion import SharedFilesHost, shared_names
from pipelines.runtime.master.damage_memory import DamageMemory
from pipelines.storage.manifests import files_of
from pipelines.storage.store import shared_location
from tests.contracts.held_points import KEYED_STATES, USERS, HeldPoint, held_run
from tests.contracts.stored_points import (
    FilePoints,
    ObjectPoints,
    StoredPoints,
    named_environment,
)
from tests.object_server import ObjectServer, never
from tests.unit.runtime.hosted import InlineExecutor

pytestmark = pytest.mark.slow

WAYS = ["missing", "torn", "one bit"]
PARTS = [("hashmap", "base"), ("hashmap", "delta"), ("rocksdb", ".sst")]


@pytest.fixture
def in_files(tmp_path: Path) -> StoredPoints:
    return FilePoints(tmp_path)


@pytest.fixture
def in_objects(objects: ObjectServer) -> Iterator[StoredPoints]:
    objects.plan(never)
    with named_environment(objects.environment):
        yield ObjectPoints(objects)


@pytest.fixture
def points(request: pytest.FixtureRequest) -> StoredPoints:
    found: StoredPoints = request.getfixturevalue(f"in_{request.param}")
    return found


@pytest.mark.parametrize(
    ("points", "backend", "part", "way"),
    [
        *(("files", backend, part, way) for backend, part in PARTS for way in WAYS),
        ("objects", "hashmap", "base", "missing"),
        ("objects", "rocksdb", ".sst", "torn"),
    ],
    indirect=["points"],
)
def test_the_next_checkpoint_rewrites_a_damaged_file_of_a_chain(
    points: StoredPoints, backend: str, part: str, way: str
) -> None:
    root = f"{points.root}/run-{backend}-{part.strip('.')}-{way.replace(' ', '-')}"
    with held_run(points.store, root, backend) as run:
        run.take(range(USERS))
        chain = [run.checkpoint(1, NO_CHECKPOINT)]
        for number, users in ((2, range(USERS // 4)), (3, [3])):  # the small one stays separate
            run.take(users)
            chain.append(run.checkpoint(number, CheckpointId(number - 1)))
        master, newest = Master(points, root, chain), chain[-1]
        [file, *_] = (f for f in inherited_by(newest) if part in f.name)
        whole = points.content(shared_location(newest.location), file)

        damage(points, newest, file, way, whole)
        master.verify()
        confirmed_id = master.memory.confirmed_id()
        mended = run.checkpoint(4, confirmed_id)
        master.on_completed(mended)

        assert confirmed_id == BUILD_ON_NOTHING
        assert master.marked == {p.location for p in chain if file.name in names_in(p)}
        assert file.name not in names_in(mended)
        assert points.store.verify(mended.location) == []
        assert master.chosen() == mended.location
        assert is_still_damaged(points, newest, file, whole)
        [found] = master.found
        assert (found.files, found.found_by) == ([file.name], DamageFinder.VERIFICATION)

        points.damaged(shared_location(newest.location), file, whole)
        master.verify()
        assert master.marked == set()
        assert rows_in(points, mended) == rows_in(points, newest)


def inherited_by(point: HeldPoint) -> Iterator[FileHandle]:
    """Yields the shared files that an older checkpoint wrote."""
    own = f"c{point.manifest.checkpoint_id}-"
    for file in files_of(point.manifest):
        if file.is_shared and not file.name.startswith(own):
            yield file


def damage(
    points: StoredPoints, point: HeldPoint, file: FileHandle, way: str, whole: bytes
) -> None:
    third = len(whole) // 3
    flipped = whole[:third] + bytes([whole[third] ^ 1]) + whole[third + 1 :]
    contents = {"missing": None, "torn": whole[: len(whole) // 2], "one bit": flipped}
    points.damaged(shared_location(point.location), file, contents[way])


def is_still_damaged(
    points: StoredPoints, point: HeldPoint, file: FileHandle, whole: bytes
) -> bool:
    """Returns True if nothing has been written in its place."""
    place = shared_location(point.location)
    is_missing = file.name not in points.store.names(place)
    return is_missing or points.content(place, file) != whole


def names_in(point: HeldPoint) -> set[str]:
    return set(shared_names(point.manifest.subtasks))


def rows_in(points: StoredPoints, point: HeldPoint) -> dict[str, list[str]]:
    """Returns every row of every keyed state, sorted as text."""
    return {
        handle.state: sorted(
            str(row)
            for batch in rows_of(points.store, point.location, handle)
            for row in batch.to_pylist()
        )
        for subtask in point.manifest.subtasks
        for operator in subtask.operators
        for handle in operator.states
        if handle.state in KEYED_STATES
    }


class Master:
    """The parts of a driver that learn of damage, over the points of one run."""

    def __init__(self, points: StoredPoints, root: str, chain: list[HeldPoint]) -> None:
        self._store = points.store
        self._events: list[Event] = []
        retained = tuple(_retained(point) for point in chain)
        self._points = RetainedPoints(100, retained)
        self._shared = SharedFilesHost(
            points.store, root, InlineExecutor(), lambda _: True, retained
        )
        self.memory = DamageMemory(self._points, self._shared, self._events.append)

    @property
    def marked(self) -> set[str]:
        every = self._points.every_newest_first()
        return {point.location for point in every if self._points.damage_of(point) is not None}

    @property
    def found(self) -> list[DamageRemembered]:
        return [e for e in self._events if isinstance(e, DamageRemembered) and e.files]

    def verify(self) -> None:
        known, whole = self.memory.remembered, []
        for point in self._points.every_newest_first():
            damages = self._store.verify(point.location)
            if damages:
                by = DamageFinder.VERIFICATION
                self.memory.on_found(point, damages, by, damages[0].problem)
            else:
                whole.append(point)
        self.memory.on_whole(whole, known)

    def on_completed(self, point: HeldPoint) -> None:
        completed = _retained(point)
        self._shared.on_triggered(completed.checkpoint_id)
        self._shared.on_completed(point.manifest.attempt, point.manifest)
        why = self.memory.on_completed(completed)
        self._points.on_completed(completed, why)

    def chosen(self) -> str | None:
        def problem_of(point: RetainedPoint) -> str | None:
            damages = self._store.verify(point.location)
            return damages[0].problem if damages else None

        found = choose_point(self._points.candidates(), problem_of)
        assert isinstance(found, Choice)
        assert found.point is not None
        return found.point.location


def _retained(point: HeldPoint) -> RetainedPoint:
    return RetainedPoint(point.manifest.checkpoint_id, point.location)
