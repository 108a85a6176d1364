"""Asks how long a point can be restored into its pipeline; changes nothing.

Sources need to keep their records, and targets the transactions that sinks had prepared.
"""

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from pipelines.connectors.sink import Sink
from pipelines.connectors.source import AnySource, ForgetsRecords
from pipelines.connectors.split_progress import NamedPositions, SplitProgress
from pipelines.connectors.two_phase_commit import HoldsTransactions
from pipelines.domain.errors import InvariantViolated, Rejected, Retryable
from pipelines.domain.ids import Uid
from pipelines.domain.snapshots import Manifest
from pipelines.flows.finding import find_flow
from pipelines.points.contents import Limit, ShelfLife, pending_commits
from pipelines.points.fit import unreachable
from pipelines.stream import Pipeline


def shelf_life(
    manifest: Manifest, flow_name: str, parameters: Mapping[str, str], *, is_committed: bool
) -> ShelfLife:
    """`is_committed`: all output that its sinks had prepared is known to be committed.

    Raises Rejected if the flow cannot be built with these parameters.
    """
    pipeline = find_flow(flow_name).build(parameters)
    return shelf_life_in(manifest, pipeline, is_committed=is_committed)


def shelf_life_in(manifest: Manifest, pipeline: Pipeline, *, is_committed: bool) -> ShelfLife:
    problems = unreachable(manifest, pipeline.sources, ahead=True)
    told = list(source_limits(manifest, pipeline.sources))
    prepared = {} if is_committed else pending_commits(manifest)
    limits = [
        *(each for each in told if isinstance(each, Limit)),
        *sink_limits(manifest, pipeline.sinks, prepared),
    ]
    return ShelfLife(
        problems=problems,
        limits=sorted(limits, key=lambda limit: limit.until_ms),
        unknown=[each for each in told if isinstance(each, str)],
    )


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
