"""No two states, segments or in-flight records share a file name, and so a file."""

import random
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from pipelines.connectors.contract import Segment
from pipelines.domain.errors import InvariantViolated
from pipelines.domain.graph import Vertex
from pipelines.domain.ids import Attempt, CheckpointId, RunId, Uid, channel_id
from pipelines.domain.snapshots import SubtaskSnapshot
from pipelines.protocol.commit import Prepared
from pipelines.runtime.subtask.chains.chain_node import ChainPlace, OperatorCut
from pipelines.runtime.subtask.snapshots.in_flight import InFlightRecords
from pipelines.runtime.subtask.snapshots.snapshotting import SnapshotWriter, SubtaskCut
from pipelines.state.backend import FrozenState
from pipelines.storage.manifests import files_of_subtask
from pipelines.storage.state_file import file_stem
from pipelines.storage.store import CheckpointStore
from tests.unit.runtime.points import store_in

WORDS = ("0", "1", "10", "a1", "segment", "flight", "in")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("count", "0-total"), ("count-0", "total")),
        (("count-0", "total"), ("count", "0-total")),
        (("count-0-segment", "0"), ("count", "segment-0")),
    ],
)
def test_states_get_separate_files_even_if_hyphenated_names_would_collide(
    tmp_path: Path, one: tuple[str, str], other: tuple[str, str]
) -> None:
    store, location = store_in(tmp_path), str(tmp_path / "chk-1")
    cuts = [cut_of(uid, 0, {state: rows}) for rows, (uid, state) in enumerate((one, other), 1)]

    written = [snapshot(store, location, cut) for cut in cuts]

    assert [rows_in(store, location, each) for each in written] == [1, 2]


@pytest.mark.parametrize("seed", range(20))
def test_no_two_parts_of_a_checkpoint_share_a_name(tmp_path: Path, seed: int) -> None:
    """The parts are all readings of one row of words as operator, subtask and state."""
    rng = random.Random(seed)
    store, location = store_in(tmp_path), str(tmp_path / "chk-1")
    words = ["count", *(rng.choice(WORDS) for _ in range(6)), "0", "1", "total"]

    names: list[str] = []
    for uid, subtask, state in readings(words):
        cut = cut_of(uid, subtask, {state: 1}, segments=2)
        kept = [in_flight(uid, state, subtask), in_flight(state, uid, subtask)]
        written = snapshot(store, location, cut, in_flight=kept)
        names += [file.name for file in files_of_subtask(written)]

    assert len(names) == len(set(names)) > 0, seed
    assert sorted(names) == sorted(store.names(location))


def test_joined_file_names_are_unambiguous() -> None:
    assert file_stem("count-0", 1, "total") != file_stem("count", "0-1", "total")
    with pytest.raises(InvariantViolated, match="no part holds the separator"):
        file_stem("count~0", 1)


def readings(words: list[str]) -> Iterator[tuple[str, int, str]]:
    for index, word in enumerate(words[1:-1], start=1):
        if word.isdigit():
            yield "-".join(words[:index]), int(word), "-".join(words[index + 1 :])


def cut_of(uid: str, subtask: int, states: dict[str, int], *, segments: int = 0) -> SubtaskCut:
    frozen = [
        FrozenState(name, "table", SCHEMA, rows, iter([batch(rows)]))
        for name, rows in states.items()
    ]
    held = tuple(Segment({"n": n}, 1, [batch(1)]) for n in range(segments))
    prepared = (Prepared(CheckpointId(1), held),) if held else ()
    vertex = Vertex(Uid(uid), (Uid(uid),), ())
    place = ChainPlace(RunId("run-1"), Attempt(1), vertex, subtask, 11, 128)
    return SubtaskCut(
        place=place,
        operators=[OperatorCut(Uid(uid), frozen, {}, prepared)],
        positions=None,
        watermark_ms=None,
        key_times_ms=[],
    )


def in_flight(upstream: str, downstream: str, subtask: int) -> InFlightRecords:
    channel = channel_id(Uid(upstream), subtask, Uid(downstream), 0, subtask)
    return InFlightRecords(channel, False, [batch(1)])


def snapshot(
    store: CheckpointStore,
    location: str,
    cut: SubtaskCut,
    in_flight: list[InFlightRecords] | None = None,
) -> SubtaskSnapshot:
    writer = SnapshotWriter(store)
    written = writer.write(
        cut, CheckpointId(1), location, open_format=False, in_flight=in_flight or []
    )
    return written.snapshot


def rows_in(store: CheckpointStore, location: str, written: SubtaskSnapshot) -> int:
    [state] = written.operators[0].states
    batches = store.read_batches(location, state.file)
    return sum(batch.num_rows for batch in batches)


def batch(rows: int) -> pa.RecordBatch:
    return pa.record_batch({"key": pa.array(range(rows), pa.int64())})


SCHEMA = batch(0).schema
