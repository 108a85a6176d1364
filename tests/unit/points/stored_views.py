"""A savepoint of the flow `page_view_count` on disk, and the input that it has read."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from pipelines.connectors.contract import Source
from pipelines.connectors.positions import SplitMemory
from pipelines.connectors.split_progress import SplitPositions, initial
from pipelines.domain.ids import CheckpointId, RunId, Uid, operator_id
from pipelines.domain.key_groups import range_of
from pipelines.domain.snapshots import OperatorSnapshot, StateHandle, SubtaskSnapshot
from pipelines.domain.status import CheckpointKind, SavepointFormat
from pipelines.flows.finding import find_flow
from pipelines.operators.operator import OperatorContext
from pipelines.state.backend import FrozenState
from pipelines.state.in_memory.hashmap import HashMapBackend
from pipelines.storage.filesystem import FileSystemCheckpointStore
from pipelines.storage.store import CheckpointStore
from pipelines.stream import Pipeline
from tests.unit.runtime.points import manifest_of

FLOW = "page_view_count"
EVENTS, VIEWS = Uid("events"), Uid("views")
MAX_PARALLELISM = 128
RECORDS_READ = 2


def write_events(directory: Path, files: int = 3) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    for number in range(files):
        (directory / f"{number}.csv").write_text("".join(f"{i},{number},1\n" for i in range(5)))
    return directory


def savepoint_of_views(root: Path, data: Path, **changes: Any) -> Path:
    """Publishes a savepoint in `root`; see `publish_views`."""
    location = root / "savepoint-run-1-7"
    publish_views(FileSystemCheckpointStore([str(root)]), str(location), data, **changes)
    return location


def publish_views(
    store: CheckpointStore,
    location: str,
    data: Path,
    *,
    keys: int = 20,
    parallelism: int = 2,
    is_canonical: bool = True,
    twice: bool = False,
    **changes: object,
) -> None:
    """Publishes a point with two records of the first file read and `keys` applications counted.

    With `twice`, all of them are counted twice.
    """
    pipeline = find_flow(FLOW).build({"data": str(data)})
    cut = _cut_of(keys, pipeline, 1 + twice) if keys else []
    subtasks = [
        SubtaskSnapshot(vertex=uid, subtask=index, operators=[snapshot])
        for index in range(parallelism)
        for uid, snapshot in (
            (EVENTS, _read_by(index, parallelism, pipeline.sources[EVENTS])),
            (VIEWS, _counted_by(index, parallelism, cut, store, location, is_canonical)),
        )
    ]
    values: dict[str, object] = {
        "pipeline": FLOW,
        "run_id": RunId("run-1"),
        "checkpoint_id": CheckpointId(7),
        "kind": CheckpointKind.SAVEPOINT,
        "savepoint_format": SavepointFormat.CANONICAL if is_canonical else SavepointFormat.NATIVE,
        "parallelism": parallelism,
        "operator_ids": {node.uid: operator_id(node.uid) for node in pipeline.graph.nodes},
        "subtasks": subtasks,
    }
    store.publish(location, manifest_of([], **{**values, **changes}))


def _read_by(index: int, parallelism: int, source: Source) -> OperatorSnapshot:
    position = initial(index, parallelism)
    memory = SplitMemory(source, [])
    if index == 0:
        memory.on_opened(0, 0)
        position = position.advanced(RECORDS_READ)
    stored: SplitPositions = memory.beside(position)
    read = RECORDS_READ if index == 0 else 0
    return OperatorSnapshot(uid=EVENTS, positions=stored.to_json(), counters={"records_read": read})


def _counted_by(
    index: int,
    parallelism: int,
    cut: list[tuple[FrozenState, pa.Table]],
    store: CheckpointStore,
    location: str,
    is_canonical: bool,
) -> OperatorSnapshot:
    groups = range_of(index, parallelism, MAX_PARALLELISM)
    handles = []
    for state, whole in cut:
        of_group = whole.column("__key_group").to_numpy()
        mine = whole.filter(pa.array((of_group >= groups.first) & (of_group <= groups.last)))
        stem = f"views-{index}-{state.name}-a1"
        file = store.write_batches(
            location, stem, state.schema, mine.to_batches(), open_format=is_canonical
        )
        handles.append(
            StateHandle(
                state=state.name,
                kind=state.kind,
                file=file,
                key_groups=(groups.first, groups.last),
                rows=mine.num_rows,
                schema={field.name: str(field.type) for field in state.schema},
            )
        )
    return OperatorSnapshot(uid=VIEWS, states=handles)


def _cut_of(keys: int, pipeline: Pipeline, times: int) -> list[tuple[FrozenState, pa.Table]]:
    """Returns the state of `views` after application i was viewed i times, `times` times over."""
    backend = HashMapBackend(range_of(0, 1, MAX_PARALLELISM), MAX_PARALLELISM)
    context = OperatorContext(
        uid=VIEWS, subtask=0, parallelism=1, state=backend, collect=lambda _: None
    )
    [partials] = [pipeline.schemas[c.upstream] for c in pipeline.graph.node(VIEWS).inputs]
    operator = pipeline.operators[VIEWS]()
    operator.open(context, [partials])
    counts = pa.array(np.arange(keys))
    for _ in range(times):
        operator.on_batch(0, pa.record_batch([counts, counts], schema=partials))
    return [(state, pa.Table.from_batches(state.batches, state.schema)) for state in backend.cut()]
