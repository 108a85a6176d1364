"""A restore divides a checkpoint among the subtasks, at the same or another parallelism."""

from dataclasses import dataclass
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

from pipelines.connectors.split_progress import initial
from pipelines.domain.errors import CorruptSnapshot
from pipelines.domain.ids import CheckpointId, Uid
from pipelines.domain.key_groups import Redistribution, range_of
from pipelines.domain.snapshots import Manifest, OperatorSnapshot, StateHandle
from pipelines.points.stored_output import StoredCommittables
from pipelines.runtime.subtask.snapshots.restoring import RestoredOperator, RestorePoint
from pipelines.state.backend import FrozenState
from pipelines.state.evolution import type_names
from pipelines.state.in_memory.hashmap import HashMapBackend
from pipelines.state.operator_states import BroadcastState, OperatorListState, OperatorStates
from pipelines.storage.filesystem import FileSystemCheckpointStore
from pipelines.stream import ListStateDescriptor, MapStateDescriptor
from tests.unit.runtime.fakes import keys_of
from tests.unit.runtime.hosted import MAX_PARALLELISM, SEEN
from tests.unit.runtime.points import manifest_of, operator_of, store_in, stored_keys

KEYS = list(range(500))
BOTH = Uid("both")

at_any_parallelism = pytest.mark.parametrize(
    ("old", "new"), [(1, 1), (1, 3), (2, 3), (3, 2), (4, 1), (3, 7)]
)


@at_any_parallelism
def test_every_key_goes_only_to_the_owner_of_its_key_group(
    old: int, new: int, tmp_path: Path
) -> None:
    location = str(tmp_path / "chk-1")
    store = store_in(tmp_path)
    handles = [stored_keys(store, location, i, old, KEYS) for i in range(old)]
    manifest = manifest_of([[operator_of(states=states)] for states in handles])
    point = RestorePoint(store, location, manifest)

    held = [keys_held(point, subtask, new) for subtask in range(new)]
    expected = [keys_kept(tmp_path / f"{new}", subtask, new) for subtask in range(new)]

    assert held == expected
    assert sorted(key for keys in held for key in keys) == KEYS


@pytest.mark.parametrize("of_run", [None, 1, 8])
@at_any_parallelism
def test_operator_state_is_split_unioned_or_broadcast_as_declared(
    old: int, new: int, of_run: int | None, tmp_path: Path
) -> None:
    """`of_run` is the parallelism of the run that cut the point, if the operator had its own."""
    location = str(tmp_path / "chk-1")
    store = store_in(tmp_path)
    operators = [
        [operator_of(states=stored_operator_states(store, location, subtask))]
        for subtask in range(old)
    ]
    point = RestorePoint(store, location, manifest_at(of_run, operators))

    restored = [operator_states() for _ in range(new)]
    for subtask, states in enumerate(restored):
        share = share_of(point, subtask, new)
        assert not share.states
        for name, batches in share.operator_states:
            states.all.restore(name, batches)

    everything = [100 * subtask + n for subtask in range(old) for n in range(subtask * 3)]
    split = [states.split.get().to_pylist() for states in restored]
    assert sorted(n for own in split for n in own) == everything
    assert max(map(len, split)) - min(map(len, split)) <= 1 or old == new
    assert [states.union.get().to_pylist() for states in restored] == [everything] * new
    assert [dict(states.rules.items()) for states in restored] == [{"a": 1, "b": 2}] * new


def test_dropped_operator_state_is_not_read(tmp_path: Path) -> None:
    location = str(tmp_path / "chk-1")
    store = store_in(tmp_path)
    operators = [[operator_of(states=stored_operator_states(store, location, 1))]]
    dropped = [(BOTH, "operator.split")]

    point = RestorePoint(store, location, manifest_of(operators), dropped)

    names = [name for name, _ in share_of(point, 0, 1).operator_states]
    assert names == ["operator.union", "operator.rules"]


def test_a_subtask_reads_only_files_that_hold_some_of_its_key_groups(tmp_path: Path) -> None:
    location = str(tmp_path / "chk-1")
    store = store_in(tmp_path)
    handles = [stored_keys(store, location, i, 4, KEYS) for i in range(4)]
    point = RestorePoint(
        store, location, manifest_of([[operator_of(states=states)] for states in handles])
    )

    shares = [share_of(point, subtask, 2) for subtask in range(2)]

    assert [len(share.states) for share in shares] == [2, 2]


@at_any_parallelism
def test_every_committable_goes_to_exactly_one_subtask(old: int, new: int, tmp_path: Path) -> None:
    operators = [[operator_of(committables=[committable(1, [f"file-{i}"])])] for i in range(old)]
    point = RestorePoint(store_in(tmp_path), str(tmp_path), manifest_of(operators))

    dealt = [
        [item for prepared in share_of(point, i, new).prepared for item in prepared.committables]
        for i in range(new)
    ]

    assert dealt == [[f"file-{j}" for j in range(old) if j % new == i] for i in range(new)]


def test_committables_come_oldest_first_under_their_own_checkpoint(tmp_path: Path) -> None:
    operators = [
        [operator_of(committables=[committable(7, ["a"]), committable(9, ["b", "c"])])],
        [operator_of(committables=[committable(8, ["d"])])],
    ]
    point = RestorePoint(store_in(tmp_path), str(tmp_path), manifest_of(operators))

    prepared = share_of(point, 0, 1).prepared

    assert [(p.checkpoint_id, p.committables) for p in prepared] == [
        (7, ("a",)),
        (8, ("d",)),
        (9, ("b", "c")),
    ]


@at_any_parallelism
def test_restored_counters_add_up_to_the_old_totals(old: int, new: int, tmp_path: Path) -> None:
    operators = [[operator_of(counters={"read": 10**i, f"only_{i}": 1})] for i in range(old)]
    point = RestorePoint(store_in(tmp_path), str(tmp_path), manifest_of(operators))

    shares = [dict(share_of(point, i, new).counters) for i in range(new)]

    assert [share.get("read", 0) for share in shares] == [
        sum(10**j for j in range(old) if j % new == i) for i in range(new)
    ]
    assert sum(share.get("only_0", 0) for share in shares) == 1


def test_a_source_is_handed_the_positions_of_all_old_subtasks(tmp_path: Path) -> None:
    positions = [initial(i, 3).to_json() for i in range(3)]
    operators = [[operator_of(positions=position)] for position in positions]
    point = RestorePoint(store_in(tmp_path), str(tmp_path), manifest_of(operators))

    assert list(share_of(point, 1, 2).positions) == positions


@pytest.mark.parametrize(
    ("watermarks", "restored"), [([30, 10, 20], 10), ([30, None], None), ([None], None), ([0], 0)]
)
def test_event_time_resumes_at_the_minimum_and_is_unknown_if_any_is_unknown(
    watermarks: list[int | None], restored: int | None, tmp_path: Path
) -> None:
    operators = [[operator_of(watermark_ms=watermark)] for watermark in watermarks]
    point = RestorePoint(store_in(tmp_path), str(tmp_path), manifest_of(operators))

    assert [share_of(point, i, 2).watermark_ms for i in range(2)] == [restored, restored]


@pytest.mark.parametrize("of_run", [None, 5])
def test_every_subtask_learns_the_event_time_of_each_key_group(
    of_run: int | None, tmp_path: Path
) -> None:
    further = [(0, 31, 40), (32, 63, 30)]  # from a cut taken soon after a restore
    operators = [
        [operator_of(watermark_ms=30, key_times_ms=further)],
        [operator_of(watermark_ms=10)],
    ]
    point = RestorePoint(store_in(tmp_path), str(tmp_path), manifest_at(of_run, operators))

    assert list(share_of(point, 2, 3).key_times_ms) == [*further, (64, 127, 10)]


def test_an_operator_that_the_point_does_not_know_starts_with_nothing(tmp_path: Path) -> None:
    other = OperatorSnapshot(uid=Uid("other"), counters={"read": 1}, watermark_ms=5)
    point = RestorePoint(store_in(tmp_path), str(tmp_path), manifest_of([[other]]))

    assert share_of(point, 0, 1) == RestoredOperator()


@pytest.mark.parametrize("said", [-1, 1])
def test_a_file_of_more_or_fewer_rows_than_the_manifest_says_is_damaged(
    said: int, tmp_path: Path
) -> None:
    [state] = stored_keys(store_in(tmp_path), str(tmp_path), 0, 1, KEYS)
    forged = msgspec.structs.replace(state, rows=state.rows + said)
    point = RestorePoint(
        store_in(tmp_path), str(tmp_path), manifest_of([[operator_of(states=[forged])]])
    )

    with pytest.raises(CorruptSnapshot, match=state.file.name):
        keys_held(point, 0, 1)


def test_a_dropped_state_is_restored_to_no_subtask(tmp_path: Path) -> None:
    states = stored_keys(store_in(tmp_path), str(tmp_path), 0, 1, KEYS)
    manifest = manifest_of([[operator_of(states=states)]])
    dropped = [(BOTH, states[0].state)]

    whole = RestorePoint(store_in(tmp_path), str(tmp_path), manifest)
    without = RestorePoint(store_in(tmp_path), str(tmp_path), manifest, dropped)

    assert len(share_of(whole, 0, 1).states) == 1
    assert share_of(without, 0, 1).states == ()


def test_at_most_once_drops_state_and_starts_sources_after_their_reservation(
    tmp_path: Path,
) -> None:
    store, location = store_in(tmp_path), str(tmp_path / "chk-1")
    whole = operator_of(
        states=stored_keys(store, location, 0, 1, KEYS),
        committables=[committable(1, ["file"])],
        positions={"at": 1},
    )
    manifest = manifest_of([[msgspec.structs.replace(whole, reserved={"at": 5})]])

    share = share_of(RestorePoint(store, location, manifest, forgets_state=True), 0, 1)

    assert share.states == ()
    assert share.positions == ({"at": 5},)
    assert [prepared.committables for prepared in share.prepared] == [("file",)]


def share_of(point: RestorePoint, subtask: int, parallelism: int) -> RestoredOperator:
    groups = range_of(subtask, parallelism, MAX_PARALLELISM)
    return point.share_of(BOTH, subtask, parallelism, groups)


def keys_held(point: RestorePoint, subtask: int, parallelism: int) -> list[int]:
    """Returns the sorted keys of a backend that was restored from its share."""
    groups = range_of(subtask, parallelism, MAX_PARALLELISM)
    backend = HashMapBackend(groups, MAX_PARALLELISM)
    backend.batch_list(SEEN)
    for stored in share_of(point, subtask, parallelism).states:
        backend.restore(stored.name, stored.rows)
    return sorted(k for state in backend.cut() for batch in state.batches for k in keys_of(batch))


def keys_kept(root: Path, subtask: int, parallelism: int) -> list[int]:
    """Returns the sorted keys of a subtask that ran from the start."""
    store, location = store_in(root), str(root / f"chk-{subtask + 1}")
    handles = stored_keys(store, location, subtask, parallelism, KEYS)
    files = [store.read_batches(location, handle.file) for handle in handles]
    return sorted(key for batches in files for batch in batches for key in keys_of(batch))


def committable(checkpoint_id: int, items: list[object]) -> object:
    stored = StoredCommittables(checkpoint_id=CheckpointId(checkpoint_id), items=items)
    return msgspec.to_builtins(stored)


@dataclass
class Declared:
    all: OperatorStates
    split: OperatorListState
    union: OperatorListState
    rules: BroadcastState


def operator_states() -> Declared:
    states = OperatorStates()
    return Declared(
        states,
        states.list_of(ListStateDescriptor("split", pa.int64()), Redistribution.SPLIT),
        states.list_of(ListStateDescriptor("union", pa.int64()), Redistribution.UNION),
        states.broadcast(MapStateDescriptor("rules", pa.string(), pa.int64())),
    )


def stored_operator_states(
    store: FileSystemCheckpointStore, location: str, subtask: int
) -> list[StateHandle]:
    """Stores lists of 3 n elements, in several batches, for subtask n; all have the same map."""
    states = operator_states()
    for number in range(subtask * 3):
        for state in (states.split, states.union):
            state.add(pa.array([100 * subtask + number]))
    states.all.allow_broadcast_writes(True)
    states.rules.put_all(pa.array(["a", "b"]), pa.array([1, 2]))
    return [stored(store, location, subtask, state) for state in states.all.cut() if state.rows]


def stored(
    store: FileSystemCheckpointStore, location: str, subtask: int, state: FrozenState
) -> StateHandle:
    stem = f"both-{subtask}-{state.name}-a1"
    file = store.write_batches(location, stem, state.schema, state.batches, open_format=False)
    return StateHandle(
        state=state.name,
        kind=state.kind,
        file=file,
        key_groups=(0, 0),
        rows=state.rows,
        schema=type_names(state.schema),
    )


def manifest_at(of_run: int | None, operators: list[list[OperatorSnapshot]]) -> Manifest:
    """`of_run` None means that the operator had the parallelism of the run."""
    if of_run is None:
        return manifest_of(operators)
    return manifest_of(operators, parallelism=of_run, parallelisms={BOTH: len(operators)})
