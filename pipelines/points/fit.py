"""Checks a point against a pipeline: operators, states, the input that sources can give, time left.

An operator declares its states only when it is opened. So this module opens it over an empty
backend, which it throws away. It processes no record and writes nothing.

How long a point can be restored depends on how long the sources keep their records, and on how long
the targets keep the transactions that sinks had prepared. Asking them changes nothing.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec
import pyarrow as pa

from pipelines.connectors.positions import named_problems_of, problems_of
from pipelines.connectors.sink import Sink
from pipelines.connectors.sink_bases import HoldsTransactions
from pipelines.connectors.source import AnySource, ForgetsRecords, GrowingSource
from pipelines.connectors.split_progress import NamedPositions, SplitPositions, SplitProgress
from pipelines.domain.errors import (
    InputLost,
    InvariantViolated,
    Rejected,
    Retryable,
    StateUnmatched,
)
from pipelines.domain.gaps import Gap
from pipelines.domain.ids import Uid
from pipelines.domain.key_groups import range_of
from pipelines.domain.run import RunSpec
from pipelines.domain.snapshots import Json, Manifest
from pipelines.flows.finding import find_flow
from pipelines.operators.operator import OperatorContext
from pipelines.packages.loading import LoadedCode
from pipelines.points.contents import Limit, ShelfLife, pending_commits
from pipelines.points.input import past_accepted
from pipelines.protocol.compatibility import (
    Compatibility,
    Declared,
    DeclaredColumns,
    Target,
    compare,
)
from pipelines.state.evolution import declared_columns
from pipelines.state.in_memory.hashmap import HashMapBackend
from pipelines.stream import Pipeline


@dataclass(frozen=True, slots=True)
class PointFit:
    """Decides whether a point fits the run: operators, columns, and what its sources can give."""

    target: Target
    sources: Mapping[Uid, AnySource]  # those that the run continues to read
    gapped: str | None = None  # the point behind which a person accepted gaps
    accepted: tuple[str, ...] = ()  # the texts of these gaps

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
        sources = pipeline.sources if reads_on else {}
        return cls(target, sources, spec.restore_from, tuple(spec.accepted_gaps))

    def past_gaps(self, manifest: Manifest, location: str) -> tuple[Manifest, tuple[Gap, ...]]:
        """Returns the point as its run reads it, and the accepted gaps that exist.

        Raises Retryable if a source is away, because then the gaps are not known.
        """
        accepted = self.accepted if location == self.gapped else ()
        return past_accepted(manifest, self.sources, accepted)

    def check(self, manifest: Manifest, location: str) -> Compatibility:
        """Raises StateUnmatched or InputLost with the first problem, in a sentence.

        Raises Retryable if a source with an accepted gap is away.
        """
        manifest, _ = self.past_gaps(manifest, location)
        found = compare(manifest, self.target)
        if found.problems:
            raise StateUnmatched(f"{location} cannot be restored: {found.problems[0]}")
        if gone := unreachable(manifest, self.sources, ahead=False):
            hint = " No accepted gap is exactly that range." if self.accepted else ""
            raise InputLost(f"{location} cannot be restored: {gone[0]}{hint}")
        return found


def unreachable(manifest: Manifest, sources: Mapping[Uid, AnySource], *, ahead: bool) -> list[str]:
    """Returns what the sources can no longer give, one sentence each."""
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


def shelf_life(
    manifest: Manifest,
    flow_name: str,
    parameters: Mapping[str, str],
    *,
    is_committed: bool,
    code: LoadedCode | None = None,
) -> ShelfLife:
    """`is_committed` says that all output the point's sinks had prepared is known to be committed.

    Raises Rejected if the flow cannot be built with these parameters.
    """
    pipeline = find_flow(flow_name, code).build(parameters)
    return shelf_life_in(manifest, pipeline, is_committed=is_committed)


def shelf_life_in(manifest: Manifest, pipeline: Pipeline, *, is_committed: bool) -> ShelfLife:
    problems = unreachable(manifest, pipeline.sources, ahead=True)
    of_sources = list(source_limits(manifest, pipeline.sources))
    prepared = {} if is_committed else pending_commits(manifest)
    limits = [
        *(each for each in of_sources if isinstance(each, Limit)),
        *sink_limits(manifest, pipeline.sinks, prepared),
    ]
    return ShelfLife(
        problems=problems,
        limits=sorted(limits, key=lambda limit: limit.until_ms),
        unknown=[each for each in of_sources if isinstance(each, str)],
    )


def source_limits(manifest: Manifest, sources: Mapping[Uid, AnySource]) -> Iterator[Limit | str]:
    """Yields a text instead of a limit for a source that cannot give one now."""
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
    """`prepared` counts each sink's outputs that are prepared and not known to be committed."""
    for uid, sink in sinks.items():
        if prepared.get(uid) and isinstance(sink, HoldsTransactions):
            yield Limit(
                manifest.trigger_ms + sink.transaction_timeout_ms,
                f"The target of the sink {uid!r} gives up the transactions that it had prepared,"
                " unless they are committed already.",
            )


def _unread(manifest: Manifest, uid: Uid) -> Sequence[SplitProgress]:
    """Raises Rejected if the positions make no sense."""
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
