"""What the author of a pipeline imports: sources, transformations, sinks, one uid each.

Building a pipeline only describes it. `Environment.build` checks the graph and every schema, so
that it refuses a wrong column or a missing uid before anything starts. Source: Flink's DataStream
API; with batches and column expressions instead of functions on records.
"""

from pipelines.connectors.watermark_strategy import (
    WatermarkGenerator,
    WatermarkStrategy,
    bounded_out_of_orderness,
    generated_by,
    monotonous,
)
from pipelines.operators.aggregating.aggregates import count, max, mean, min, sum
from pipelines.operators.operator import SideOutput
from pipelines.operators.processing.process_context import ProcessContext
from pipelines.operators.processing.process_function import (
    BatchProcessFunction,
    KeyedProcessFunction,
)
from pipelines.operators.processing.row_context import RowContext, RuntimeContext
from pipelines.operators.windowing.lateness import LATE
from pipelines.operators.windowing.windows import session, sliding, tumbling
from pipelines.state.descriptors import (
    AggregateFunction,
    AggregatingStateDescriptor,
    BatchAggregateFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from pipelines.state.entries import StateTtlConfig, TtlUpdate, TtlVisibility
from pipelines.state.timers import FiredTimers, TimeDomain
from pipelines.stream.environment import Environment
from pipelines.stream.keyed import ConnectedStreams, KeyedStream, WindowedStream
from pipelines.stream.pipeline import Pipeline
from pipelines.stream.streams import Stream

__all__ = [
    "LATE",
    "AggregateFunction",
    "AggregatingStateDescriptor",
    "BatchAggregateFunction",
    "BatchProcessFunction",
    "ConnectedStreams",
    "Environment",
    "FiredTimers",
    "KeyedProcessFunction",
    "KeyedStream",
    "ListStateDescriptor",
    "MapStateDescriptor",
    "Pipeline",
    "ProcessContext",
    "ReducingStateDescriptor",
    "RowContext",
    "RuntimeContext",
    "SideOutput",
    "StateTtlConfig",
    "Stream",
    "TimeDomain",
    "TtlUpdate",
    "TtlVisibility",
    "ValueStateDescriptor",
    "WatermarkGenerator",
    "WatermarkStrategy",
    "WindowedStream",
    "bounded_out_of_orderness",
    "count",
    "generated_by",
    "max",
    "mean",
    "min",
    "monotonous",
    "session",
    "sliding",
    "sum",
    "tumbling",
]
