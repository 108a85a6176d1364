"""The promises of backends about increments: every completed checkpoint is whole, and small.

Random operations run on a dictionary and on a backend side by side. Checkpoints fail, complete late
and overtake each other. Each completed one is restored, in parts and into every backend.
"""

import random
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from rocksdict import Cache, DBCompressionType, Options

from pipelines.domain.errors import CorruptSnapshot
from pipelines.domain.ids import BUILD_ON_NOTHING, NO_CHECKPOINT, CheckpointId
from pipelines.domain.key_groups import KeyGroupRange, range_of
from pipelines.domain.snapshots import FileHandle, StateFormat, StateHandle
from pipelines.state.backend import (
    BatchList,
    BatchListDescriptor,
    FrozenState,
    StateBackend,
    StoredDatabase,
    StoredIncrement,
    Table,
    TableDescriptor,
)
from pipelines.state.in_memory import chains, columns
from pipelines.state.in_memory.hashmap import HashMapBackend
from pipelines.state.on_disk import sorted_files
from pipelines.state.on_disk.stored_database import rows_of
from tests.contracts.rocksdb_slots import AMPLE_BYTES, TINY_BYTES, rocksdb_backends, seeded
from tests.contracts.state_tables import batch_of, tuples

MAX_PARALLELISM = 16
ALL_GROUPS = KeyGroupRange(0, MAX_PARALLELISM - 1)
TOTALS = TableDescriptor(
    name="totals",
    key=pa.schema([("user", pa.string()), ("hour", pa.int64())]),
    value=pa.schema([("total", pa.int64()), ("note", pa.string())]),
    defaults={"total": 0, "note": None},
    key_group_by=("user",),
)
EVENTS = BatchListDescriptor(
    "events", pa.schema([("user", pa.string()), ("n", pa.int64())]), ("user",)
)
Create = Callable[[KeyGroupRange, int], StateBackend]
BACKENDS = [
    *("hashmap", "hashmap in tiny segments", "hashmap in tiny slices"),
    *("rocksdb", "rocksdb in tiny memory"),
]


@pytest.fixture(params=BACKENDS)
def create(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Create]:
    if request.param.startswith("rocksdb"):
        memory_bytes = TINY_BYTES if "tiny" in request.param else AMPLE_BYTES
        with rocksdb_backends(memory_bytes, is_incremental=True) as backends:
            yield backends
        return
    if "tiny" in request.param:
        monkeypatch.setattr(columns, "SEGMENT_BITS", 2)
        monkeypatch.setattr(columns, "SEGMENT_ROWS", 4)
    if "slices" in request.param:
        monkeypatch.setattr(chains, "SLICE_BITS", 3)
        monkeypatch.setattr(chains, "MERGED_BYTES_MAX", 6)
        monkeypatch.setattr(columns, "PART_BYTES", 10)
    yield lambda groups, most: HashMapBackend(groups, most, is_incremental=True)


@seeded("create", BACKENDS, 30)
def test_every_completed_checkpoint_can_be_restored_despite_failed_ones(
    create: Create, seed: int
) -> None:
    run = Run(random.Random(seed), create(ALL_GROUPS, MAX_PARALLELISM))

    for _ in range(120):
        run.step()

    assert run.completed
    for checkpoint in run.completed[-3:]:
        for kind in (create, HashMapBackend):
            assert run.restored(checkpoint, kind, 1) == checkpoint.model
        assert run.restored(checkpoint, create, 3) == checkpoint.model


def test_a_small_change_writes_a_small_part_of_the_state(create: Create) -> None:
    run = Run(random.Random(0), create(ALL_GROUPS, MAX_PARALLELISM))
    run.put([(f"user {n}", 0) for n in range(5_000)])
    run.complete(run.cut())
    whole = run.written_bytes

    run.put([(f"user {n}", 0) for n in range(0, 5_000, 100)])
    run.complete(run.cut())

    assert 0 < run.written_bytes - whole <= 0.1 * whole


def test_unchanged_state_is_not_written_again(create: Create) -> None:
    run = Run(random.Random(0), create(ALL_GROUPS, MAX_PARALLELISM))
    run.put([(f"user {n}", 0) for n in range(100)])
    run.complete(run.cut())
    shared = {name for name in run.files if name.startswith("shared")}

    run.complete(run.cut())

    assert {name for name in run.files if name.startswith("shared")} == shared


def test_no_checkpoint_refers_to_files_of_a_failed_one(create: Create) -> None:
    run = Run(random.Random(0), create(ALL_GROUPS, MAX_PARALLELISM))
    run.put([("a", 1)])
    first = run.cut()
    run.complete(first)
    run.put([("b", 1)])
    failed = run.cut()
    written = {f.name for handle in failed.handles for f in handle.files}
    kept = {f.name for handle in first.handles for f in handle.files}
    run.abort(failed)

    run.put([("c", 1)])
    third = run.cut()

    used = {f.name for handle in third.handles for f in handle.files}
    assert not used & (written - kept)
    run.complete(third)
    assert run.restored(third, create, 1) == third.model


def test_after_damage_the_next_checkpoint_uses_no_older_file(create: Create) -> None:
    run = Run(random.Random(0), create(ALL_GROUPS, MAX_PARALLELISM))
    run.put([(f"user {n}", 0) for n in range(50)])
    run.complete(run.cut())
    damaged = set(run.files)
    run.put([("a", 1)])

    fresh = run.cut(BUILD_ON_NOTHING)

    assert not damaged & {file.name for handle in fresh.handles for file in handle.files}
    assert run.restored(fresh, create, 1) == fresh.model


def test_a_chain_never_grows_beyond_its_bounds() -> None:
    run = Run(
        random.Random(0),
        HashMapBackend(ALL_GROUPS, MAX_PARALLELISM, is_incremental=True),
    )
    run.put([(f"user {n}", 0) for n in range(1_000)])

    for number in range(40):
        run.put([(f"user {n}", 0) for n in range(number, 1_000, 50)])
        checkpoint = run.cut()
        run.complete(checkpoint)
        [handle] = [h for h in checkpoint.handles if h.kind == "table"]
        assert len(handle.files) <= 9
        assert sum(run.rows_in(file) for file in handle.files) <= 1.5 * 1_000

    assert run.restored(checkpoint, HashMapBackend, 1) == checkpoint.model


@pytest.fixture
def tiny_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes tables of a few hundred rows count as large."""
    monkeypatch.setattr(columns, "SEGMENT_BITS", 2)
    monkeypatch.setattr(columns, "SEGMENT_ROWS", 4)
    monkeypatch.setattr(chains, "SLICE_BITS", 4)
    monkeypatch.setattr(chains, "MERGED_BYTES_MAX", 20)


@pytest.mark.usefixtures("tiny_slices")
@pytest.mark.parametrize("seed", range(3))
def test_no_checkpoint_of_a_large_table_writes_much_more_than_what_changed(seed: int) -> None:
    run = Run(random.Random(seed), HashMapBackend(ALL_GROUPS, MAX_PARALLELISM, is_incremental=True))
    run.put([(f"user {n}", 0) for n in range(300)])
    run.complete(run.cut())
    [base] = run.completed[-1].handles

    for number in range(120):
        changed = run.rng.sample(range(300), run.rng.randrange(1, 8))
        run.put([(f"user {n}", 0) for n in changed])
        run.delete(run.rng.randrange(4))
        known = set(run.files)
        checkpoint = run.cut()
        run.complete(checkpoint)
        written = sum(len_of(run.files[name]) for name in run.files.keys() - known)
        assert written <= 60, "11 changed, 20 merged, 22 swept and the rest of a slice"
        [handle] = checkpoint.handles
        assert sum(run.rows_in(file) for file in handle.files) <= 1.5 * 300 + 60
        if number % 10 == 9:
            assert run.restored(checkpoint, HashMapBackend, 1) == checkpoint.model

    assert not {file.name for file in base.files} & {file.name for file in handle.files}


def test_a_sliced_table_is_complete_after_its_first_files_are_replaced() -> None:
    """Slices and segments have their production sizes, since the rule depends on how they align."""
    run = Run(random.Random(0), HashMapBackend(ALL_GROUPS, MAX_PARALLELISM, is_incremental=True))
    users = [f"user {n}" for n in range(4 << chains.SLICE_BITS)]
    run.put([(user, 0) for user in users])
    run.complete(run.cut())
    [base] = run.completed[-1].handles

    for number in range(1, 6):
        run.put([(user, 0) for user in users[number :: number + 1]])
        run.complete(run.cut())

    [newest] = run.completed[-1].handles
    assert {file.name for file in base.files} - {file.name for file in newest.files}
    assert run.restored(run.completed[-1], HashMapBackend, 1) == run.completed[-1].model


NUMBERS = TableDescriptor(
    name="numbers",
    key=pa.schema([("key", pa.int64())]),
    value=pa.schema([("number", pa.int64()), ("text", pa.string())]),
    defaults={"number": 0, "text": None},
    key_group_by=("key",),
)


@pytest.mark.parametrize("seed", range(3))
def test_checkpoints_of_a_large_table_are_complete_at_production_sizes(seed: int) -> None:
    """Like the first test here, but with tables of several segments, slices and files."""
    rng, keys_max = np.random.default_rng(seed), 200_000
    live, numbers = np.zeros(keys_max, np.bool_), np.zeros(keys_max, np.int64)
    run = Run(random.Random(seed), HashMapBackend(ALL_GROUPS, MAX_PARALLELISM, is_incremental=True))
    table = run.backend.table(NUMBERS)
    for step in range(30):
        keys = np.arange(keys_max)
        if step:  # a third of the rows never changes again, so only the first files hold them
            keys = np.unique(rng.integers(0, keys_max, rng.choice([1_000, 20_000, 60_000])))
            keys = keys[keys % 3 > 0]
        if step % 5 == 4:
            keys = keys[live[keys]]
            table.delete(table.find(pa.record_batch([keys], schema=NUMBERS.key)))
            live[keys] = False
        else:
            rows = table.rows_for(pa.record_batch([keys], schema=NUMBERS.key))
            numbers[keys] = rng.integers(0, 1 << 40, len(keys))
            live[keys] = True
            table.write("number", rows, numbers[keys])
            table.write_arrow("text", rows, pa.array(numbers[keys]).cast(pa.string()))
        run.backend.settle()
        checkpoint = run.cut()
        if rng.random() < 0.8:
            run.complete(checkpoint)

    restored = HashMapBackend(ALL_GROUPS, MAX_PARALLELISM)
    restored.table(NUMBERS)
    [handle] = checkpoint.handles
    restored.restore(handle.state, rows_of(handle, run.read, run.fetch, ALL_GROUPS))
    [frozen] = restored.cut()
    found = pa.Table.from_batches(frozen.batches).sort_by("key")
    assert found["key"].to_pylist() == np.flatnonzero(live).tolist()
    assert found["number"].to_pylist() == numbers[live].tolist()
    assert found["text"].to_pylist() == [str(number) for number in numbers[live].tolist()]


def test_a_tombstone_stays_while_an_older_file_does() -> None:
    """The older file may hold the row that the tombstone cancels."""
    file = FileHandle(name="", length=0, digest="")
    large = 1 << chains.SLICE_BITS
    old = chains.TableFile(file, 1, 2 * large, frozenset({0, 1}), frozenset({0, 1}))
    newer = chains.TableFile(file, 2, large, frozenset({0}), frozenset())
    chain = chains.TableChain((old, newer), cut=2)

    plan = chains.plan_table(chain, lambda cut: large if cut < 2 else 1, 2 * large, slices=2)

    assert (plan.swept, plan.kept) == ({0}, (old, newer))


@pytest.mark.usefixtures("tiny_slices")
def test_no_checkpoint_of_a_growing_list_writes_much_more_than_the_new_rows() -> None:
    run = Run(random.Random(0), HashMapBackend(ALL_GROUPS, MAX_PARALLELISM, is_incremental=True))
    for _ in range(200):
        for _ in range(3):
            run.append(0, "user 1")
        known = set(run.files)
        checkpoint = run.cut()
        run.complete(checkpoint)
        assert sum(len_of(run.files[name]) for name in run.files.keys() - known) <= 23
    [handle] = checkpoint.handles

    assert len(handle.files) <= 600 / (20 / 2)
    assert run.restored(checkpoint, HashMapBackend, 1) == checkpoint.model


def test_a_file_of_popped_rows_is_dropped_and_other_popped_rows_are_cancelled() -> None:
    run = Run(random.Random(0), HashMapBackend(ALL_GROUPS, MAX_PARALLELISM, is_incremental=True))
    for appended in ({1: 100}, {2: 30, 3: 5}, {4: 5}):
        for namespace, count in appended.items():
            for _ in range(count):
                run.append(namespace, "user 1")
        checkpoint = run.cut()
        run.complete(checkpoint)
    _, second, third = checkpoint.handles[0].files

    run.pop(1)
    run.pop(3)
    checkpoint = run.cut()
    run.complete(checkpoint)

    [handle] = checkpoint.handles
    assert handle.files[:-1] == [second, third]
    assert run.rows_in(handle.files[-1]) == 1, "a tombstone"
    assert run.restored(checkpoint, HashMapBackend, 1) == checkpoint.model


def test_hashmap_increments_are_read_without_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(random.Random(0), HashMapBackend(ALL_GROUPS, MAX_PARALLELISM, is_incremental=True))
    run.put([(f"user {n}", 0) for n in range(50)])
    run.append(3, "user 1")
    checkpoint = run.cut()

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))

    assert run.restored(checkpoint, HashMapBackend, 3) == checkpoint.model


def test_a_database_is_taken_over_unchanged_and_later_cuts_build_on_it() -> None:
    with rocksdb_backends(is_incremental=True) as create:
        run = Run(random.Random(0), create(ALL_GROUPS, MAX_PARALLELISM))
        run.put([(f"user {n}", 0) for n in range(500)])
        run.append(3, "user 1")
        first = run.cut()
        run.complete(first)

        run.take_over(create(ALL_GROUPS, MAX_PARALLELISM), first)
        run.check_live_state()
        run.put([("user 1", 0), ("new", 0)])
        run.append(3, "user 2")
        second = run.cut()
        run.complete(second)

        reused = {f.name for h in first.handles for f in h.files if f.is_shared}
        assert reused & {f.name for h in second.handles for f in h.files}
        assert run.restored(second, create, 2) == second.model


def test_no_cut_builds_on_a_database_taken_over_from_another_run() -> None:
    """Its files disappear when its own run, or a person, deletes the point."""
    with rocksdb_backends(is_incremental=True) as create:
        run = Run(random.Random(0), create(ALL_GROUPS, MAX_PARALLELISM))
        run.put([(f"user {n}", 0) for n in range(500)])
        run.append(3, "user 1")
        theirs = run.cut()
        run.complete(theirs)

        run.take_over(create(ALL_GROUPS, MAX_PARALLELISM), theirs, is_own=False)
        run.check_live_state()
        run.put([("new", 0)])
        ours = run.cut()
        run.complete(ours)

        foreign, own = ({f.name for h in cut.handles for f in h.files} for cut in (theirs, ours))
        assert any(file.is_shared for handle in theirs.handles for file in handle.files)
        assert not foreign & own
        run.files = {name: content for name, content in run.files.items() if name not in foreign}
        assert run.restored(ours, create, 2) == ours.model


def test_a_database_of_other_key_groups_or_columns_is_not_taken_over() -> None:
    with rocksdb_backends(is_incremental=True) as create:
        run = Run(random.Random(0), create(ALL_GROUPS, MAX_PARALLELISM))
        run.put([("a", 1)])
        checkpoint = run.cut()
        [handle] = checkpoint.handles
        database = StoredDatabase(handle, run.fetch, is_own=True)
        half = create(range_of(0, 2, MAX_PARALLELISM), MAX_PARALLELISM)
        half.table(TOTALS)
        widened = create(ALL_GROUPS, MAX_PARALLELISM)
        value = pa.schema([*TOTALS.value, ("added", pa.int64())])
        widened.table(
            TableDescriptor("totals", TOTALS.key, value, {**TOTALS.defaults, "added": 0}, ("user",))
        )

        assert not half.adopt(database)
        assert not widened.adopt(database)


@pytest.mark.parametrize(("codec", "is_refused"), [("zstd", True), ("lz4", False)])
def test_a_database_that_would_unpack_too_far_is_refused_but_dense_lz4_is_not(
    monkeypatch: pytest.MonkeyPatch, codec: str, is_refused: bool
) -> None:
    usual = sorted_files._options

    def other_options(cache: Cache) -> Options:
        options = usual(cache)
        options.set_compression_type(getattr(DBCompressionType, codec)())
        return options

    monkeypatch.setattr(sorted_files, "_options", other_options)
    with rocksdb_backends() as create:
        run = Run(random.Random(0), create(ALL_GROUPS, MAX_PARALLELISM))
        row = run.table.rows_for(batch_of(TOTALS.key, [("a", 1)]))
        run.table.write_arrow("note", row, pa.array(["v" * (4 << 20)]))
        native = run.cut_native()
        [handle] = native.handles

        readers: list[Callable[[], object]] = [
            lambda: list(rows_of(handle, run.read, run.fetch, ALL_GROUPS)),
            lambda: run.take_over(create(ALL_GROUPS, MAX_PARALLELISM), native),
        ]
        refusal = pytest.raises(CorruptSnapshot, match="would unpack")
        for read in readers:
            with refusal if is_refused else nullcontext():
                read()


@pytest.mark.parametrize("parallelism", [1, 3])
def test_a_native_cut_is_complete_shares_nothing_and_disturbs_no_increment(
    create: Create, parallelism: int
) -> None:
    run = Run(random.Random(0), create(ALL_GROUPS, MAX_PARALLELISM))
    run.put([(f"user {n}", 0) for n in range(50)])
    run.append(3, "user 1")
    run.complete(run.cut())
    run.put([("user 1", 0)])

    native = run.cut_native()
    run.put([("user 2", 0)])
    later = run.cut()

    own = {file.name for handle in native.handles for file in handle.files}
    assert not any(file.is_shared for handle in native.handles for file in handle.files)
    assert not own & {file.name for handle in later.handles for file in handle.files}
    assert run.restored(later, create, 1) == later.model
    run.files = {name: content for name, content in run.files.items() if name in own}
    for kind in (create, HashMapBackend):
        assert run.restored(native, kind, parallelism) == native.model


def test_a_native_cut_of_a_database_is_its_files_and_no_later_cut_builds_on_it() -> None:
    with rocksdb_backends(is_incremental=True) as create:
        run = Run(random.Random(0), create(ALL_GROUPS, MAX_PARALLELISM))
        run.put([(f"user {n}", 0) for n in range(500)])
        run.append(3, "user 1")
        native = run.cut_native()

        run.take_over(create(ALL_GROUPS, MAX_PARALLELISM), native)
        run.check_live_state()
        run.put([("new", 0)])
        following = run.cut()

        own = {file.name for handle in native.handles for file in handle.files}
        assert any(name.endswith(".sst") for name in own)
        assert not own & {file.name for handle in following.handles for file in handle.files}
        assert run.restored(following, create, 2) == following.model


Model = tuple[dict[tuple[object, ...], tuple[object, ...]], dict[int, list[tuple[object, ...]]]]


@dataclass
class Checkpoint:
    checkpoint_id: CheckpointId
    handles: list[StateHandle]
    model: Model


@dataclass
class Run:
    """A backend, its model, and a store of files that are lost when their checkpoint fails."""

    rng: random.Random
    backend: StateBackend
    files: dict[str, bytes | list[pa.RecordBatch]] = field(default_factory=dict)
    completed: list[Checkpoint] = field(default_factory=list)
    written_bytes: int = 0

    def __post_init__(self) -> None:
        self.table: Table = self.backend.table(TOTALS)
        self.list: BatchList = self.backend.batch_list(EVENTS)
        self.totals: dict[tuple[object, ...], tuple[object, ...]] = {}
        self.events: dict[int, list[tuple[object, ...]]] = {}
        self.pending: list[Checkpoint] = []
        self.number = 0
        self.newest_id = 0

    def step(self) -> None:
        match self.rng.random():
            case p if p < 0.35:
                self.put([(f"user {self.rng.randrange(30)}", self.rng.randrange(3))])
            case p if p < 0.45:
                self.delete()
            case p if p < 0.6:
                self.append(self.rng.randrange(-2, 4), f"user {self.rng.randrange(30)}")
            case p if p < 0.65:
                self.pop(self.rng.randrange(-2, 4))
            case p if p < 0.85:
                self.pending.append(self.cut())
            case p if p < 0.92 and self.pending:
                self.abort(self.pending.pop(self.rng.randrange(len(self.pending))))
            case _ if self.pending:
                at = self.rng.randrange(len(self.pending))
                for older in self.pending[:at]:
                    self.abort(older)
                self.complete(self.pending[at])
                del self.pending[: at + 1]
        self.backend.settle()

    def put(self, keys: list[tuple[object, ...]]) -> None:
        rows = self.table.rows_for(batch_of(TOTALS.key, keys))
        totals = [self.rng.randrange(1 << 40) for _ in keys]
        notes = [self.rng.choice([None, "", "a note", "ä" * 9]) for _ in keys]
        self.table.write("total", rows, np.array(totals))
        self.table.write_arrow("note", rows, pa.array(notes, pa.string()))
        self.totals.update(zip(keys, zip(totals, notes, strict=True), strict=True))

    def delete(self, count: int | None = None) -> None:
        """Deletes `count` keys, or a third of them if None."""
        count = len(self.totals) // 3 if count is None else count
        gone = self.rng.sample(sorted(self.totals, key=str), count)
        if gone:
            self.table.delete(self.table.find(batch_of(TOTALS.key, gone)))
        for key in gone:
            del self.totals[key]

    def append(self, namespace: int, user: str) -> None:
        self.number += 1
        self.list.append(namespace, batch_of(EVENTS.schema, [(user, self.number)]))
        self.events.setdefault(namespace, []).append((user, self.number))

    def pop(self, namespace: int) -> None:
        popped = [row for batch in self.list.pop(namespace) for row in tuples(batch)]
        assert popped == self.events.pop(namespace, [])

    def cut(self, confirmed_id: CheckpointId | None = None) -> Checkpoint:
        self.newest_id += 1
        checkpoint_id = CheckpointId(self.newest_id)
        if confirmed_id is None:
            confirmed_id = self.completed[-1].checkpoint_id if self.completed else NO_CHECKPOINT
        states = self.backend.cut_increment(checkpoint_id, confirmed_id)
        assert all(state.increment is not None for state in states)
        return self._written(checkpoint_id, states)

    def cut_native(self) -> Checkpoint:
        self.newest_id += 1
        return self._written(CheckpointId(self.newest_id), self.backend.cut_native())

    def _written(self, checkpoint_id: CheckpointId, states: list[FrozenState]) -> Checkpoint:
        handles = []
        for state in states:
            if state.rows == 0:
                continue
            stored = self._stored(state, Files(self, f"{checkpoint_id}-{state.name}"))
            handles.append(
                StateHandle(
                    state=state.name,
                    kind=state.kind,
                    file=stored.file,
                    key_groups=(0, MAX_PARALLELISM - 1),
                    rows=state.rows,
                    schema={},
                    format=stored.format,
                    parts=list(stored.parts),
                )
            )
        events = {namespace: list(rows) for namespace, rows in self.events.items()}
        return Checkpoint(checkpoint_id, handles, (dict(self.totals), events))

    def _stored(self, state: FrozenState, files: "Files") -> StoredIncrement:
        if state.increment is not None:
            return state.increment.write(files)
        return StoredIncrement(StateFormat.ROWS, files.own_rows("whole", list(state.batches)), ())

    def complete(self, checkpoint: Checkpoint) -> None:
        """The notice may be lost; the next barrier then confirms the checkpoint."""
        self.completed.append(checkpoint)
        if self.rng.random() < 0.5:
            self.backend.on_checkpoint_completed(checkpoint.checkpoint_id)

    def abort(self, checkpoint: Checkpoint) -> None:
        """Deletes the checkpoint's own files; those that it only refers to stay."""
        if self.rng.random() < 0.5:
            self.backend.on_checkpoint_aborted(checkpoint.checkpoint_id)
        own = f"{checkpoint.checkpoint_id}-"
        self.files = {
            n: c for n, c in self.files.items() if not n.partition("/")[2].startswith(own)
        }

    def take_over(
        self, backend: StateBackend, checkpoint: Checkpoint, *, is_own: bool = True
    ) -> None:
        self.backend = backend
        self.table, self.list = backend.table(TOTALS), backend.batch_list(EVENTS)
        for handle in checkpoint.handles:
            assert handle.format is StateFormat.ROCKSDB
            assert backend.adopt(StoredDatabase(handle, self.fetch, is_own=is_own))

    def restored(self, checkpoint: Checkpoint, create: Create, parallelism: int) -> Model:
        totals: dict[tuple[object, ...], tuple[object, ...]] = {}
        events: dict[int, list[tuple[object, ...]]] = {}
        for index in range(parallelism):
            groups = range_of(index, parallelism, MAX_PARALLELISM)
            backend = create(groups, MAX_PARALLELISM)
            table, batches = backend.table(TOTALS), backend.batch_list(EVENTS)
            for handle in checkpoint.handles:
                backend.restore(handle.state, rows_of(handle, self.read, self.fetch, groups))
            for frozen in backend.cut():
                if frozen.kind == "table":
                    rows = [row for batch in frozen.batches for row in tuples(batch)]
                    totals |= {row[:2]: row[2:4] for row in rows}
                    assert len(table) == len(rows)
            for namespace in batches.namespaces_at_most(1 << 40):
                rows = [row for batch in batches.pop(namespace) for row in tuples(batch)]
                events[namespace] = sorted(events.get(namespace, []) + rows, key=lambda r: r[1])
            backend.close()
        return totals, events

    def check_live_state(self) -> None:
        keys = list(self.totals)
        rows = self.table.find(batch_of(TOTALS.key, keys))
        assert self.table.read("total", rows).tolist() == [v[0] for v in self.totals.values()]
        assert (len(self.table), len(self.list)) == (
            len(self.totals),
            sum(map(len, self.events.values())),
        )

    def read(self, file: FileHandle) -> Iterable[pa.RecordBatch]:
        content = self.files[file.name]
        assert isinstance(content, list)
        return content

    def fetch(self, file: FileHandle, target: Path, *, may_share: bool = False) -> None:
        content = self.files[file.name]
        assert isinstance(content, bytes)
        target.write_bytes(content)

    def rows_in(self, file: FileHandle) -> int:
        return len_of(self.files[file.name])


def len_of(content: bytes | list[pa.RecordBatch]) -> int:
    assert isinstance(content, list)
    return sum(batch.num_rows for batch in content)


@dataclass
class Files:
    """Implements `IncrementFiles`. The length of a file of rows is their number."""

    run: Run
    stem: str

    def write_rows(
        self, label: str, schema: pa.Schema, batches: Iterable[pa.RecordBatch]
    ) -> FileHandle:
        rows = list(batches)
        assert all(batch.schema == schema for batch in rows)
        return self._keep(f"shared/{self.stem}-{label}", rows, sum(b.nbytes for b in rows))

    def own_rows(self, label: str, rows: list[pa.RecordBatch]) -> FileHandle:
        return self._keep(f"own/{self.stem}-{label}", rows, 0)

    def copy(self, label: str, path: Path, *, is_shared: bool) -> FileHandle:
        place = "shared" if is_shared else "own"
        content = path.read_bytes()
        return self._keep(f"{place}/{self.stem}-{label}", content, len(content) * is_shared)

    def _keep(
        self, name: str, content: bytes | list[pa.RecordBatch], counted_bytes: int
    ) -> FileHandle:
        assert name not in self.run.files
        self.run.files[name] = content
        self.run.written_bytes += counted_bytes
        length = len(content) if isinstance(content, bytes) else len_of(content)
        handle = FileHandle(name=name, length=length, digest="")
        return msgspec.structs.replace(handle, is_shared=name.startswith("shared"))
