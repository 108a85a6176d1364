"""The names that authors of pipelines import: sources, transformations, sinks, one uid each.

Building a pipeline only describes it. `Environment.build` checks the graph and every schema, so
that it refuses a wrong column or a missing uid before anything starts. Source: Flink's DataStream
API, but with batches and column expressions instead of functions on records.
"""

from pipelines.connectors.watermark_strategy import (
    WatermarkGenerator,
    WatermarkStrategy,
    bounded_out_of_orderness,
    generated_by,
    monotonous,
)
from pipelines.domain.errors import Rejected
from pipelines.domain.run import Parameter
from pipelines.operators.aggregating.aggregates import count, count_distinct, max, mean, min, sum
from pipelines.operators.asynchronous.request_loop import AsyncFunction
from pipelines.operators.operator import SideOutput
from pipelines.operators.processing.process import (
    BatchProcessFunction,
    KeyedProcessFunction,
)
from pipelines.operators.processing.row_context import ProcessContext, RowContext, RuntimeContext
from pipelines.operators.side_outputs import BatchSides, RowSides
from pipelines.operators.user_metrics import Counter, Gauge, Histogram
from pipelines.operators.windowing.processing_time import processing_time
from pipelines.operators.windowing.triggers import (
    Trigger,
    TriggerResult,
    TriggerWindows,
    continuous_event_time,
    continuous_processing_time,
    count_trigger,
    purging,
)
from pipelines.operators.windowing.windows import LATE, session, sliding, tumbling
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
from pipelines.stream.declaration import Flow, flow
from pipelines.stream.environment import Environment
from pipelines.stream.keyed import (
    ConnectedStreams,
    CountWindowedStream,
    KeyedStream,
    WindowedStream,
)
from pipelines.stream.parameters import Secret
from pipelines.stream.pipeline import Pipeline
from pipelines.stream.streams import Stream

__all__ = [
    "LATE",
    "AggregateFunction",
    "AggregatingStateDescriptor",
    "AsyncFunction",
    "BatchAggregateFunction",
    "BatchProcessFunction",
    "BatchSides",
    "ConnectedStreams",
    "CountWindowedStream",
    "Counter",
    "Environment",
    "FiredTimers",
    "Flow",
    "Gauge",
    "Histogram",
    "KeyedProcessFunction",
    "KeyedStream",
    "ListStateDescriptor",
    "MapStateDescriptor",
    "Parameter",
    "Pipeline",
    "ProcessContext",
    "ReducingStateDescriptor",
    "Rejected",
    "RowContext",
    "RowSides",
    "RuntimeContext",
    "Secret",
    "SideOutput",
    "StateTtlConfig",
    "Stream",
    "TimeDomain",
    "Trigger",
    "TriggerResult",
    "TriggerWindows",
    "TtlUpdate",
    "TtlVisibility",
    "ValueStateDescriptor",
    "WatermarkGenerator",
    "WatermarkStrategy",
    "WindowedStream",
    "bounded_out_of_orderness",
    "continuous_event_time",
    "continuous_processing_time",
    "count",
    "count_distinct",
    "count_trigger",
    "flow",
    "generated_by",
    "max",
    "mean",
    "min",
    "monotonous",
    "processing_time",
    "purging",
    "session",
    "sliding",
    "sum",
    "tumbling",
]
