"""What the author of a pipeline imports: sources, transformations, sinks, one uid each.

Building a pipeline only describes it. `Environment.build` checks the graph and every schema, so
that a wrong column or a missing uid is refused before anything starts. Source: Flink's DataStream
API; batches and column expressions in the place of functions on records.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import pyarrow as pa

from pipelines.connectors.sink import Sink
from pipelines.connectors.source import Source
from pipelines.domain.errors import Rejected
from pipelines.domain.graph import Connection, JobGraph, Node, NodeKind
from pipelines.domain.ids import Uid
from pipelines.domain.key_groups import DEFAULT_MAX_PARALLELISM
from pipelines.domain.settings import check_parallelism
from pipelines.operators.aggregates import Aggregate, count, max, mean, min, sum
from pipelines.operators.aggregation import Aggregation
from pipelines.operators.batch_function import BatchFunction, BatchMapping
from pipelines.operators.filter import Filter, Predicate
from pipelines.operators.keyed_aggregate import KeyedAggregate
from pipelines.operators.local_aggregate import LocalAggregate
from pipelines.operators.operator import Operator
from pipelines.operators.window_aggregate import WINDOW_START, WindowAggregate
from pipelines.operators.window_join import WindowJoin
from pipelines.operators.windows import TumblingWindows, tumbling

__all__ = [
    "Environment",
    "KeyedStream",
    "Pipeline",
    "Stream",
    "count",
    "max",
    "mean",
    "min",
    "sum",
    "tumbling",
]

GUARANTEES = ("exactly-once", "exactly-once (idempotent)", "at-least-once")
"""From the strongest to the weakest; a pipeline has that of its weakest sink."""

LOCAL_SUFFIX = ".local"
"""Completes the uid of an aggregation to that of its half before the exchange."""


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A checked pipeline. `schemas` holds what each node emits; for a sink, what it takes."""

    graph: JobGraph
    sources: Mapping[Uid, Source]
    operators: Mapping[Uid, Callable[[], Operator]]
    sinks: Mapping[Uid, Sink]
    schemas: Mapping[Uid, pa.Schema]
    guarantee: str
    pace: float | None  # event-hours per second; None: as fast as possible


@dataclass(slots=True)
class Environment:
    """Collects what is declared. `pace` replays sources with event time at that speed."""

    max_parallelism: int = DEFAULT_MAX_PARALLELISM
    pace: float | None = None
    _nodes: list[Node] = field(default_factory=list)
    _sources: dict[Uid, Source] = field(default_factory=dict)
    _operators: dict[Uid, Callable[[], Operator]] = field(default_factory=dict)
    _sinks: dict[Uid, Sink] = field(default_factory=dict)
    _schemas: dict[Uid, pa.Schema] = field(default_factory=dict)

    def source(self, source: Source, *, uid: str) -> "Stream":
        node = Uid(uid)
        self._nodes.append(Node(node, NodeKind.SOURCE))
        self._sources[node] = source
        self._schemas[node] = source.schema
        return Stream(self, node, source.timestamp_column)

    def build(self) -> Pipeline:
        """Raises Rejected with one sentence that names the uid, column or target at fault."""
        check_parallelism(1, self.max_parallelism)
        graph = JobGraph.of(self._nodes, self.max_parallelism)
        return Pipeline(
            graph,
            dict(self._sources),
            dict(self._operators),
            dict(self._sinks),
            dict(self._schemas),
            weakest([sink.guarantee for sink in self._sinks.values()]),
            self.pace,
        )

    def add_operator(
        self, uid: str, create: Callable[[], Operator], inputs: tuple[Connection, ...]
    ) -> Uid:
        """Raises Rejected when the operator cannot work on the schemas of its inputs."""
        node = Uid(uid)
        schemas = [self._schemas[connection.upstream] for connection in inputs]
        with naming(uid):
            self._schemas[node] = create().output_schema(schemas)
        self._nodes.append(Node(node, NodeKind.OPERATOR, inputs))
        self._operators[node] = create
        return node

    def add_sink(self, uid: str, sink: Sink, upstream: Uid) -> None:
        """Raises Rejected when the target cannot take what `upstream` emits."""
        node = Uid(uid)
        with naming(uid):
            sink.validate(self._schemas[upstream])
        self._nodes.append(Node(node, NodeKind.SINK, (Connection(upstream),)))
        self._sinks[node] = sink
        self._schemas[node] = self._schemas[upstream]

    def schema_of(self, uid: Uid) -> pa.Schema:
        return self._schemas[uid]


@dataclass(frozen=True, slots=True)
class Stream:
    """What one node emits. `time_column` is its event time, where it has one."""

    environment: Environment
    node: Uid
    time_column: str | None

    @property
    def schema(self) -> pa.Schema:
        return self.environment.schema_of(self.node)

    def filter(self, predicate: Predicate, *, uid: str) -> "Stream":
        """Keep the rows where a pyarrow expression, or a function of the batch, is true."""
        return self._chained(uid, lambda: Filter(predicate), self.time_column)

    def map_batches(self, function: BatchMapping, schema: pa.Schema, *, uid: str) -> "Stream":
        """Arrow batch in, Arrow batch of `schema` out. Event time stays if its column does."""
        time = self.time_column if self.time_column in schema.names else None
        return self._chained(uid, lambda: BatchFunction(function, schema), time)

    def key_by(self, *columns: str) -> "KeyedStream":
        return KeyedStream(self, columns)

    def join(
        self, other: "Stream", *, on: list[str], window: TumblingWindows, uid: str
    ) -> "Stream":
        """Inner join on equal columns within one window of event time; every pair counts."""
        if other.environment is not self.environment:
            raise Rejected(f"{uid!r} joins streams of two environments; both must be of one.")
        times = (_event_time(self), _event_time(other))
        keys = tuple(on)
        node = self.environment.add_operator(
            uid,
            lambda: WindowJoin(keys, times, window),
            (Connection(self.node, keys), Connection(other.node, keys)),
        )
        return Stream(self.environment, node, times[0])

    def sink(self, sink: Sink, *, uid: str) -> "Stream":
        """Returns this stream, so that it can go into another sink as well."""
        self.environment.add_sink(uid, sink, self.node)
        return self

    def _chained(
        self, uid: str, create: Callable[[], Operator], time_column: str | None
    ) -> "Stream":
        node = self.environment.add_operator(uid, create, (Connection(self.node),))
        return Stream(self.environment, node, time_column)


@dataclass(frozen=True, slots=True)
class KeyedStream:
    stream: Stream
    keys: tuple[str, ...]

    def window(self, windows: TumblingWindows) -> "WindowedStream":
        return WindowedStream(self.stream, self.keys, windows)

    def aggregate(self, *, uid: str, **aggregates: Aggregate) -> Stream:
        """Running totals: each batch emits the new results of the keys that it touched.

        Records are combined before the exchange wherever that makes them fewer.
        """
        environment = self.stream.environment
        with naming(uid):
            aggregation = Aggregation.of(self.keys, aggregates, self.stream.schema)
        local = environment.add_operator(
            uid + LOCAL_SUFFIX,
            lambda: LocalAggregate(aggregation),
            (Connection(self.stream.node),),
        )
        node = environment.add_operator(
            uid,
            lambda: KeyedAggregate(aggregation, merges_partials=True),
            (Connection(local, self.keys),),
        )
        return Stream(environment, node, None)


@dataclass(frozen=True, slots=True)
class WindowedStream:
    stream: Stream
    keys: tuple[str, ...]
    windows: TumblingWindows

    def aggregate(self, *, uid: str, **aggregates: Aggregate) -> Stream:
        """Keys, `window_start` and one column per aggregate, once per key and window."""
        keys, windows, time = self.keys, self.windows, _event_time(self.stream)
        node = self.stream.environment.add_operator(
            uid,
            lambda: WindowAggregate(keys, time, windows, aggregates),
            (Connection(self.stream.node, keys),),
        )
        return Stream(self.stream.environment, node, WINDOW_START)


def weakest(guarantees: list[str]) -> str:
    """An unknown guarantee is weaker than any known one, and is shown as it is."""
    ranked = {guarantee: rank for rank, guarantee in enumerate(GUARANTEES)}
    found, worst = GUARANTEES[0], -1
    for guarantee in guarantees:
        rank = ranked.get(guarantee, len(GUARANTEES))
        if rank > worst:
            found, worst = guarantee, rank
    return found


@contextmanager
def naming(uid: str) -> Iterator[None]:
    """Operators and sinks know their columns but not what the author called them."""
    try:
        yield
    except Rejected as refusal:
        raise Rejected(f"{uid!r} cannot be built: {refusal}") from refusal


def _event_time(stream: Stream) -> str:
    if stream.time_column is None:
        raise Rejected(f"{stream.node!r} has no event time, so it cannot be put into windows.")
    return stream.time_column
