"""Small points for the tests of stores."""

import pyarrow as pa

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

SCHEMA = pa.schema([("key", pa.int64())])


def rows() -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([1, 2, 3], pa.int64())], schema=SCHEMA)


def manifest_of(files: list[FileHandle], attempt: int = 1) -> Manifest:
    states = [
        StateHandle(state=f"s{n}", kind="table", file=file, key_groups=(0, 127), rows=3, schema={})
        for n, file in enumerate(files)
    ]
    operator = OperatorSnapshot(uid=Uid("count"), states=states)
    return Manifest(
        format_version=FORMAT_VERSION,
        pipeline="flights",
        run_id=RunId("run-1"),
        attempt=Attempt(attempt),
        checkpoint_id=CheckpointId(1),
        kind=CheckpointKind.CHECKPOINT,
        trigger_ms=1,
        completed_ms=2,
        parallelism=1,
        max_parallelism=128,
        ancestors=[],
        operator_ids={},
        subtasks=[SubtaskSnapshot(vertex=Uid("count"), subtask=0, operators=[operator])],
    )
