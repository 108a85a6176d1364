"""A stream with a key: windows, running totals, functions with state."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from pipelines.domain.graph import Connection
from pipelines.operators.aggregating.aggregates import Aggregate
from pipelines.operators.aggregating.aggregation import Aggregation
from pipelines.operators.aggregating.keyed_aggregate import KeyedAggregate, LocalAggregate
from pipelines.operators.processing.process import Process
from pipelines.operators.processing.process_function import (
    BatchProcessFunction,
    KeyedProcessFunction,
)
from pipelines.operators.windowing.windows import Windows
from pipelines.stream.connected import ConnectedStreams
from pipelines.stream.refusals import naming
from pipelines.stream.windowed import WindowedStream

if TYPE_CHECKING:
    from pipelines.stream.streams import Stream

LOCAL_SUFFIX = ".local"
"""Added to an aggregation's uid, it names the half before the exchange."""


@dataclass(frozen=True, slots=True)
class KeyedStream:
    stream: "Stream"
    keys: tuple[str, ...]

    def connect(self, other: "Stream") -> ConnectedStreams:
        """Connects this stream, by its key, with another one as it is: `other.broadcast()`."""
        connections = self.stream.connection(self.keys), other.connection()
        return ConnectedStreams(self.stream, other, *connections)

    def window(self, windows: Windows) -> "WindowedStream":
        return WindowedStream(self.stream, self.keys, windows)

    def process(
        self,
        function: BatchProcessFunction | KeyedProcessFunction,
        schema: pa.Schema,
        *,
        uid: str,
    ) -> "Stream":
        """A function with keyed state and timers, which emits what `schema` says.

        Each subtask works with a copy of `function`. Event time stays if its column does.
        """
        node = self.stream.environment.add_operator(
            uid,
            lambda: Process(function, (self.keys,), schema, uid),
            (self.stream.connection(self.keys),),
        )
        time = self.stream.time_column
        return self.stream.derived(node, time if time in schema.names else None)

    def aggregate(self, *, uid: str, **aggregates: Aggregate) -> "Stream":
        """Running totals: each batch emits the new results of the keys that it touched.

        Combines records before the exchange wherever that makes them fewer.
        """
        environment = self.stream.environment
        with naming(uid):
            aggregation = Aggregation.of(self.keys, aggregates, self.stream.schema)
        local = environment.add_operator(
            uid + LOCAL_SUFFIX,
            lambda: LocalAggregate(aggregation),
            (self.stream.connection(),),
        )
        node = environment.add_operator(
            uid,
            lambda: KeyedAggregate(aggregation, merges_partials=True),
            (Connection(local, self.keys),),
        )
        return self.stream.derived(node, None)
