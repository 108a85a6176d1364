"""Every reader of a state gets the same rows, whatever wrote the point.

The tests read as `read_state` does in Spark's executors, for every kind of state and of point.
"""

from pathlib import Path

import pyarrow as pa
import pytest

from pipelines.points.browsing import rows_of
from pipelines.runtime.subtask.snapshots.restoring import RestorePoint
from pipelines.spark.data_frames import handles_of
from pipelines.storage.filesystem import FileSystemCheckpointStore
from tests.contracts.held_points import (
    ALL_GROUPS,
    KEYED_STATES,
    KINDS,
    OPERATOR_STATE,
    STATES,
    USERS,
    held_in,
    hold,
)

INCREMENTAL = [kind for kind in KINDS if kind.startswith("incremental")]
WHOLE = [kind for kind in KINDS if kind not in INCREMENTAL]

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("kinds", [WHOLE, INCREMENTAL], ids=["whole", "incremental"])
def test_every_kind_of_point_gives_the_same_rows_of_each_state(
    tmp_path: Path, kinds: list[str]
) -> None:
    for state in (*KEYED_STATES, OPERATOR_STATE):
        found = [rows_in(tmp_path, kind, state) for kind in kinds]

        assert found[0].num_rows >= USERS
        for other in found[1:]:
            assert other.equals(found[0]), state


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
def test_either_backend_restores_every_kind_of_point(
    tmp_path: Path, kind: str, backend: str
) -> None:
    store = FileSystemCheckpointStore([str(tmp_path)])
    point = hold(store, str(tmp_path), kind)
    given = RestorePoint(store, point.location, point.manifest)

    held = held_in(given.share_of(STATES, 0, 1, ALL_GROUPS), backend)

    assert {state: held[state] for state in ("value", "reducing", "aggregating")} == {
        "value": USERS,
        "reducing": USERS,
        "aggregating": USERS,
    }
    assert all(held[state] >= USERS for state in (*KEYED_STATES, OPERATOR_STATE))


def rows_in(root: Path, kind: str, state: str) -> pa.Table:
    store = FileSystemCheckpointStore([str(root)])
    point = hold(store, str(root / kind.replace(" ", "-") / state), kind)
    handles = handles_of(store.manifest(point.location), point.location, STATES, state)
    batches = [b for handle in handles for b in rows_of(store, point.location, handle)]
    table = pa.Table.from_batches(batches)
    by = [(name, "ascending") for name in table.column_names if not _is_nested(table, name)]
    return table.select(sorted(table.column_names)).sort_by(sorted(by)).combine_chunks()


def _is_nested(table: pa.Table, name: str) -> bool:
    return bool(pa.types.is_nested(table.schema.field(name).type))
