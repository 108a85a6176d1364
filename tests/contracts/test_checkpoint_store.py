"""The contract of checkpoint stores: files are verified, and a manifest appears once or never."""

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, date, datetime, time
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
from blake3 import blake3

from pipelines.domain.errors import CorruptSnapshot, InvariantViolated, Rejected
from pipelines.domain.ids import Attempt, CheckpointId, RunId, Uid
from pipelines.domain.snapshots import (
    FORMAT_VERSION,
    FileHandle,
    Manifest,
    OperatorSnapshot,
    StateHandle,
    StatePart,
    SubtaskSnapshot,
)
from pipelines.domain.status import CheckpointKind
from pipelines.storage.store import CheckpointStore, Publication, shared_location
from tests.contracts.stored_points import (
    FilePoints,
    MemoryPoints,
    ObjectPoints,
    StoredPoints,
    named_environment,
)
from tests.object_server import ObjectServer, never

SCHEMA = pa.schema([("key", pa.int64()), ("name", pa.string()), ("__key_group", pa.uint16())])
STATE_TYPES = [
    pa.int8(),
    pa.uint16(),
    pa.uint64(),
    pa.float32(),
    pa.bool_(),
    pa.date32(),
    pa.large_string(),
    pa.binary(),
    pa.timestamp("s"),  # Parquet itself has no unit of seconds
    pa.timestamp("us", tz="UTC"),
]
DEADLINE_S = 20.0
SAMPLES = {
    pa.bool_(): True,
    pa.large_string(): "JFK",
    pa.timestamp("s"): datetime(2013, 1, 1),
    pa.timestamp("ns", "UTC"): datetime(2013, 1, 1, tzinfo=UTC),
    pa.date32(): date(2013, 1, 1),
    pa.date64(): date(2013, 1, 1),
    pa.time32("s"): time(12, 30),
}
NUMBERS = [pa.int8(), pa.uint32(), pa.uint64(), pa.float32()]

Damaging = Callable[[bytes], bytes | None]


@pytest.fixture(params=["files", "objects", "memory"])
def points(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StoredPoints]:
    if request.param == "files":
        yield FilePoints(tmp_path)
    elif request.param == "memory":
        yield MemoryPoints()
    else:
        server: ObjectServer = request.getfixturevalue("objects")
        server.plan(never)
        with named_environment(server.environment):
            yield ObjectPoints(server)


@pytest.fixture
def store(points: StoredPoints) -> CheckpointStore:
    return points.store


@pytest.fixture
def location(points: StoredPoints) -> str:
    return f"{points.root}/checkpoints/chk-1"


@pytest.mark.parametrize("open_format", [False, True])
@pytest.mark.parametrize("sizes", [[], [0], [3], [3, 0, 5], [1000, 1]])
def test_rows_are_read_back_as_they_were_written(
    store: CheckpointStore, location: str, sizes: list[int], open_format: bool
) -> None:
    batches = [rows(size, first=index * 10_000) for index, size in enumerate(sizes)]

    handle = store.write_batches(location, "count-0", SCHEMA, batches, open_format=open_format)
    found = pa.Table.from_batches(store.read_batches(location, handle), SCHEMA)

    assert found.equals(pa.Table.from_batches(batches, SCHEMA))


@pytest.mark.parametrize("open_format", [False, True])
@pytest.mark.parametrize("column_type", [*NUMBERS, *SAMPLES], ids=str)
def test_a_column_is_read_back_with_its_values_and_type(
    store: CheckpointStore, location: str, column_type: pa.DataType, open_format: bool
) -> None:
    schema = pa.schema([("column", column_type)])
    written = pa.RecordBatch.from_pylist([{"column": SAMPLES.get(column_type, 1)}, {}], schema)

    file = store.write_batches(location, "s", written.schema, [written], open_format=open_format)

    [read] = store.read_batches(location, file)
    assert read.equals(written)
    assert read.schema == written.schema


@pytest.mark.parametrize("open_format", [False, True])
@pytest.mark.parametrize("data_type", STATE_TYPES, ids=str)
def test_a_column_of_nulls_is_read_back_with_its_type(
    store: CheckpointStore, location: str, data_type: pa.DataType, open_format: bool
) -> None:
    schema = pa.schema([("value", data_type)])
    batch = pa.RecordBatch.from_arrays([pa.nulls(3, data_type)], schema=schema)

    handle = store.write_batches(location, "types", schema, [batch], open_format=open_format)
    [found] = store.read_batches(location, handle)

    assert found.schema == schema
    assert found.equals(batch)


@pytest.mark.parametrize(("open_format", "suffix"), [(False, ".arrow"), (True, ".parquet")])
def test_a_handle_holds_name_length_and_digest(
    points: StoredPoints, location: str, open_format: bool, suffix: str
) -> None:
    store = points.store
    handle = store.write_batches(location, "count-0", SCHEMA, [rows(9)], open_format=open_format)

    content = points.content(location, handle)
    assert handle.name == "count-0" + suffix
    assert handle.length == len(content)
    assert handle.digest == f"blake3:{blake3(content).hexdigest()}"


@pytest.mark.parametrize("open_format", [False, True])
def test_a_second_file_of_the_same_name_does_not_replace_the_first(
    points: StoredPoints, location: str, open_format: bool, tmp_path: Path
) -> None:
    store = points.store
    first = store.write_batches(location, "s", SCHEMA, [rows(3)], open_format=open_format)
    raw = store.write_file(location, "000012.sst", [b"rows"])

    with refusal_unless_in_memory(points, first.name):
        store.write_batches(location, "s", SCHEMA, [rows(4)], open_format=open_format)
    with refusal_unless_in_memory(points, raw.name):
        store.write_file(location, "000012.sst", [b"others"])

    assert sum(batch.num_rows for batch in store.read_batches(location, first)) == 3
    store.fetch(location, raw, tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == b"rows"
    if not isinstance(points, MemoryPoints):
        assert sorted(store.names(location)) == sorted([first.name, raw.name])


def refusal_unless_in_memory(points: StoredPoints, name: str) -> AbstractContextManager[object]:
    """In memory a file is part of its handle, so no two files can meet under one name."""
    if isinstance(points, MemoryPoints):
        return nullcontext()
    return pytest.raises(InvariantViolated, match=rf"has a file {re.escape(name)} already")


def test_a_manifest_is_read_as_it_was_published(store: CheckpointStore, location: str) -> None:
    manifest = written_point(store, location)

    assert store.publish(location, manifest) is Publication.PUBLISHED
    assert store.manifest(location) == manifest
    assert store.verify(location) == []


def test_publishing_the_same_manifest_again_is_recognised(
    store: CheckpointStore, location: str
) -> None:
    manifest = written_point(store, location)
    store.publish(location, manifest)

    assert store.publish(location, manifest) is Publication.ALREADY_PUBLISHED


def test_another_manifest_conflicts_and_replaces_nothing(
    store: CheckpointStore, location: str
) -> None:
    manifest = written_point(store, location)
    store.publish(location, manifest)
    others = msgspec.structs.replace(manifest, attempt=Attempt(2))

    assert store.publish(location, others) is Publication.CONFLICT
    assert store.manifest(location) == manifest


def test_exactly_one_of_several_simultaneous_publishers_succeeds(
    store: CheckpointStore, location: str
) -> None:
    manifest = written_point(store, location)
    rivals = [msgspec.structs.replace(manifest, attempt=Attempt(n)) for n in range(8)]
    start, outcomes = threading.Barrier(len(rivals)), {}

    def publish(rival: Manifest) -> None:
        start.wait(DEADLINE_S)
        outcomes[rival.attempt] = store.publish(location, rival)

    threads = [threading.Thread(target=publish, args=(rival,)) for rival in rivals]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)

    winners = [attempt for attempt, o in outcomes.items() if o is Publication.PUBLISHED]
    assert len(outcomes) == len(rivals)
    assert winners == [store.manifest(location).attempt]
    assert list(outcomes.values()).count(Publication.CONFLICT) == len(rivals) - 1


@pytest.mark.parametrize(
    ("damaging", "problem"),
    [
        ("flip", "was altered: its digest does not match."),
        ("truncate", "it was truncated."),
        ("extend", "it was extended."),
        ("empty", "it was truncated."),
        ("remove", "is missing."),
    ],
)
@pytest.mark.parametrize("open_format", [False, True])
def test_damage_to_any_data_file_is_found_and_named(
    points: StoredPoints, location: str, open_format: bool, damaging: str, problem: str
) -> None:
    store = points.store
    manifest = written_point(store, location, open_format=open_format)
    store.publish(location, manifest)
    for file in files_of(manifest):
        whole = points.content(location, file)
        damaged = points.damaged(location, file, DAMAGES[damaging](whole))

        damage = store.verify(location)

        assert [d.file for d in damage] == [file.name]
        assert damage[0].problem.startswith(f"{location}/{file.name}")
        assert damage[0].problem.endswith(problem)
        with pytest.raises(CorruptSnapshot, match=file.name):
            list(store.read_batches(location, damaged))
        points.damaged(location, file, whole)
    assert store.verify(location) == []


@pytest.mark.slow
def test_every_flipped_bit_of_a_data_file_is_found(points: StoredPoints, location: str) -> None:
    store = points.store
    file = store.write_batches(location, "tiny", SCHEMA, [rows(1)], open_format=False)
    whole = points.content(location, file)

    for index in range(0, len(whole), 7):
        damaged = points.damaged(location, file, flipped(whole, index, bit=index % 8))
        with pytest.raises(CorruptSnapshot, match=r"tiny\.arrow was altered"):
            next(store.read_batches(location, damaged))


@pytest.mark.slow
def test_every_flipped_bit_of_the_manifest_is_found(points: StoredPoints, location: str) -> None:
    store = points.store
    store.publish(location, written_point(store, location))
    whole = points.manifest_content(location)
    step = 13 if isinstance(points, ObjectPoints) else 2  # each takes two requests

    for index in range(0, len(whole), step):
        points.replace_manifest(location, flipped(whole, index, bit=index % 8))
        with pytest.raises(CorruptSnapshot, match=r"manifest\.json"):
            store.manifest(location)


@pytest.mark.parametrize("share", [0.0, 0.3, 0.99])
def test_a_truncated_manifest_is_found(points: StoredPoints, location: str, share: float) -> None:
    store = points.store
    store.publish(location, written_point(store, location))
    whole = points.manifest_content(location)
    points.replace_manifest(location, whole[: int(len(whole) * share)])

    assert [damage.file for damage in store.verify(location)] == ["manifest.json"]
    with pytest.raises(CorruptSnapshot, match="is truncated or altered"):
        store.manifest(location)


def test_a_directory_without_a_manifest_is_no_point(store: CheckpointStore, location: str) -> None:
    written_point(store, location)

    with pytest.raises(CorruptSnapshot, match=r"manifest\.json is missing"):
        store.manifest(location)
    assert [damage.file for damage in store.verify(location)] == ["manifest.json"]
    assert store.published(location.rpartition("/")[0]) == []


def test_a_newer_format_is_refused_by_its_number(store: CheckpointStore, location: str) -> None:
    newer = msgspec.structs.replace(
        written_point(store, location), format_version=FORMAT_VERSION + 1
    )
    store.publish(location, newer)

    with pytest.raises(CorruptSnapshot, match=rf"newer release \(format {FORMAT_VERSION + 1}\)"):
        store.manifest(location)


@pytest.mark.parametrize("name", ["../../secret", "/etc/hostname", "..", "", "a/b.arrow"])
def test_a_manifest_that_names_a_file_elsewhere_is_refused_unread(
    store: CheckpointStore, location: str, name: str
) -> None:
    file = store.write_batches(location, "count-0", SCHEMA, [rows(1)], open_format=False)
    stranger = msgspec.structs.replace(file, name=name)
    store.publish(location, manifest_of([stranger]))

    assert "is no file name" in store.verify(location)[0].problem
    with pytest.raises(CorruptSnapshot, match="is no file name"):
        list(store.read_batches(location, stranger))


def test_all_points_below_a_root_are_listed(points: StoredPoints) -> None:
    store, root = points.store, f"{points.root}/checkpoints"
    for number in (1, 2, 3):
        store.publish(f"{root}/chk-{number}", manifest_of([]))
    written_point(store, f"{root}/chk-4")

    assert sorted(store.published(root)) == [f"{root}/chk-{n}" for n in (1, 2, 3)]
    assert {"chk-1", "chk-2", "chk-3"} <= set(store.names(root))
    assert store.published(root, among=["chk-2", "chk-4", "chk-5"]) == [f"{root}/chk-2"]
    assert store.published(root, among=[]) == []
    assert store.published(f"{points.root}/nothing") == []
    assert store.names(f"{points.root}/nothing") == []


def test_discarding_a_point_leaves_its_neighbour(points: StoredPoints, location: str) -> None:
    store, neighbour = points.store, location + "0"
    for place in (location, neighbour):
        store.publish(place, written_point(store, place))

    store.discard(location)
    store.discard(location)  # a second call is harmless

    assert store.published(location.rpartition("/")[0]) == [neighbour]
    assert points.is_empty(location)
    assert store.verify(neighbour) == []


@pytest.mark.parametrize("may_share", [False, True])
def test_a_fetched_file_has_the_stored_bytes(
    points: StoredPoints, location: str, tmp_path: Path, *, may_share: bool
) -> None:
    pieces = [b"", bytes(range(256)) * 3_000, b"end"]

    file = points.store.write_file(location, "000012.sst", pieces)
    points.store.fetch(location, file, tmp_path / "copy", may_share=may_share)

    assert file.name == "000012.sst"
    assert (tmp_path / "copy").read_bytes() == b"".join(pieces)


def test_writing_to_a_fetched_copy_leaves_the_point_unchanged(
    points: StoredPoints, location: str, tmp_path: Path
) -> None:
    file = points.store.write_file(location, "MANIFEST-000004", [b"rows"])

    points.store.fetch(location, file, tmp_path / "copy")
    with (tmp_path / "copy").open("ab") as copy:
        copy.write(b"more")

    assert points.store.problem_of(location, file, reads=True) is None


@pytest.mark.parametrize("may_share", [False, True])
@pytest.mark.parametrize("damaging", ["flip", "truncate", "remove"])
def test_a_damaged_file_is_not_fetched(
    points: StoredPoints, location: str, damaging: str, tmp_path: Path, *, may_share: bool
) -> None:
    file = points.store.write_file(location, "000012.sst", [b"rows"])
    damaged = points.damaged(location, file, DAMAGES[damaging](b"rows"))

    with pytest.raises(CorruptSnapshot, match=r"000012\.sst"):
        points.store.fetch(location, damaged, tmp_path / "copy", may_share=may_share)


@pytest.mark.parametrize(
    ("damaging", "is_seen"),
    [("remove", True), ("truncate", True), ("extend", True), ("flip", False)],
)
def test_a_check_without_reading_finds_missing_files_and_wrong_lengths(
    points: StoredPoints, location: str, damaging: str, is_seen: bool
) -> None:
    store = points.store
    file = store.write_batches(location, "count-0", SCHEMA, [rows(9)], open_format=False)
    whole = points.content(location, file)

    assert store.problem_of(location, file, reads=False) is None
    assert store.problem_of(location, file, reads=True) is None
    damaged = points.damaged(location, file, DAMAGES[damaging](whole))

    read = store.problem_of(location, damaged, reads=True)
    unread = store.problem_of(location, damaged, reads=False)
    assert read is not None
    assert file.name in read
    assert unread == (read if is_seen else None) or isinstance(points, MemoryPoints)


def test_discarding_a_point_keeps_a_file_that_another_point_shares(
    points: StoredPoints, tmp_path: Path
) -> None:
    store, root = points.store, f"{points.root}/checkpoints"
    shared = shared_location(f"{root}/chk-1")
    written = store.write_batches(shared, "base", SCHEMA, [rows(5)], open_format=False)
    file = msgspec.structs.replace(written, is_shared=True)
    for number in (1, 2):
        store.publish(f"{root}/chk-{number}", manifest_of([file]))

    store.discard(f"{root}/chk-1")

    assert store.verify(f"{root}/chk-2") == []
    assert sum(batch.num_rows for batch in store.read_batches(f"{root}/chk-2", file)) == 5
    store.fetch(f"{root}/chk-2", file, tmp_path / "copy")
    assert store.published(root) == [f"{root}/chk-2"]


def test_a_missing_delta_file_of_a_state_is_found(points: StoredPoints, location: str) -> None:
    store = points.store
    base = store.write_batches(location, "base", SCHEMA, [rows(5)], open_format=False)
    delta = store.write_batches(location, "delta", SCHEMA, [rows(1)], open_format=False)
    manifest = manifest_of([base])
    [state] = manifest.subtasks[0].operators[0].states
    missing = msgspec.structs.replace(delta, name="gone.arrow", content=None)
    parts = [StatePart(name="", file=delta), StatePart(name="", file=missing)]
    manifest.subtasks[0].operators[0].states[0] = msgspec.structs.replace(state, parts=parts)
    store.publish(location, manifest)

    assert [damage.file for damage in store.verify(location)] == ["gone.arrow"]


def test_files_are_deleted_by_name_and_others_stay(
    points: StoredPoints, location: str, tmp_path: Path
) -> None:
    store = points.store
    files = [store.write_file(location, f"{n}.sst", [b"rows"]) for n in range(3)]

    store.delete(location, ["0.sst", "2.sst", "never.sst"])
    store.delete(location, ["0.sst"])  # a second call is harmless
    store.delete(location, [])

    store.fetch(location, files[1], tmp_path / "1")
    if not isinstance(points, MemoryPoints):  # there a file is part of its handle
        assert store.names(location) == ["1.sst"]


@pytest.mark.parametrize("name", ["../chk-2/manifest.json", "/etc/hostname", "..", ""])
def test_a_delete_outside_the_point_is_refused(
    points: StoredPoints, location: str, name: str
) -> None:
    if isinstance(points, MemoryPoints):
        return  # deletes nothing at all
    with pytest.raises(Rejected, match="is no file name"):
        points.store.delete(location, [name])


def rows(count: int, first: int = 0) -> pa.RecordBatch:
    keys = range(first, first + count)
    columns = [pa.array(keys, pa.int64()), [f"key {n}" for n in keys], [n % 128 for n in keys]]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def written_point(store: CheckpointStore, location: str, *, open_format: bool = False) -> Manifest:
    """A point whose files are written and whose manifest is not published yet."""
    return manifest_of(
        [
            store.write_batches(location, f"count-{n}", SCHEMA, [rows(9)], open_format=open_format)
            for n in range(3)
        ]
    )


def manifest_of(files: list[FileHandle]) -> Manifest:
    return Manifest(
        format_version=FORMAT_VERSION,
        pipeline="räume",  # more than one byte per letter
        run_id=RunId("run-1"),
        attempt=Attempt(1),
        checkpoint_id=CheckpointId(1),
        kind=CheckpointKind.CHECKPOINT,
        trigger_ms=1_700_000_000_000,
        completed_ms=1_700_000_000_100,
        parallelism=1,
        max_parallelism=128,
        ancestors=[(RunId("run-0"), CheckpointId(7))],
        operator_ids={Uid("count"): "0" * 32},
        subtasks=[
            SubtaskSnapshot(
                vertex=Uid("count"),
                subtask=subtask,
                operators=[
                    OperatorSnapshot(
                        uid=Uid("count"),
                        states=[state_of(file)],
                        positions={"splits": [[0, 5]]},
                        committables=["transaction 1"],
                        counters={"late": 2},
                        watermark_ms=-5,
                    )
                ],
            )
            for subtask, file in enumerate(files)
        ],
    )


def state_of(file: FileHandle) -> StateHandle:
    return StateHandle(
        state="counts",
        kind="table",
        file=file,
        key_groups=(0, 127),
        rows=9,
        schema={"key": "int64"},
    )


def files_of(manifest: Manifest) -> list[FileHandle]:
    return [subtask.operators[0].states[0].file for subtask in manifest.subtasks]


def flipped(content: bytes, index: int, bit: int = 0) -> bytes:
    return content[:index] + bytes([content[index] ^ 1 << bit]) + content[index + 1 :]


DAMAGES: dict[str, Damaging] = {
    "flip": lambda content: flipped(content, len(content) // 2),
    "truncate": lambda content: content[:-1],
    "extend": lambda content: content + b"\0",
    "empty": lambda content: b"",
    "remove": lambda content: None,
}
