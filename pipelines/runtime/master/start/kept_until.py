"""Asks how long the world keeps what a point's restore needs; changes nothing.

Sources need to keep their records, and targets the transactions that sinks had prepared.

Finds the states that a pipeline's operators declare, by opening each of them on nothing.

An operator declares its states only when it is opened. So it is opened over an empty backend that
is thrown away. No record is processed and nothing is written.
"""

from collections.abc import Iterator, Mapping, Sequence

import msgspec
import pyarrow as pa

from pipelines.connectors.sink import Sink
from pipelines.connectors.source import AnySource, ForgetsRecords
from pipelines.connectors.split_progress import NamedPositions, SplitProgress
from pipelines.connectors.two_phase_commit import HoldsTransactions
from pipelines.domain.errors import InvariantViolated, Rejected, Retryable
from pipelines.domain.ids import Uid
from pipelines.domain.key_groups import range_of
from pipelines.domain.schema_evolution import DeclaredColumns
from pipelines.domain.snapshots import Manifest
from pipelines.operators.operator import OperatorContext
from pipelines.points.descriptions import Limit
from pipelines.protocol.compatibility import Declared
from pipelines.state.evolution import declared_columns
from pipelines.state.in_memory.hashmap import HashMapBackend
from pipelines.stream import Pipeline


def source_limits(manifest: Manifest, sources: Mapping[Uid, AnySource]) -> Iterator[Limit | str]:
    """A text where a source cannot say now."""
    for uid, source in sources.items():
        if not isinstance(source, ForgetsRecords):
            continue
        try:
            until_ms = source.kept_until_ms(_unread(manifest, uid))
        except (Rejected, Retryable) as error:
            yield f"How long the source {uid!r} keeps its records is not known: {error}."
            continue
        if until_ms is not None:
            yield Limit(
                until_ms,
                f"The source {uid!r} may delete the first records that were not read at the point,"
                " for their age.",
            )


def sink_limits(
    manifest: Manifest, sinks: Mapping[Uid, Sink], prepared: Mapping[Uid, int]
) -> Iterator[Limit]:
    """`prepared`: how many outputs of each sink are prepared and not known to be committed."""
    for uid, sink in sinks.items():
        if prepared.get(uid) and isinstance(sink, HoldsTransactions):
            yield Limit(
                manifest.trigger_ms + sink.transaction_timeout_ms,
                f"The target of the sink {uid!r} gives up the transactions that it had prepared,"
                " unless they are committed already.",
            )


def _unread(manifest: Manifest, uid: Uid) -> Sequence[SplitProgress]:
    """Raises Rejected when the positions make no sense."""
    stored = [
        operator.positions
        for subtask in manifest.subtasks
        for operator in subtask.operators
        if operator.uid == uid and operator.positions is not None
    ]
    try:
        known = [NamedPositions.from_json(each) for each in stored]
    except (msgspec.ValidationError, InvariantViolated) as error:
        raise Rejected(f"its positions make no sense: {error}") from error
    return [split for each in known for split in each.splits if not split.is_finished]


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
