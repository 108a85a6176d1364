"""Finds the states that a pipeline's operators declare, by opening each of them on nothing.

An operator declares its states only when it is opened. So it is opened over an empty backend that
is thrown away. No record is processed and nothing is written.
"""

import pyarrow as pa

from pipelines.domain.ids import Uid
from pipelines.domain.key_groups import range_of
from pipelines.domain.schema_evolution import DeclaredColumns
from pipelines.operators.operator import OperatorContext
from pipelines.protocol.compatibility import Declared
from pipelines.state.evolution import declared_columns
from pipelines.state.in_memory.hashmap import HashMapBackend
from pipelines.stream import Pipeline


def declared_states(pipeline: Pipeline) -> Declared:
    return {uid: _declared_by(pipeline, uid) for uid in pipeline.operators}


def _declared_by(pipeline: Pipeline, uid: Uid) -> dict[str, DeclaredColumns]:
    maximum = pipeline.graph.max_parallelism
    backend = HashMapBackend(range_of(0, 1, maximum), maximum)
    context = OperatorContext(
        uid=uid, subtask=0, parallelism=1, state=backend, collect=_emit_nowhere
    )
    inputs = [pipeline.schemas[c.upstream] for c in pipeline.graph.node(uid).inputs]
    pipeline.operators[uid]().open(context, inputs)
    keyed = {name: declared_columns(each) for name, each in backend.descriptors.items()}
    return keyed | context.operator_state.declared


def _emit_nowhere(batch: pa.RecordBatch) -> None:
    """Nothing is emitted before the first record."""
