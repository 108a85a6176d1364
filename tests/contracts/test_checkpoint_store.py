"""The contract of checkpoint stores: files are verified, and a manifest appears once or not."""

import hashlib
import threading
from collections.abc import Callable
from datetime import UTC, date, datetime, time
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

from pipelines.domain.errors import CorruptSnapshot, Rejected
from pipelines.domain.ids import Attempt, CheckpointId, RunId, Uid
from pipelines.domain.snapshots import (
    FORMAT_VERSION,
    FileHandle,
    Manifest,
    OperatorSnapshot,
    StateHandle,
    SubtaskSnapshot,
)
from pipelines.domain.status import CheckpointKind
from pipelines.storage.filesystem import FileSystemCheckpointStore
from pipelines.storage.store import CheckpointStore, Publication

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
    pa.timestamp("s"),  # Parquet itself knows no seconds
    pa.timestamp("us", tz="UTC"),
]
DEADLINE_S = 5.0
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

Damaging = Callable[[Path], object]


@pytest.fixture(params=["filesystem"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> CheckpointStore:
    return {"filesystem": FileSystemCheckpointStore}[request.param]([str(tmp_path / "jobs")])


@pytest.fixture
def location(tmp_path: Path) -> str:
    return str(tmp_path / "jobs" / "checkpoints" / "chk-1")


@pytest.mark.parametrize("open_format", [False, True])
@pytest.mark.parametrize("sizes", [[], [0], [3], [3, 0, 5], [1000, 1]])
def test_rows_come_back_as_they_were_written(
    store: CheckpointStore, location: str, sizes: list[int], open_format: bool
) -> None:
    batches = [rows(size, first=index * 10_000) for index, size in enumerate(sizes)]

    handle = store.write_batches(location, "count-0", SCHEMA, batches, open_format=open_format)
    found = pa.Table.from_batches(store.read_batches(location, handle), SCHEMA)

    assert found.equals(pa.Table.from_batches(batches, SCHEMA))


@pytest.mark.parametrize("open_format", [False, True])
@pytest.mark.parametrize("column_type", [*NUMBERS, *SAMPLES], ids=str)
def test_a_column_comes_back_in_the_type_it_was_written_in(
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
def test_columns_come_back_with_their_own_type(
    store: CheckpointStore, location: str, data_type: pa.DataType, open_format: bool
) -> None:
    schema = pa.schema([("value", data_type)])
    batch = pa.RecordBatch.from_arrays([pa.nulls(3, data_type)], schema=schema)

    handle = store.write_batches(location, "types", schema, [batch], open_format=open_format)
    [found] = store.read_batches(location, handle)

    assert found.schema == schema
    assert found.equals(batch)


@pytest.mark.parametrize(("open_format", "suffix"), [(False, ".arrow"), (True, ".parquet")])
def test_a_handle_tells_name_length_and_digest(
    store: CheckpointStore, location: str, open_format: bool, suffix: str
) -> None:
    handle = store.write_batches(location, "count-0", SCHEMA, [rows(9)], open_format=open_format)

    content = (Path(location) / handle.name).read_bytes()
    assert handle.name == "count-0" + suffix
    assert handle.length == len(content)
    assert handle.digest == hashlib.blake2b(content, digest_size=32).hexdigest()


def test_a_manifest_comes_back_as_it_was_published(store: CheckpointStore, location: str) -> None:
    manifest = written_point(store, location)

    assert store.publish(location, manifest) is Publication.PUBLISHED
    assert store.manifest(location) == manifest
    assert store.verify(location) == []


def test_publishing_the_same_again_is_recognised(store: CheckpointStore, location: str) -> None:
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


def test_of_several_that_publish_at_once_exactly_one_succeeds(
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
    store: CheckpointStore, location: str, open_format: bool, damaging: str, problem: str
) -> None:
    manifest = written_point(store, location, open_format=open_format)
    store.publish(location, manifest)
    for file in files_of(manifest):
        path = Path(location) / file.name
        whole = path.read_bytes()
        DAMAGES[damaging](path)

        damage = store.verify(location)

        assert [d.file for d in damage] == [file.name]
        assert damage[0].problem.startswith(str(path))
        assert damage[0].problem.endswith(problem)
        with pytest.raises(CorruptSnapshot, match=file.name):
            list(store.read_batches(location, file))
        path.write_bytes(whole)
    assert store.verify(location) == []


def test_every_flipped_bit_of_a_data_file_is_found(store: CheckpointStore, location: str) -> None:
    handle = store.write_batches(location, "tiny", SCHEMA, [rows(1)], open_format=False)
    path = Path(location) / handle.name
    whole = path.read_bytes()

    for index in range(0, len(whole), 7):
        flip(path, index, bit=index % 8)
        with pytest.raises(CorruptSnapshot, match=r"tiny\.arrow was altered"):
            next(store.read_batches(location, handle))
        path.write_bytes(whole)


@pytest.mark.slow
def test_every_flipped_bit_of_the_manifest_is_found(store: CheckpointStore, location: str) -> None:
    store.publish(location, written_point(store, location))
    path = Path(location) / "manifest.json"
    whole = path.read_bytes()

    for index in range(0, len(whole), 2):
        flip(path, index, bit=index % 8)
        with pytest.raises(CorruptSnapshot, match=r"manifest\.json"):
            store.manifest(location)
        path.write_bytes(whole)


@pytest.mark.parametrize("share", [0.0, 0.3, 0.99])
def test_a_truncated_manifest_is_found(store: CheckpointStore, location: str, share: float) -> None:
    store.publish(location, written_point(store, location))
    path = Path(location) / "manifest.json"
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * share)])

    assert [damage.file for damage in store.verify(location)] == ["manifest.json"]
    with pytest.raises(CorruptSnapshot, match="is truncated or altered"):
        store.manifest(location)


def test_a_directory_without_a_manifest_is_no_point(store: CheckpointStore, location: str) -> None:
    written_point(store, location)

    with pytest.raises(CorruptSnapshot, match=r"manifest\.json is missing"):
        store.manifest(location)
    assert [damage.file for damage in store.verify(location)] == ["manifest.json"]
    assert store.published(str(Path(location).parent)) == []


def test_a_newer_format_is_refused_by_its_number(store: CheckpointStore, location: str) -> None:
    newer = msgspec.structs.replace(
        written_point(store, location), format_version=FORMAT_VERSION + 1
    )
    store.publish(location, newer)

    with pytest.raises(CorruptSnapshot, match=rf"newer release \(format {FORMAT_VERSION + 1}\)"):
        store.manifest(location)


@pytest.mark.parametrize("name", ["../../secret", "/etc/hostname", "..", "", "a/b.arrow"])
def test_a_manifest_that_names_a_file_elsewhere_is_refused_unread(
    store: CheckpointStore, location: str, tmp_path: Path, name: str
) -> None:
    secret = tmp_path / "jobs" / "secret"
    handle = store.write_batches(location, "count-0", SCHEMA, [rows(1)], open_format=False)
    (Path(location) / handle.name).rename(secret)
    stranger = msgspec.structs.replace(handle, name=name)
    store.publish(location, manifest_of([stranger]))

    assert "is no file name" in store.verify(location)[0].problem
    with pytest.raises(CorruptSnapshot, match="is no file name"):
        list(store.read_batches(location, stranger))


def test_all_points_below_a_root_are_listed(store: CheckpointStore, tmp_path: Path) -> None:
    root = tmp_path / "jobs" / "checkpoints"
    for number in (1, 2, 3):
        store.publish(str(root / f"chk-{number}"), manifest_of([]))
    written_point(store, str(root / "chk-4"))

    assert sorted(store.published(str(root))) == [str(root / f"chk-{n}") for n in (1, 2, 3)]
    assert store.published(str(tmp_path / "jobs" / "nothing")) == []


def test_a_discarded_point_is_gone_and_its_neighbours_are_not(
    store: CheckpointStore, location: str
) -> None:
    neighbour = location + "0"
    for place in (location, neighbour):
        store.publish(place, written_point(store, place))

    store.discard(location)
    store.discard(location)  # a second time is harmless

    assert store.published(str(Path(location).parent)) == [neighbour]
    assert not Path(location).exists()
    assert store.verify(neighbour) == []


@pytest.mark.parametrize("outside", ["elsewhere", "jobs-of-others", "jobs/../elsewhere", "link"])
def test_nothing_outside_the_roots_is_touched(
    store: CheckpointStore, tmp_path: Path, outside: str
) -> None:
    place = tmp_path / outside
    (tmp_path / "jobs").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "jobs" / "link").symlink_to(tmp_path / "elsewhere")
    before = sorted(tmp_path.rglob("*"))
    file = FileHandle(name="count-0.arrow", length=1, digest="")

    for location in (str(place), str(tmp_path / "jobs" / "link")):
        for touch in (
            lambda at: store.write_batches(at, "count-0", SCHEMA, [], open_format=False),
            lambda at: list(store.read_batches(at, file)),
            lambda at: store.publish(at, manifest_of([])),
            store.manifest,
            store.published,
            store.discard,
        ):
            with pytest.raises(Rejected, match="outside the configured storage"):
                touch(location)

    assert sorted(tmp_path.rglob("*")) == before


def test_the_storage_itself_is_never_discarded(
    store: CheckpointStore, location: str, tmp_path: Path
) -> None:
    store.publish(location, written_point(store, location))

    with pytest.raises(Rejected, match="is the storage itself"):
        store.discard(str(tmp_path / "jobs"))

    assert store.verify(location) == []


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


def flip(path: Path, index: int, bit: int = 0) -> None:
    content = bytearray(path.read_bytes())
    content[index] ^= 1 << bit
    path.write_bytes(content)


DAMAGES: dict[str, Damaging] = {
    "flip": lambda path: flip(path, path.stat().st_size // 2),
    "truncate": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "extend": lambda path: path.write_bytes(path.read_bytes() + b"\0"),
    "empty": lambda path: path.write_bytes(b""),
    "remove": lambda path: path.unlink(),
}
