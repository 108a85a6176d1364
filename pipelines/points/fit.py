"""Holds a point against a pipeline: its operators, its states, and what its sources can give.

Finds the states that a pipeline's operators declare, by opening each of them on nothing.

An operator declares its states only when it is opened. So it is opened over an empty backend that
is thrown away. No record is processed and nothing is written.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec
import pyarrow as pa

from pipelines.connectors.reachability import named_problems_of, problems_of
from pipelines.connectors.source import AnySource, GrowingSource
from pipelines.connectors.split_progress import NamedPositions, SplitPositions
from pipelines.domain.errors import InvariantViolated, Rejected
from pipelines.domain.ids import Uid
from pipelines.domain.key_groups import range_of
from pipelines.domain.run import RunSpec
from pipelines.domain.schema_evolution import DeclaredColumns
from pipelines.domain.snapshots import Json, Manifest
from pipelines.operators.operator import OperatorContext
from pipelines.protocol.compatibility import Compatibility, Declared, Target, compare
from pipelines.state.evolution import declared_columns
from pipelines.state.in_memory.hashmap import HashMapBackend
from pipelines.stream import Pipeline


@dataclass(frozen=True, slots=True)
class PointFit:
    """Decides whether a point fits the run: operators, columns, and what its sources can give."""

    target: Target
    sources: Mapping[Uid, AnySource]  # the sources that are to be read on

    @classmethod
    def of(cls, spec: RunSpec, pipeline: Pipeline, *, reads_on: bool = True) -> "PointFit":
        target = Target(
            pipeline=spec.pipeline,
            graph=pipeline.graph,
            declared=declared_states(pipeline),
            parallelism=spec.parallelism,
            max_parallelism=spec.max_parallelism,
            allows_non_restored_state=spec.allow_non_restored_state,
        )
        return cls(target, pipeline.sources if reads_on else {})

    def check(self, manifest: Manifest, location: str) -> Compatibility:
        """Raises Rejected with the first problem, in a sentence."""
        found = compare(manifest, self.target)
        problems = [*found.problems, *unreachable(manifest, self.sources, ahead=False)]
        if problems:
            raise Rejected(f"{location} cannot be restored: {problems[0]}")
        return found


def unreachable(manifest: Manifest, sources: Mapping[Uid, AnySource], *, ahead: bool) -> list[str]:
    """What the sources can no longer give, one sentence each."""
    problems: list[str] = []
    for uid, source in sources.items():
        stored = [
            operator.positions
            for subtask in manifest.subtasks
            for operator in subtask.operators
            if operator.uid == uid and operator.positions is not None
        ]
        try:
            problems += _problems_of(uid, source, stored, ahead=ahead)
        except (msgspec.ValidationError, InvariantViolated) as error:
            problems.append(f"The positions of the source {uid!r} make no sense: {error}.")
    return problems


def _problems_of(uid: Uid, source: AnySource, stored: list[Json], *, ahead: bool) -> list[str]:
    if isinstance(source, GrowingSource):
        named = [NamedPositions.from_json(each) for each in stored]
        return named_problems_of(uid, source, named, ahead=ahead)
    numbered = [SplitPositions.from_json(each) for each in stored]
    return problems_of(uid, source, numbered, ahead=ahead)


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
