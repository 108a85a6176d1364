"""Puts a step that combines rows in front of the exchange of windowed aggregations.

It takes whole rows to fill the side output of late rows, so where that output has a reader, the
step is left out. Only the finished pipeline shows that.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

from pipelines.domain.graph import EdgeKind, JobGraph, Node, NodeKind
from pipelines.domain.ids import Uid
from pipelines.domain.nodes import UID_PATTERN
from pipelines.operators.operator import Operator
from pipelines.operators.windowing.lateness import LATE
from pipelines.stream.pipeline import Pipeline
from pipelines.stream.ranking import LOCAL_SUFFIX

Combiners = Mapping[Uid, Callable[[], Operator]]
"""By the operator behind the exchange, what creates the step in front of it."""


def with_combiners(pipeline: Pipeline, combiners: Combiners) -> Pipeline:
    """The same pipeline, which combines rows in front of each of these operators if it may."""
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
