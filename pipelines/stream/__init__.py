"""What the author of a pipeline imports: sources, transformations, sinks, one uid each.

Building a pipeline only describes it. `Environment.build` checks the graph and every schema, so
that a wrong column or a missing uid is refused before anything starts. Source: Flink's DataStream
API; batches and column expressions in the place of functions on records.
"""

from pipelines.operators.aggregates import count, max, mean, min, sum
from pipelines.operators.lateness import LATE
from pipelines.operators.windows import session, sliding, tumbling
from pipelines.stream.environment import Environment
from pipelines.stream.pipeline import Pipeline
from pipelines.stream.streams import ConnectedStreams, KeyedStream, Stream
from pipelines.stream.windowed import WindowedStream

__all__ = [
    "LATE",
    "ConnectedStreams",
    "Environment",
    "KeyedStream",
    "Pipeline",
    "Stream",
    "WindowedStream",
    "count",
    "max",
    "mean",
    "min",
    "session",
    "sliding",
    "sum",
    "tumbling",
]
