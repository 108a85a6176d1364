"""An operator that reports which rows a batch descends from reports the right ones."""

from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from pipelines.domain.ids import Uid
from pipelines.domain.key_groups import range_of
from pipelines.operators.operator import Lineage, Operator, OperatorContext
from pipelines.operators.stateless import Filter, FilterRows, PassOn
from pipelines.state.in_memory.hashmap import HashMapBackend

KEYS = pa.array([5, None, 2, 9, 4, 7], pa.int64())
BATCH = pa.RecordBatch.from_arrays([KEYS], ["key"])


@pytest.mark.parametrize(
    "create",
    [
        lambda: Filter(pc.field("key") > 4),
        lambda: Filter(lambda batch: pc.greater(batch["key"], 4)),
        lambda: FilterRows(lambda row: row["key"] is not None and row["key"] > 4),
        PassOn,
    ],
)
def test_each_emitted_row_equals_its_reported_parent_row(
    create: Callable[[], Operator],
) -> None:
    lineage = Lineage()
    emitted: list[tuple[pa.RecordBatch, object]] = []
    state = HashMapBackend(range_of(0, 1, 128), 128)
    context = OperatorContext(
        uid=Uid("o"),
        subtask=0,
        parallelism=1,
        state=state,
        collect=lambda batch: emitted.append((batch, lineage.take())),
        lineage=lineage,
    )
    operator = create()
    operator.open(context, [BATCH.schema])

    operator.on_batch(0, BATCH)

    ((batch, parents),) = emitted
    assert batch.equals(BATCH.take(pa.array(parents)))
    assert lineage.take() is None, "it speaks of one batch"
