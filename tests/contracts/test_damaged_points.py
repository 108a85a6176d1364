"""Every file of every kind of point, damaged in every way, in files and in an object store.

Each process that meets the damage reports it in one sentence that names the file. These are the
driver that restores or recovers, the preflight, the slot that takes its share after the driver has
looked, and a reader of the state. None of them loads anything. A recovery goes back to an older
point if it may.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.domain.errors import CorruptSnapshot, Rejected
from pipelines.domain.events import Event, RestorePointRefused
from pipelines.domain.ids import CheckpointId, RunId, Uid
from pipelines.domain.snapshots import FORMAT_VERSION, FileHandle, Manifest, StateHandle
from pipelines.points.browsing import rows_of
from pipelines.points.preflight import RestoreQuestion, preflight
from pipelines.points.verdict import Verdict
from pipelines.protocol.retention import RetainedPoint, RetainedPoints
from pipelines.runtime.master.start.starting_point import StartingPoint, StartingPointChooser
from pipelines.runtime.subtask.snapshots.restoring import RestorePoint
from pipelines.spark.data_frames import handles_of
from pipelines.storage.manifests import seal
from pipelines.storage.state_file import handle_of
from pipelines.storage.store import location_of
from tests.contracts.held_points import (
    ALL_GROUPS,
    FLOW_NAME,
    KINDS,
    MAX_PARALLELISM,
    OPERATOR_STATE,
    RUN,
    STATES,
    HeldPoint,
    assemble,
    held_in,
    hold,
)
from tests.contracts.stored_points import (
    FilePoints,
    ObjectPoints,
    StoredPoints,
    named_environment,
)
from tests.object_server import ObjectServer, never
from tests.unit.runtime.points import spec_of

pytestmark = pytest.mark.slow

IN_FLIGHT = ""
FILES = [
    ("canonical", "value", ".parquet"),
    ("canonical", OPERATOR_STATE, ".parquet"),
    ("native hashmap", "list", ".arrow"),
    ("native hashmap", OPERATOR_STATE, ".arrow"),
    ("native rocksdb", "value", ".sst"),
    ("native rocksdb", "value", "CURRENT"),
    ("native rocksdb", "value", "MANIFEST"),
    ("native rocksdb", "value", "schema.arrow"),
    ("checkpoint hashmap", "reducing", ".arrow"),
    ("checkpoint hashmap", OPERATOR_STATE, ".arrow"),
    ("checkpoint hashmap", IN_FLIGHT, "flight"),
    ("checkpoint rocksdb", "aggregating", ".arrow"),
    ("incremental hashmap", "value", "base"),
    ("incremental hashmap", "value", "delta"),
    ("incremental hashmap", "map", "delta"),
    ("incremental rocksdb", "value", ".sst"),
    ("incremental rocksdb", "value", "CURRENT"),
    ("incremental rocksdb", "value", "MANIFEST"),
    ("incremental rocksdb", "value", "schema.arrow"),
    ("incremental rocksdb", IN_FLIGHT, "flight"),
]
ROWS = [each for each in FILES if each[2] in (".parquet", ".arrow", "base", "delta", "flight")]
DATABASES = [each for each in FILES if each not in ROWS]
FOR_OBJECTS = [
    ("canonical", "value", ".parquet"),
    ("checkpoint hashmap", OPERATOR_STATE, ".arrow"),
    ("checkpoint hashmap", IN_FLIGHT, "flight"),
    ("incremental hashmap", "value", "delta"),
    ("native rocksdb", "value", ".sst"),
    ("incremental rocksdb", "value", ".sst"),
]
"""One file of each kind, for the first three ways of damage only.

The code above the store is the same, and each answer of an object store takes time.
"""

Damaging = Callable[[bytes], bytes | None]
DAMAGES: dict[str, Damaging] = {
    "missing": lambda content: None,
    "torn": lambda content: content[: len(content) // 2],
    "one bit": lambda content: flipped(content, len(content) // 3),
    "empty": lambda content: b"",
    "longer": lambda content: content + b"\0",
    "another job's": lambda content: bytes(reversed(content)),
}
ELSEWHERE = ["../../secret.arrow", ""]


def damaged_by(table: list[tuple[str, str, str]], *ways: object) -> pytest.MarkDecorator:
    """Parametrizes with the whole table in files, and with `FOR_OBJECTS` in an object store."""
    stored = [("files", each) for each in table]
    stored += [("objects", each) for each in table if each in FOR_OBJECTS]
    if not ways:
        rows: list[tuple[object, ...]] = [(store, *each) for store, each in stored]
        return pytest.mark.parametrize(("shelf", "kind", "state", "part"), rows, indirect=["shelf"])
    rows = [
        (store, *each, way)
        for store, each in stored
        for way in (ways if store == "files" else ways[:3])
    ]
    names = ("shelf", "kind", "state", "part", "way")
    return pytest.mark.parametrize(names, rows, indirect=["shelf"])


of_every_kind = pytest.mark.parametrize(
    ("shelf", "kind"),
    [*(("files", kind) for kind in KINDS), ("objects", "canonical"), ("objects", KINDS[-1])],
    indirect=["shelf"],
)


@damaged_by(FILES, *DAMAGES)
def test_every_reader_names_a_damaged_file_and_none_loads_it(
    shelf: "Shelf", kind: str, state: str, part: str, way: str
) -> None:
    point = shelf.newer(kind)
    file = point.file_named(state, part)

    with shelf.damaged(point, file, DAMAGES[way]):
        sentences = [
            *shelf.said_by_the_driver(kind),
            shelf.said_by_the_preflight(point),
            shelf.said_by_the_slot(point, point.manifest),
            shelf.said_by_a_reader(point, state),
        ]

    assert_each_names(file.name, sentences)


@damaged_by(FILES, *ELSEWHERE)
def test_a_manifest_that_names_an_outside_file_is_refused_and_not_followed(
    shelf: "Shelf", kind: str, state: str, part: str, way: str
) -> None:
    point = shelf.newer(kind)
    file = point.file_named(state, part)
    forged = with_handle(point.manifest, file, msgspec.structs.replace(file, name=way))

    with shelf.forged(point, forged):
        sentences = [
            *shelf.said_by_the_driver(kind),
            shelf.said_by_the_preflight(point),
            shelf.said_by_the_slot(point, forged),
            shelf.said_by_a_reader(point, state),
        ]

    assert_each_names(repr(way), sentences)


@pytest.mark.parametrize("shelf", ["files", "objects"], indirect=True)
@pytest.mark.parametrize("kind", ["native rocksdb", "incremental rocksdb"])
@pytest.mark.parametrize("name", ["../../secret", "/etc/hostname", "..", ""])
def test_a_database_is_not_assembled_outside_its_directory(
    shelf: "Shelf", kind: str, name: str
) -> None:
    """The names of a database's files also come from the manifest."""
    point = shelf.newer(kind)
    file = point.file_named("value", "CURRENT")
    forged = with_part_named(point.manifest, file, name)

    with shelf.forged(point, forged):
        sentences = [
            *shelf.said_by_the_driver(kind),
            shelf.said_by_the_preflight(point),
            shelf.said_by_the_slot(point, forged),
            shelf.said_by_a_reader(point, "value"),
        ]

    assert_each_names(repr(name), sentences)


@damaged_by(ROWS)
def test_a_decompression_bomb_is_refused_even_if_its_digest_matches(
    shelf: "Shelf", kind: str, state: str, part: str
) -> None:
    point = shelf.newer(kind)
    file = point.file_named(state, part)
    bomb = bombs()[Path(file.name).suffix]

    with shelf.exchanged(point, file, bomb) as forged:
        sentences = [
            *shelf.said_by_the_driver(kind),
            shelf.said_by_the_preflight(point),
            shelf.said_by_the_slot(point, forged),
            shelf.said_by_a_reader(point, state),
        ]

    assert_each_names(file.name, sentences)
    assert all("would unpack" in each for each in sentences if each)


@damaged_by(ROWS)
def test_a_malformed_file_is_refused_even_if_its_digest_matches(
    shelf: "Shelf", kind: str, state: str, part: str
) -> None:
    point = shelf.newer(kind)
    file = point.file_named(state, part)

    with shelf.exchanged(point, file, b"ARROW1\0\0 or not") as forged:
        sentences = [
            *shelf.said_by_the_driver(kind),
            shelf.said_by_the_preflight(point),
            shelf.said_by_the_slot(point, forged),
            shelf.said_by_a_reader(point, state),
        ]

    assert_each_names(file.name, sentences)


@damaged_by(DATABASES)
def test_an_unreadable_database_is_refused_even_if_its_digests_match(
    shelf: "Shelf", kind: str, state: str, part: str
) -> None:
    """Only opening it shows the damage; the attempt then ends and the sentence says whose it is."""
    point = shelf.newer(kind)
    file = point.file_named(state, part)

    with shelf.exchanged(point, file, b"nothing of a database\n" * 9) as forged:
        sentences = [
            shelf.said_by_the_slot(point, forged),
            shelf.said_by_a_slot_that_takes_over(point, forged),
            shelf.said_by_a_reader(point, state),
        ]

    assert_each_names("", sentences)


@of_every_kind
@pytest.mark.parametrize("way", ["missing", "torn", "empty", "one bit", "longer", "newer format"])
def test_every_reader_names_a_damaged_manifest(shelf: "Shelf", kind: str, way: str) -> None:
    point = shelf.newer(kind)
    newer = msgspec.structs.replace(point.manifest, format_version=FORMAT_VERSION + 1)

    damaging = DAMAGES.get(way, lambda content: seal(newer))
    with shelf.damaged_manifest(point, damaging):
        sentences = [
            *shelf.said_by_the_driver(kind),
            shelf.said_by_the_preflight(point),
            shelf.said_by_a_reader(point, "value"),
        ]

    assert_each_names("manifest.json", sentences)
    if way == "newer format":
        assert all(f"format {FORMAT_VERSION + 1}" in each for each in sentences)


@of_every_kind
def test_a_point_of_another_job_is_refused_with_the_uids_that_it_holds(
    shelf: "Shelf", kind: str
) -> None:
    point = shelf.newer(kind)
    foreign = renamed(point.manifest, {"numbers": "clicks", "states": "sessions"})
    others = msgspec.structs.replace(foreign, pipeline="shop", run_id=RunId("run-shop"))

    with shelf.forged(point, others):
        sentences = [
            shelf.said_by_a_restore(point),
            shelf.said_by_the_preflight(point),
            shelf.said_by_a_reader(point, "value"),
        ]

    assert all("'clicks'" in each and "'sessions'" in each for each in sentences)


@of_every_kind
@pytest.mark.parametrize("uid", ["numbers", "states"])
def test_a_renamed_uid_is_refused_by_name(shelf: "Shelf", kind: str, uid: str) -> None:
    point = shelf.newer(kind)

    with shelf.forged(point, renamed(point.manifest, {uid: "former"})):
        sentences = [shelf.said_by_a_restore(point), shelf.said_by_the_preflight(point)]

    assert_each_names("'former'", sentences)


@of_every_kind
def test_every_reader_accepts_an_undamaged_point_of_every_kind(shelf: "Shelf", kind: str) -> None:
    point = shelf.newer(kind)

    assert shelf.restore(point).location == point.location
    assert shelf.verdict_on(point).refusals == ()
    shelf.take_in(point, point.manifest)
    assert len(list(shelf.rows(point, "value"))) > 0


@pytest.fixture(scope="module", autouse=True)
def skip_the_wait_for_the_disk() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _descriptor: None)
        yield


@pytest.fixture(scope="module")
def in_files(tmp_path_factory: pytest.TempPathFactory) -> "Shelf":
    return Shelf(FilePoints(tmp_path_factory.mktemp("shelf")))


@pytest.fixture(scope="module")
def in_objects(objects: ObjectServer) -> Iterator["Shelf"]:
    objects.plan(never)
    with named_environment(objects.environment):
        yield Shelf(ObjectPoints(objects))


@pytest.fixture
def shelf(request: pytest.FixtureRequest) -> "Shelf":
    found: Shelf = request.getfixturevalue(f"in_{request.param}")
    return found


@dataclass
class Shelf:
    """Two points of each kind, an older and a newer one; damage to the newer is undone."""

    points: StoredPoints
    _held: dict[str, tuple[HeldPoint, HeldPoint]] = field(default_factory=dict)

    def older(self, kind: str) -> HeldPoint:
        return self._both(kind)[0]

    def newer(self, kind: str) -> HeldPoint:
        return self._both(kind)[1]

    def _both(self, kind: str) -> tuple[HeldPoint, HeldPoint]:
        if kind not in self._held:
            older, newer = (
                hold(
                    self.points.store,
                    f"{self.points.root}/{kind.replace(' ', '-')}/{age}",
                    kind,
                )
                for age in ("older", "newer")
            )
            self._held[kind] = (older, newer)
        return self._held[kind]

    @contextmanager
    def damaged(self, point: HeldPoint, file: FileHandle, damaging: Damaging) -> Iterator[None]:
        place = location_of(point.location, file)
        whole = self.points.content(place, file)
        self.points.damaged(place, file, damaging(whole))
        try:
            yield
        finally:
            self.points.damaged(place, file, whole)

    @contextmanager
    def damaged_manifest(self, point: HeldPoint, damaging: Damaging) -> Iterator[None]:
        whole = self.points.manifest_content(point.location)
        manifest = FileHandle(name="manifest.json", length=0, digest="")
        self.points.damaged(point.location, manifest, damaging(whole))
        try:
            yield
        finally:
            self.points.damaged(point.location, manifest, whole)

    @contextmanager
    def forged(self, point: HeldPoint, manifest: Manifest) -> Iterator[None]:
        """Replaces the manifest by a forged one, sealed as if it had been written here."""
        with self.damaged_manifest(point, lambda _: seal(manifest)):
            yield

    @contextmanager
    def exchanged(self, point: HeldPoint, file: FileHandle, content: bytes) -> Iterator[Manifest]:
        """Replaces the file and adjusts the manifest, so that length and digest are right."""
        found = handle_of(file.name, [content])
        true = msgspec.structs.replace(found, is_shared=file.is_shared)
        forged = with_handle(point.manifest, file, true)
        with self.damaged(point, file, lambda _: content), self.forged(point, forged):
            yield forged

    def said_by_the_driver(self, kind: str) -> list[str]:
        """Returns the sentences for a restore and a recovery; checks the one without fallback."""
        older, newer = self._both(kind)
        own = [
            RetainedPoint(CheckpointId(1), older.location),
            RetainedPoint(CheckpointId(2), newer.location),
        ]
        events: list[Event] = []
        start = self._chooser(events, run_id=RUN).choose(RetainedPoints(3, tuple(own)))
        assert start.location == older.location
        [refused] = events
        assert isinstance(refused, RestorePointRefused)
        assert refused.path == newer.location
        with pytest.raises(CorruptSnapshot) as stopped:
            self._chooser([], run_id=RUN, falls_back=False).choose(RetainedPoints(3, tuple(own)))
        assert "on-damaged-point = fail" in str(stopped.value)
        return [self.said_by_a_restore(newer), refused.message]

    def said_by_a_restore(self, point: HeldPoint) -> str:
        with pytest.raises((CorruptSnapshot, Rejected)) as refused:
            self.restore(point)
        return str(refused.value)

    def restore(self, point: HeldPoint) -> StartingPoint:
        asked = {"run_id": RunId("run-new"), "restore_from": point.location}
        return self._chooser([], **asked).choose(RetainedPoints(3, ()))

    def _chooser(
        self, events: list[Event], *, falls_back: bool = True, **asked: object
    ) -> StartingPointChooser:
        spec = spec_of(pipeline=FLOW_NAME, max_parallelism=MAX_PARALLELISM, **asked)
        store = self.points.store
        return StartingPointChooser(
            spec=spec,
            pipeline=assemble({}),
            store=store,
            emit=events.append,
            may_fall_back=falls_back,
        )

    def said_by_the_preflight(self, point: HeldPoint) -> str:
        refusals = self.verdict_on(point).refusals
        assert len(refusals) == 1
        return refusals[0]

    def verdict_on(self, point: HeldPoint) -> Verdict:
        question = RestoreQuestion(
            path=point.location,
            flow=FLOW_NAME,
            parameters={},
            parallelism=1,
            max_parallelism=MAX_PARALLELISM,
        )
        return preflight(question, self.points.store)

    def said_by_the_slot(self, point: HeldPoint, manifest: Manifest) -> str:
        """A slot may find a file damaged that was whole when the driver looked."""
        with pytest.raises((CorruptSnapshot, Rejected)) as refused:
            self.take_in(point, manifest)
        return str(refused.value)

    def said_by_a_slot_that_takes_over(self, point: HeldPoint, manifest: Manifest) -> str:
        """This slot takes the database over as it is, since backend and key groups are the same."""
        with pytest.raises((CorruptSnapshot, Rejected)) as refused:
            self.take_in(point, manifest, "rocksdb")
        return str(refused.value)

    def take_in(self, point: HeldPoint, manifest: Manifest, backend: str = "hashmap") -> None:
        given = RestorePoint(self.points.store, point.location, manifest, run_id=RUN)
        vertex = assemble({}).graph.vertex(STATES)
        list(given.in_flight_into(vertex, 0, 1))
        held_in(given.share_of(STATES, 0, 1, ALL_GROUPS), backend)

    def said_by_a_reader(self, point: HeldPoint, state: str) -> str:
        """Returns "" for records in flight, since no reader reads them."""
        if state == IN_FLIGHT:
            return ""
        with pytest.raises((CorruptSnapshot, Rejected)) as refused:
            list(self.rows(point, state))
        return str(refused.value)

    def rows(self, point: HeldPoint, state: str) -> Iterator[pa.RecordBatch]:
        """Reads the rows as `read_state` does in Spark."""
        store = self.points.store
        for handle in handles_of(store.manifest(point.location), point.location, STATES, state):
            yield from rows_of(store, point.location, handle)


def assert_each_names(name: str, sentences: list[str]) -> None:
    said = [sentence for sentence in sentences if sentence]
    assert len(said) >= 2
    for sentence in said:
        assert name in sentence
        assert "\n" not in sentence
        assert sentence.endswith(".")


def with_handle(manifest: Manifest, old: FileHandle, new: FileHandle) -> Manifest:
    """Replaces one file's handle everywhere in the manifest."""

    def replaced(value: object) -> object:
        if isinstance(value, list):
            return [replaced(each) for each in value]
        if not isinstance(value, dict):
            return value
        if value.get("name") == old.name and "digest" in value:
            return msgspec.to_builtins(new)
        return {key: replaced(each) for key, each in value.items()}

    return msgspec.convert(replaced(msgspec.to_builtins(manifest)), Manifest)


def with_part_named(manifest: Manifest, file: FileHandle, name: str) -> Manifest:
    [states] = [s for s in manifest.subtasks if any(o.uid == STATES for o in s.operators)]
    for handle in (handle for operator in states.operators for handle in operator.states):
        for index, part in enumerate(handle.parts):
            if part.file == file:
                changed = list(handle.parts)
                changed[index] = msgspec.structs.replace(part, name=name)
                other = msgspec.structs.replace(handle, parts=changed)
                return with_state(manifest, handle, other)
    raise AssertionError(f"{file.name} is no part of a state")


def with_state(manifest: Manifest, old: StateHandle, new: StateHandle) -> Manifest:
    subtasks = [
        msgspec.structs.replace(
            subtask,
            operators=[
                msgspec.structs.replace(o, states=[new if s == old else s for s in o.states])
                for o in subtask.operators
            ],
        )
        for subtask in manifest.subtasks
    ]
    return msgspec.structs.replace(manifest, subtasks=subtasks)


def renamed(manifest: Manifest, names: dict[str, str]) -> Manifest:
    subtasks = [
        msgspec.structs.replace(
            subtask,
            in_flight=[],
            operators=[
                msgspec.structs.replace(o, uid=Uid(names.get(o.uid, o.uid)))
                for o in subtask.operators
            ],
        )
        for subtask in manifest.subtasks
    ]
    return msgspec.structs.replace(manifest, subtasks=subtasks)


def flipped(content: bytes, index: int) -> bytes:
    return content[:index] + bytes([content[index] ^ 1]) + content[index + 1 :]


@cache
def bombs() -> dict[str, bytes]:
    zeros = pa.table({"key": pa.array(np.zeros(2_000_000, np.int64))})
    parquet, arrow = pa.BufferOutputStream(), pa.BufferOutputStream()
    pq.write_table(zeros, parquet, compression="zstd", use_dictionary=False)
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_file(arrow, zeros.schema, options=options) as writer:
        writer.write_table(zeros)
    return {".parquet": parquet.getvalue().to_pybytes(), ".arrow": arrow.getvalue().to_pybytes()}
