"""Checkpoints for tests: manifests as a run writes them, and their state files."""

from pathlib import Path

from pipelines.domain.ids import Attempt, CheckpointId, RunId, Uid
from pipelines.domain.key_groups import range_of
from pipelines.domain.run import RunDirectory, RunSpec, SnapshotPlaces
from pipelines.domain.settings.parsing import parse_settings
from pipelines.domain.snapshots import (
    FORMAT_VERSION,
    Manifest,
    OperatorSnapshot,
    StateHandle,
    SubtaskSnapshot,
)
from pipelines.domain.status import CheckpointKind
from pipelines.state.in_memory.hashmap import HashMapBackend
from pipelines.storage.filesystem import FileSystemCheckpointStore
from tests.unit.runtime.fakes import batch_of
from tests.unit.runtime.hosted import MAX_PARALLELISM, SEEN

RUN = RunId("run-1")
PIPELINE = "joining"


def spec_of(**changes: object) -> RunSpec:
    values: dict[str, object] = {
        "run_id": RUN,
        "pipeline": PIPELINE,
        "parallelism": 1,
        "master": "local[1]",
        "parameters": {},
        "settings": {},
        "max_parallelism": MAX_PARALLELISM,
    }
    return RunSpec(**{**values, **changes})  # type: ignore[arg-type]


def places_in(root: Path) -> SnapshotPlaces:
    return SnapshotPlaces.of(RunDirectory.of(root, PIPELINE, RUN), parse_settings({}).storage)


def store_in(root: Path) -> FileSystemCheckpointStore:
    return FileSystemCheckpointStore([str(root)])


def manifest_of(operators: list[list[OperatorSnapshot]], **changes: object) -> Manifest:
    """`operators` has the operators of each subtask; all subtasks belong to one vertex."""
    values: dict[str, object] = {
        "format_version": FORMAT_VERSION,
        "pipeline": PIPELINE,
        "run_id": RUN,
        "attempt": Attempt(1),
        "checkpoint_id": CheckpointId(1),
        "kind": CheckpointKind.CHECKPOINT,
        "trigger_ms": 0,
        "completed_ms": 1,
        "parallelism": len(operators),
        "max_parallelism": MAX_PARALLELISM,
        "ancestors": [],
        "operator_ids": {},
        "subtasks": [
            SubtaskSnapshot(vertex=Uid("both"), subtask=index, operators=of_one)
            for index, of_one in enumerate(operators)
        ],
    }
    return Manifest(**{**values, **changes})  # type: ignore[arg-type]


def operator_of(**values: object) -> OperatorSnapshot:
    return OperatorSnapshot(**{"uid": Uid("both"), **values})  # type: ignore[arg-type]


def stored_keys(
    store: FileSystemCheckpointStore,
    location: str,
    subtask: int,
    parallelism: int,
    keys: list[int],
) -> list[StateHandle]:
    """Writes the state file of a subtask that gets all `keys` and keeps those it owns."""
    groups = range_of(subtask, parallelism, MAX_PARALLELISM)
    whole = HashMapBackend(range_of(0, 1, MAX_PARALLELISM), MAX_PARALLELISM)
    whole.batch_list(SEEN).append(0, batch_of([(key, key) for key in keys]))
    own = HashMapBackend(groups, MAX_PARALLELISM)
    own.batch_list(SEEN)
    for state in whole.cut():
        own.restore(state.name, list(state.batches))
    handles = []
    for state in own.cut():
        stem = f"both-{subtask}-{state.name}-a1"
        file = store.write_batches(location, stem, state.schema, state.batches, open_format=False)
        schema = {column.name: str(column.type) for column in state.schema}
        bounds = (groups.first, groups.last)
        handles.append(
            StateHandle(
                state=state.name,
                kind=state.kind,
                file=file,
                key_groups=bounds,
                rows=state.rows,
                schema=schema,
            )
        )
    return handles
