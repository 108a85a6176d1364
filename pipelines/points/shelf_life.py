"""Asks the sources and the sinks' targets how long a point can be restored into its pipeline.

Touches nothing, starts nothing.
"""

from collections.abc import Mapping

from pipelines.domain.point_contents import Limit, ShelfLife
from pipelines.domain.snapshots import Manifest
from pipelines.flows.registry import flow
from pipelines.points.preflight import pending_commits
from pipelines.runtime.master.start.kept_until import sink_limits, source_limits
from pipelines.runtime.master.start.restore_points import unreachable
from pipelines.stream import Pipeline


def shelf_life(
    manifest: Manifest, flow_name: str, parameters: Mapping[str, str], *, is_committed: bool
) -> ShelfLife:
    """`is_committed`: all output that its sinks had prepared is known to be committed.

    Raises Rejected if the flow cannot be built with these parameters.
    """
    return shelf_life_in(manifest, flow(flow_name).build(parameters), is_committed=is_committed)


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
