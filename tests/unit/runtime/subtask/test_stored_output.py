"""Output that waits for its checkpoint: segments are files of the snapshot, dealt out whole."""

from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pytest

from pipelines.connectors.contract import Segment
from pipelines.domain.errors import CorruptSnapshot
from pipelines.domain.graph import Vertex
from pipelines.domain.ids import Attempt, CheckpointId, Uid
from pipelines.domain.key_groups import range_of
from pipelines.domain.snapshots import SegmentHandle, SubtaskSnapshot
from pipelines.protocol.commit import Prepared
from pipelines.runtime.subtask.chains.chain_node import ChainPlace, OperatorCut
from pipelines.runtime.subtask.snapshots.restoring import RestoredOperator, RestorePoint
from pipelines.runtime.subtask.snapshots.snapshotting import SnapshotWriter, SubtaskCut
from pipelines.storage.filesystem import FileSystemCheckpointStore
from pipelines.storage.manifests import files_of
from tests.unit.runtime.hosted import MAX_PARALLELISM
from tests.unit.runtime.points import RUN, manifest_of, operator_of, store_in

SINK = Uid("both")

Dealt = tuple[int, object, list[int]]
"""The checkpoint, marker and records of a segment."""


@pytest.mark.parametrize(("old", "new"), [(1, 1), (1, 3), (2, 3), (3, 2), (4, 1)])
def test_every_segment_goes_whole_to_one_subtask_at_any_parallelism(
    old: int, new: int, tmp_path: Path
) -> None:
    point, _ = point_with(tmp_path, [[(1, 7), (2, 5)] for _ in range(old)])

    shares = [share_of(point, subtask, new) for subtask in range(new)]

    dealt = [segment_of(prepared) for share in shares for prepared in share.prepared]
    assert by_marker(dealt) == by_marker(
        (checkpoint_id, {"of": subtask, "before": checkpoint_id}, rows)
        for subtask in range(old)
        for checkpoint_id, rows in [(1, list(range(7))), (2, list(range(5)))]
    )


def test_segments_of_several_old_subtasks_come_oldest_first(tmp_path: Path) -> None:
    point, _ = point_with(tmp_path, [[(1, 7), (2, 5)], [(1, 7), (2, 5)]])

    assert [each.checkpoint_id for each in share_of(point, 0, 1).prepared] == [1, 1, 2, 2]


def test_a_snapshot_keeps_both_segments_and_other_committables(tmp_path: Path) -> None:
    store, location = store_in(tmp_path), str(tmp_path / "chk-1")
    prepared = (
        Prepared(CheckpointId(2), (segment(0, 2, 3), "file")),
        Prepared(CheckpointId(3), (segment(0, 3, 3),)),
    )
    snapshot = written(store, location, 0, prepared)
    point = RestorePoint(store, location, manifest_of([snapshot.operators]))

    restored = share_of(point, 0, 1).prepared

    assert [each.checkpoint_id for each in restored] == [2, 2, 3]
    assert ["file" in each.committables for each in restored] == [True, False, False]


def test_a_segment_is_a_file_of_the_point_and_may_be_read_again(tmp_path: Path) -> None:
    point, handles = point_with(tmp_path, [[(1, 7)]])
    (prepared,) = share_of(point, 0, 1).prepared

    assert segment_of(prepared) == segment_of(prepared)
    manifest = manifest_of([[operator_of(segments=handles)]])
    assert [file.name for file in files_of(manifest)] == [handles[0].file.name]


def test_a_segment_with_other_rows_than_the_manifest_says_is_refused(tmp_path: Path) -> None:
    store, location = store_in(tmp_path), str(tmp_path / "chk-1")
    (operator,) = written(store, location, 0, prepared_for(0, [(1, 7)])).operators
    (handle,) = operator.segments
    short = SegmentHandle(checkpoint_id=CheckpointId(1), marker={}, file=handle.file, rows=8)
    point = RestorePoint(store, location, manifest_of([[operator_of(segments=[short])]]))

    with pytest.raises(CorruptSnapshot, match="holds 7 records of a sink's output"):
        segment_of(share_of(point, 0, 1).prepared[0])


def test_a_damaged_segment_cannot_be_read(tmp_path: Path) -> None:
    point, (handle,) = point_with(tmp_path, [[(1, 7)]])
    file = tmp_path / "chk-1" / handle.file.name
    file.write_bytes(file.read_bytes()[:-1] + b"x")

    with pytest.raises(CorruptSnapshot, match=handle.file.name):
        segment_of(share_of(point, 0, 1).prepared[0])


def by_marker(
    dealt: Iterable[Dealt],
) -> list[Dealt]:
    return sorted(dealt, key=lambda each: (each[0], str(each[1])))


def point_with(
    root: Path, segments: list[list[tuple[int, int]]]
) -> tuple[RestorePoint, list[SegmentHandle]]:
    """`segments` has (checkpoint, rows) pairs for each subtask."""
    store, location = store_in(root), str(root / "chk-1")
    snapshots = [
        written(store, location, subtask, prepared_for(subtask, mine))
        for subtask, mine in enumerate(segments)
    ]
    handles = [handle for s in snapshots for o in s.operators for handle in o.segments]
    manifest = manifest_of([snapshot.operators for snapshot in snapshots])
    return RestorePoint(store, location, manifest), handles


def prepared_for(subtask: int, segments: list[tuple[int, int]]) -> tuple[Prepared, ...]:
    return tuple(
        Prepared(CheckpointId(before), (segment(subtask, before, rows),))
        for before, rows in segments
    )


def segment(subtask: int, before: int, rows: int) -> Segment:
    """Returns a segment in two batches."""
    numbers = pa.record_batch({"x": pa.array(range(rows), pa.int64())})
    batches = [numbers.slice(0, 2), numbers.slice(2)]
    return Segment({"of": subtask, "before": before}, rows, batches)


def written(
    store: FileSystemCheckpointStore,
    location: str,
    subtask: int,
    prepared: tuple[Prepared, ...],
) -> SubtaskSnapshot:
    place = ChainPlace(RUN, Attempt(1), Vertex(SINK, (SINK,), ()), subtask, 4, MAX_PARALLELISM)
    cut = SubtaskCut(
        place=place,
        operators=[OperatorCut(SINK, [], {}, prepared)],
        positions=None,
        watermark_ms=None,
        key_times_ms=[],
    )
    found = SnapshotWriter(store).write(cut, CheckpointId(3), location, open_format=False)
    assert found.uploaded_bytes > 0
    return found.snapshot


def share_of(point: RestorePoint, subtask: int, parallelism: int) -> RestoredOperator:
    groups = range_of(subtask, parallelism, MAX_PARALLELISM)
    return point.share_of(SINK, subtask, parallelism, groups)


def segment_of(prepared: Prepared) -> Dealt:
    (item,) = prepared.committables
    assert isinstance(item, Segment)
    rows = [x for batch in item.batches for x in batch["x"].to_pylist()]
    return prepared.checkpoint_id, item.marker, rows
