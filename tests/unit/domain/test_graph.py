"""The job graph: chains, exchanges, and the shapes that are refused by uid."""

import random

import pytest

from pipelines.domain.errors import Rejected
from pipelines.domain.graph import (
    Connection,
    EdgeKind,
    JobGraph,
    Node,
    NodeKind,
    OutEdge,
    VertexInput,
)
from pipelines.domain.ids import Uid


def test_forward_nodes_join_the_vertex_of_their_upstream_as_a_tree() -> None:
    graph = JobGraph.of([source("s"), operator("f", "s"), sink("x", "f"), sink("y", "f")])

    assert [v.uid for v in graph.vertices] == ["s"]
    assert graph.vertex("s").nodes == ("s", "f", "x", "y")
    assert graph.successors_in_chain(Uid("f")) == ("x", "y")


def test_a_hashed_input_starts_a_vertex_that_knows_its_upstream() -> None:
    graph = two_inputs()

    assert [v.uid for v in graph.vertices] == ["left", "right", "join"]
    assert graph.vertex("join").inputs == (
        VertexInput(port=0, upstream_vertex=Uid("left"), upstream_node=Uid("kept"), hash_by=("k",)),
        VertexInput(
            port=1, upstream_vertex=Uid("right"), upstream_node=Uid("right"), hash_by=("k",)
        ),
    )
    assert [v.uid for v in graph.vertices if Uid("out") in v.nodes] == ["join"]


def test_a_single_keyed_input_is_an_exchange_too() -> None:
    graph = JobGraph.of([source("s"), operator("o", ("s", "k")), sink("x", "o")])

    assert [v.uid for v in graph.vertices] == ["s", "o"]
    assert graph.outputs_of(Uid("s")) == (OutEdge(Uid("o"), 0, ("k",)),)
    assert graph.successors_in_chain(Uid("s")) == ()


def test_outputs_are_exchanges_and_exclude_chained_successors() -> None:
    graph = two_inputs()

    assert graph.outputs_of(Uid("kept")) == (OutEdge(Uid("join"), 0, ("k",)),)
    assert graph.outputs_of(Uid("left")) == ()
    assert graph.outputs_of(Uid("join")) == ()
    assert graph.successors_in_chain(Uid("left")) == ("kept",)


def test_an_exchange_has_a_channel_for_every_pair_of_subtasks() -> None:
    channels = two_inputs().channels(2)

    assert len(channels) == len(set(channels)) == 8
    assert channels[:3] == ["left[0]>join.0[0]", "left[0]>join.0[1]", "left[1]>join.0[0]"]


def test_a_vertex_may_feed_another_on_two_ports() -> None:
    graph = JobGraph.of([source("s"), operator("j", ("s", "a"), ("s", "b")), sink("x", "j")])

    assert graph.outputs_of(Uid("s")) == (
        OutEdge(Uid("j"), 0, ("a",)),
        OutEdge(Uid("j"), 1, ("b",)),
    )
    assert len(set(graph.channels(3))) == 18


def test_several_forward_inputs_are_exchanges_between_equal_indices() -> None:
    graph = JobGraph.of([source("a"), source("b"), operator("both", "a", "b"), sink("out", "both")])

    assert [v.uid for v in graph.vertices] == ["a", "b", "both"]
    assert graph.channels(2) == [
        "a[0]>both.0[0]",
        "a[1]>both.0[1]",
        "b[0]>both.1[0]",
        "b[1]>both.1[1]",
    ]


@pytest.mark.parametrize("kind", [EdgeKind.REBALANCE, EdgeKind.BROADCAST])
def test_a_dealt_unkeyed_input_starts_a_vertex_and_reaches_every_subtask(
    kind: EdgeKind,
) -> None:
    spread = Node(Uid("o"), NodeKind.OPERATOR, (Connection(Uid("s"), unkeyed=kind),))

    graph = JobGraph.of([source("s"), spread, sink("x", "o")])

    assert graph.vertex(Uid("o")).inputs == (
        VertexInput(
            port=0, upstream_vertex=Uid("s"), upstream_node=Uid("s"), hash_by=(), kind=kind
        ),
    )
    assert graph.outputs_of(Uid("s")) == (OutEdge(Uid("o"), 0, (), kind),)
    assert len(graph.channels(3)) == 9


def test_a_side_output_has_successors_of_its_own() -> None:
    read = Connection(Uid("o"), side="late")
    late = Node(Uid("late"), NodeKind.OPERATOR, (read,), follows_input=True)
    graph = JobGraph.of(
        [source("s"), operator("o", ("s", "k")), late, sink("x", "o"), sink("y", "late")]
    )

    assert graph.vertex(Uid("o")).nodes == ("o", "late", "x", "y")
    assert graph.successors_in_chain(Uid("o")) == ("x",)
    assert graph.successors_in_chain(Uid("o"), "late") == ("late",)
    assert graph.side_outputs_of(Uid("o")) == {"late"}


def test_the_shape_marks_sources_and_sinks() -> None:
    shape = {vertex.uid: vertex for vertex in two_inputs().shape()}

    assert (shape["left"].is_source, shape["left"].is_sink) == (True, False)
    assert (shape["join"].is_source, shape["join"].is_sink) == (False, True)
    assert shape["join"].inputs == ["left", "right"]
    assert shape["join"].edges == [EdgeKind.HASH, EdgeKind.HASH]
    assert shape["left"].operators == ["left", "kept"]


@pytest.mark.parametrize("seed", range(20))
def test_upstream_comes_first_in_any_order_of_declaration(seed: int) -> None:
    nodes = list(two_inputs().nodes)
    random.Random(seed).shuffle(nodes)

    graph = JobGraph.of(nodes)

    place = {node.uid: i for i, node in enumerate(graph.nodes)}
    assert all(place[c.upstream] < place[n.uid] for n in graph.nodes for c in n.inputs)
    vertex_place = {vertex.uid: i for i, vertex in enumerate(graph.vertices)}
    assert all(
        vertex_place[edge.upstream_vertex] < vertex_place[vertex.uid]
        for vertex in graph.vertices
        for edge in vertex.inputs
    )


@pytest.mark.parametrize(
    ("nodes", "sentence"),
    [
        ([], "empty"),
        ([("source", "s"), ("source", "s"), ("sink", "x", "s")], "'s' is used twice"),
        ([("source", "s"), ("sink", "x", "t")], "'x' reads from 't', which does not exist"),
        ([("source", "s", "s"), ("sink", "x", "s")], "source 's' has an input"),
        ([("source", "s"), ("operator", "o"), ("sink", "x", "o")], "operator 'o' has no input"),
        ([("source", "s"), ("sink", "x")], "sink 'x' has no input"),
        ([("source", "s"), ("sink", "x", "s"), ("sink", "y", "x")], "reads from the sink 'x'"),
        ([("source", "s"), ("sink", "x", ("s", "a"), ("s", "b"))], "sink 'x' has 2 inputs"),
        ([("source", "s"), ("operator", "o", "s")], "'o' reaches no sink"),
        ([("source", "s"), ("source", "t"), ("sink", "x", "s")], "'t' reaches no sink"),
        (
            [("operator", "o", "p"), ("operator", "p", "o"), ("sink", "x", "p")],
            "reads from itself",
        ),
        ([("source", "a b"), ("sink", "x", "a b")], "uid 'a b' cannot be used"),
        ([("source", "../s"), ("sink", "x", "../s")], "uid '../s' cannot be used"),
    ],
)
def test_an_impossible_graph_is_refused_by_uid(nodes: list[tuple[str, ...]], sentence: str) -> None:
    with pytest.raises(Rejected, match=sentence.replace("(", r"\(").replace(".", r"\.")):
        JobGraph.of([node(NodeKind(kind), uid, *inputs) for kind, uid, *inputs in nodes])


def test_a_key_without_columns_is_refused() -> None:
    keyed = Node(Uid("o"), NodeKind.OPERATOR, (Connection(Uid("s"), ()),))

    with pytest.raises(Rejected, match="input of 'o' is hashed by no column"):
        JobGraph.of([source("s"), keyed, sink("x", "o")])


def two_inputs() -> JobGraph:
    """left -> kept, then kept and right keyed into join, then a sink."""
    return JobGraph.of(
        [
            source("left"),
            source("right"),
            operator("kept", "left"),
            operator("join", ("kept", "k"), ("right", "k")),
            sink("out", "join"),
        ]
    )


Input = str | tuple[str, str]
"""The upstream uid, alone or with the column that the edge is hashed by."""


def source(uid: str) -> Node:
    return node(NodeKind.SOURCE, uid)


def operator(uid: str, *inputs: Input) -> Node:
    return node(NodeKind.OPERATOR, uid, *inputs)


def sink(uid: str, *inputs: Input) -> Node:
    return node(NodeKind.SINK, uid, *inputs)


def node(kind: NodeKind, uid: str, *inputs: Input) -> Node:
    return Node(Uid(uid), kind, tuple(connection(each) for each in inputs))


def connection(given: Input) -> Connection:
    if isinstance(given, str):
        return Connection(Uid(given))
    return Connection(Uid(given[0]), given[1:])
