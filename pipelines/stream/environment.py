"""Collects an author's declarations, and checks them as a whole.

The finished pipeline gets steps that combine rows in front of the exchanges of windowed
aggregations. The side output of late rows needs whole rows, so a window whose late rows are read
gets no such step. Only the finished pipeline shows that. Right behind a source that keeps dead
letters (`connectors.dead_letters`), a step separates them from its records.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

import numpy as np
import pyarrow as pa

from pipelines.connectors.dead_letters import (
    COLUMN,
    DEAD_LETTERS,
    LETTER,
    KeepsDeadLetters,
    letters_of,
)
from pipelines.connectors.in_process import ArrowRows, table_of
from pipelines.connectors.sink import (
    ChecksColumns,
    Overwrites,
    OwnsPlace,
    Sink,
    check_change_keys,
    for_changes,
)
from pipelines.connectors.source import AnySource
from pipelines.connectors.watermark_strategy import WatermarkStrategy
from pipelines.domain.errors import Rejected
from pipelines.domain.graph import Connection, EdgeKind, JobGraph, Node, NodeKind
from pipelines.domain.ids import Uid
from pipelines.domain.key_groups import DEFAULT_MAX_PARALLELISM
from pipelines.domain.nodes import UID_PATTERN
from pipelines.domain.settings import check_parallelism
from pipelines.operators.operator import Operator, SideOutput
from pipelines.operators.side_outputs import check_sides
from pipelines.operators.windowing.windows import LATE
from pipelines.stream.pipeline import Pipeline, naming
from pipelines.stream.ranking import LOCAL_SUFFIX
from pipelines.stream.streams import Stream


class SeparateDeadLetters(Operator):
    """Guarantee: each record of the source leaves by exactly one of the two outputs."""

    def output_schema(self, inputs: list[pa.Schema]) -> pa.Schema:
        (schema,) = inputs
        return schema.remove(schema.get_field_index(COLUMN))

    def side_outputs(self, inputs: list[pa.Schema]) -> dict[str, SideOutput]:
        return {DEAD_LETTERS: SideOutput(LETTER, None)}

    def on_batch(self, port: int, batch: pa.RecordBatch) -> None:
        packed = batch.column(COLUMN)
        rows = batch.drop_columns([COLUMN])
        if packed.null_count == len(packed):
            self.context.collect(rows)
            return
        is_record = packed.is_null()
        letters = letters_of(packed.drop_null().to_pylist())
        self.context.count(DEAD_LETTERS, letters.num_rows)
        self._descend(packed.is_valid())
        self.context.collect_side(DEAD_LETTERS, letters)
        if packed.null_count:
            self._descend(is_record)
            self.context.collect(rows.filter(is_record))

    def _descend(self, is_parent: pa.BooleanArray) -> None:
        if self.context.lineage is not None:
            self.context.lineage.descend_from(
                np.flatnonzero(is_parent.to_numpy(zero_copy_only=False))
            )


def keeps_dead_letters(source: AnySource) -> bool:
    return isinstance(source, KeepsDeadLetters) and source.dead_letters


def separator_of(source: Uid) -> Uid:
    """Returns the uid of the operator that separates the dead letters of this source."""
    return Uid(f"{source}-decoded")


def check_letters_are_read(sources: Mapping[Uid, AnySource], graph: JobGraph) -> None:
    """Raises Rejected if nothing reads a source's dead letters: they would be lost silently."""
    for uid, source in sources.items():
        if not keeps_dead_letters(source):
            continue
        if DEAD_LETTERS not in graph.side_outputs_of(separator_of(uid)):
            raise Rejected(
                f"The source {uid!r} keeps dead letters, and nothing reads them. Read its stream's"
                f" side_output({DEAD_LETTERS!r}, uid=...), or leave dead_letters=True out."
            )


@dataclass(slots=True, kw_only=True)
class Environment:
    """Collects an author's declarations. `pace` replays sources with event time at that speed."""

    max_parallelism: int = DEFAULT_MAX_PARALLELISM
    pace: float | None = None
    _nodes: list[Node] = field(default_factory=list)
    _sources: dict[Uid, AnySource] = field(default_factory=dict)
    _operators: dict[Uid, Callable[[], Operator]] = field(default_factory=dict)
    _sinks: dict[Uid, Sink] = field(default_factory=dict)
    _schemas: dict[Uid, pa.Schema] = field(default_factory=dict)
    _watermarks: dict[Uid, WatermarkStrategy] = field(default_factory=dict)
    _side_outputs: dict[tuple[Uid, str], SideOutput] = field(default_factory=dict)
    _combiners: dict[Uid, Callable[[], Operator]] = field(default_factory=dict)
    # Maps a changelog to columns: changes with equal values there keep their order. None: no order.
    _changelogs: dict[Uid, tuple[str, ...] | None] = field(default_factory=dict)

    # Maps a node whose rows replace older ones, such as running totals, to the key of these rows.
    # None means that the key may differ from that of the older row.
    _updates: dict[Uid, tuple[str, ...] | None] = field(default_factory=dict)

    def source(
        self, source: AnySource, *, uid: str, watermarks: WatermarkStrategy | None = None
    ) -> Stream:
        """Adds a source. Without `watermarks`, it is as out of order as it says, and never idle.

        A source that keeps dead letters has them in the side output `dead_letters`.
        """
        node = Uid(uid)
        if watermarks is not None:
            if source.timestamp_column is None:
                raise Rejected(f"The source {uid!r} has no event time, so it has no watermarks.")
            self._watermarks[node] = watermarks
        self._nodes.append(Node(node, NodeKind.SOURCE))
        self._sources[node] = source
        self._schemas[node] = source.schema
        if keeps_dead_letters(source):
            node = self.add_operator(
                separator_of(node), SeparateDeadLetters, (Connection(node),), follows_input=True
            )
        return Stream(self, node, source.timestamp_column)

    def from_arrow(
        self,
        table: pa.Table,
        *,
        uid: str,
        timestamp_column: str | None = None,
        out_of_orderness: timedelta = timedelta(0),
        splits: int = 1,
    ) -> Stream:
        """Reads the rows of a table. `splits` is the number of subtasks that can read in parallel.

        Raises Rejected if `timestamp_column` holds no time.
        """
        late_ms = out_of_orderness // timedelta(milliseconds=1)
        return self.source(ArrowRows(table, timestamp_column, late_ms, splits), uid=uid)

    def from_rows(
        self,
        rows: Sequence[Mapping[str, Any]],
        schema: pa.Schema | None = None,
        *,
        uid: str,
        timestamp_column: str | None = None,
        out_of_orderness: timedelta = timedelta(0),
        splits: int = 1,
    ) -> Stream:
        """Reads dictionaries of column to value; without a `schema`, they determine it."""
        return self.from_arrow(
            table_of(rows, schema),
            uid=uid,
            timestamp_column=timestamp_column,
            out_of_orderness=out_of_orderness,
            splits=splits,
        )

    def build(self) -> Pipeline:
        """Raises Rejected with one sentence that names the uid, column or target at fault."""
        check_parallelism(1, self.max_parallelism)
        graph = JobGraph.of(self._nodes, self.max_parallelism)
        self._check_changes_stay_in_order(graph)
        check_places(self._sinks)
        check_letters_are_read(self._sources, graph)
        pipeline = Pipeline(
            graph=graph,
            sources=dict(self._sources),
            operators=dict(self._operators),
            sinks=dict(self._sinks),
            schemas=dict(self._schemas),
            side_outputs=dict(self._side_outputs),
            watermarks=dict(self._watermarks),
            pace=self.pace,
        )
        return with_combiners(pipeline, self._combiners)

    def combine_before(self, node: Uid, create: Callable[[], Operator]) -> None:
        """Registers a step that may combine rows before the exchange in front of `node`."""
        self._combiners[node] = create

    def add_operator(
        self,
        uid: str,
        create: Callable[[], Operator],
        inputs: tuple[Connection, ...],
        *,
        follows_input: bool = False,
    ) -> Uid:
        """With `follows_input`, the operator always has the parallelism of the one before it.

        Raises Rejected if the operator cannot work on the schemas of its inputs."""
        node = Uid(uid)
        schemas = [self._schema_into(connection) for connection in inputs]
        with naming(uid):
            operator = create()
            self._schemas[node] = operator.output_schema(schemas)
            sides = operator.side_outputs(schemas)
            check_sides(sides)
            for name, side in sides.items():
                self._side_outputs[node, name] = side
            if operator.emits_changes([self._is_changelog(each) for each in inputs]):
                self._changelogs[node] = self._change_order(inputs)
        updating = [each for each in _mains(inputs) if each in self._updates]
        if operator.passes_updates and updating:
            self._updates[node] = self._updates[updating[0]]
        self._nodes.append(
            Node(
                node,
                NodeKind.OPERATOR,
                inputs,
                assigns_event_time=operator.assigns_event_time,
                starts_chain=operator.starts_chain,
                follows_input=follows_input,
            )
        )
        self._operators[node] = create
        return node

    def add_sink(
        self, uid: str, sink: Sink, upstream: Connection, parallelism: int | None = None
    ) -> None:
        """Raises Rejected if the sink has no use for a column that `upstream` emits."""
        node = Uid(uid)
        schema = self._schema_into(upstream)
        with naming(uid):
            if self._is_changelog(upstream):
                sink = for_changes(sink)
                if isinstance(sink, Overwrites):
                    check_change_keys(sink.keys, self._changelogs[upstream.upstream])
                    upstream = replace(upstream, hash_by=sink.keys)
            if isinstance(sink, ChecksColumns):
                sink.check_columns(schema)
        if isinstance(sink, Overwrites):  # an older row of a key must not come after a newer one
            upstream = replace(upstream, keeps_order_of=tuple(sink.keys))
        self._nodes.append(Node(node, NodeKind.SINK, (upstream,), parallelism=parallelism))
        self._sinks[node] = sink
        self._schemas[node] = schema

    def note_updates(self, node: Uid, keys: tuple[str, ...] | None) -> None:
        """Notes that the node's rows replace earlier ones with the same `keys`.

        None means that the replaced row may have another key.
        """
        self._updates[node] = keys

    def check_counts_once(self, uid: Uid) -> None:
        """Raises Rejected if the node's rows replace older ones, so that sums of them are wrong."""
        if uid not in self._updates:
            return
        keys = self._updates[uid]
        if keys is None:
            raise Rejected(
                f"the rows of {uid!r} replace earlier ones of sessions that late rows have made"
                " longer, and an aggregate would count both. Leave out allowed_lateness there, or"
                " put as_records(uid=...) in front to count every update"
            )
        raise Rejected(
            f"the rows of {uid!r} replace earlier ones of their key, and an aggregate would"
            " count every update as a further row. Put"
            f" key_by({', '.join(map(repr, keys))}).deduplicate(keep='last', uid=...) in front,"
            " directly behind the operator that makes the updates, to count the newest row of each"
            " key; or as_records(uid=...) to count every update"
        )

    def check_ranks_once(self, uid: Uid) -> None:
        """Raises Rejected if the node's rows replace older ones, which would keep their ranks."""
        if uid in self._updates:
            raise Rejected(
                f"the rows of {uid!r} replace earlier ones of their key, and a row that was"
                " replaced would keep its rank. Rank results that are final, such as those of"
                " windows without a trigger or an allowed lateness, or put as_records(uid=...) in"
                " front to rank every update"
            )

    def set_parallelism(self, uid: Uid, parallelism: int) -> None:
        """Raises Rejected for a reader of a side output, because it runs with its operator."""
        by_uid = {node.uid: index for index, node in enumerate(self._nodes)}
        node = self._nodes[by_uid[uid]]
        while node.follows_input:
            (connection,) = node.inputs
            if connection.side is not None:
                raise Rejected(
                    f"{uid!r} runs with {connection.upstream!r}, whose output it reads. Give that"
                    " operator a parallelism, or the one behind."
                )
            node = self._nodes[by_uid[connection.upstream]]  # the source, of a step behind it
        self._nodes[by_uid[node.uid]] = replace(node, parallelism=parallelism)

    def schema_of(self, uid: Uid) -> pa.Schema:
        return self._schemas[uid]

    def emits_changes(self, uid: Uid) -> bool:
        return uid in self._changelogs

    def side_output_of(self, uid: Uid, name: str) -> SideOutput:
        """Raises Rejected, naming the existing side outputs, if there is none of that name."""
        known = [side for node, side in self._side_outputs if node == uid]
        if name not in known:
            there_are = f"it has {', '.join(map(repr, known))}" if known else "it has none"
            raise Rejected(f"{uid!r} has no side output {name!r}; {there_are}.")
        return self._side_outputs[uid, name]

    def _check_changes_stay_in_order(self, graph: JobGraph) -> None:
        """Raises Rejected where a row could be taken back before it has come."""
        for node in self._nodes:
            placed = graph.node(node.uid)
            for declared, connection in zip(node.inputs, placed.inputs, strict=True):
                is_dealt = connection.kind is EdgeKind.REBALANCE is not declared.kind
                if is_dealt and placed.parallelism != 1 and self._is_changelog(connection):
                    raise Rejected(
                        f"{node.uid!r} reads the changelog of {connection.upstream!r} at another"
                        " parallelism, so a row could be taken back before it has come. Give both"
                        " the same parallelism, or the reader 1, or put key_by between them."
                    )

    def _schema_into(self, connection: Connection) -> pa.Schema:
        if connection.side is None:
            return self._schemas[connection.upstream]
        return self.side_output_of(connection.upstream, connection.side).schema

    def _is_changelog(self, connection: Connection) -> bool:
        return connection.side is None and connection.upstream in self._changelogs

    def _change_order(self, inputs: tuple[Connection, ...]) -> tuple[str, ...] | None:
        """Returns the columns that give an operator's changes an order, or None if there are none.

        They come from the changelogs that it reads, or else from the key of its input rows.
        """
        read = [each for each in inputs if self._is_changelog(each)]
        if not read:
            return inputs[0].hash_by or inputs[0].keeps_order_of or None
        orders = {self._changelogs[each.upstream] for each in read}
        is_kept = all(each.kind is EdgeKind.FORWARD for each in read)
        return orders.pop() if is_kept and len(orders) == 1 else None


def _mains(inputs: tuple[Connection, ...]) -> list[Uid]:
    """Returns the nodes whose main outputs are read."""
    return [each.upstream for each in inputs if each.side is None]


def check_places(sinks: Mapping[Uid, Sink]) -> None:
    """Raises Rejected, naming two sinks, if they would make each other lose output."""
    owners: dict[str, Uid] = {}
    for uid, sink in sinks.items():
        if not isinstance(sink, OwnsPlace):
            continue
        first = owners.setdefault(sink.place, uid)
        if first != uid:
            raise Rejected(
                f"The sinks {first!r} and {uid!r} both write to {sink.place}. Give each a place of"
                " its own, or put the union of their streams in front of one sink."
            )


Combiners = Mapping[Uid, Callable[[], Operator]]
"""Maps the operator behind an exchange to the function that creates the step in front of it."""


def with_combiners(pipeline: Pipeline, combiners: Combiners) -> Pipeline:
    """Returns the pipeline with the step in front of each of these operators that allows it."""
    for uid, create in combiners.items():
        local = Uid(uid + LOCAL_SUFFIX)
        is_free = UID_PATTERN.fullmatch(local) and local not in pipeline.schemas
        if is_free and LATE not in pipeline.graph.side_outputs_of(uid):
            pipeline = _with_combiner(pipeline, uid, local, create)
    return pipeline


def _with_combiner(
    pipeline: Pipeline, uid: Uid, local: Uid, create: Callable[[], Operator]
) -> Pipeline:
    graph, behind = pipeline.graph, pipeline.graph.node(uid)
    (exchange,) = behind.inputs
    in_chain = replace(exchange, hash_by=None, unkeyed=EdgeKind.FORWARD)
    combiner = Node(local, NodeKind.OPERATOR, (in_chain,), follows_input=True)
    reader = replace(behind, inputs=(replace(exchange, upstream=local),))
    nodes = [reader if node.uid == uid else node for node in graph.nodes]
    return replace(
        pipeline,
        graph=JobGraph.of([*nodes, combiner], graph.max_parallelism),
        operators={**pipeline.operators, local: create},
        schemas={**pipeline.schemas, local: pipeline.input_schemas(uid)[0]},
    )
