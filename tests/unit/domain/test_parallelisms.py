"""A parallelism per operator: where chains break, what edges become, how many slots a run needs."""

import pytest

from pipelines.domain.errors import Rejected
from pipelines.domain.graph import Connection, EdgeKind, JobGraph, Node, NodeKind
from pipelines.domain.ids import Uid, channel_ends
from pipelines.domain.run import RunSpec
from tests.unit.runtime.points import spec_of


def test_a_chain_breaks_where_the_parallelism_changes_and_records_are_dealt_there() -> None:
    graph = JobGraph.of([source("s"), operator("o", "s", own=2), operator("p", "o"), sink("x")])

    assert [vertex.nodes for vertex in graph.vertices] == [("s",), ("o",), ("p", "x")]
    assert [vertex.parallelism for vertex in graph.vertices] == [None, 2, None]
    edges = [edge.kind for vertex in graph.vertices for edge in vertex.inputs]
    assert edges == [EdgeKind.REBALANCE, EdgeKind.REBALANCE]
    assert graph.own_parallelisms == {"o": 2}


def test_equal_parallelisms_stay_in_one_chain_and_a_run_never_changes_the_vertices() -> None:
    """A chain breaks there even in a run at 2, so that the points of that run fit a run at 3."""
    nodes = [source("s", own=2), operator("o", "s", own=2), operator("p", "o"), sink("x")]

    assert [vertex.nodes for vertex in JobGraph.of(nodes).vertices] == [("s", "o"), ("p", "x")]


def test_keyed_and_broadcast_edges_keep_their_kind() -> None:
    keyed = Node(Uid("o"), NodeKind.OPERATOR, (Connection(Uid("s"), ("k",)),), parallelism=3)
    told = Connection(Uid("s"), unkeyed=EdgeKind.BROADCAST)
    both = Node(Uid("p"), NodeKind.OPERATOR, (Connection(Uid("o")), told), parallelism=2)
    graph = JobGraph.of([source("s"), keyed, both, sink("x")])

    assert [e.kind for e in graph.vertex(Uid("o")).inputs] == [EdgeKind.HASH]
    kinds = [e.kind for e in graph.vertex(Uid("p")).inputs]
    assert kinds == [EdgeKind.REBALANCE, EdgeKind.BROADCAST]


def test_a_sink_that_keeps_the_newest_row_of_a_key_gets_each_key_in_one_subtask() -> None:
    def kind_at(own: int | None) -> EdgeKind | None:
        read = Connection(Uid("s"), keeps_order_of=("k",))
        end = Node(Uid("x"), NodeKind.SINK, (read,), parallelism=own)
        vertex = JobGraph.of([source("s"), end]).vertices[-1]
        return vertex.inputs[0].kind if vertex.inputs else None

    assert kind_at(2) is EdgeKind.HASH
    assert kind_at(1) is EdgeKind.REBALANCE
    assert kind_at(None) is None


def test_every_channel_connects_two_existing_subtasks() -> None:
    graph = JobGraph.of([source("s"), operator("o", "s", own=4), operator("p", "o"), sink("x")])

    ends = [channel_ends(channel) for channel in graph.channels(2)]
    into_o = {(each.source, each.target) for each in ends if each.downstream == "o"}
    into_p = {(each.source, each.target) for each in ends if each.downstream == "p"}
    assert into_o == {(i, j) for i in range(2) for j in range(4)}
    assert into_p == {(i, j) for i in range(4) for j in range(2)}
    assert len(ends) == 16


def test_a_run_needs_as_many_slots_as_its_widest_operator_has_subtasks() -> None:
    graph = JobGraph.of([source("s"), operator("o", "s", own=4), sink("x", "o", own=1)])

    assert [graph.slot_count(parallelism) for parallelism in (1, 4, 6)] == [4, 4, 6]
    assert [graph.parallelism_of(Uid(uid), 6) for uid in ("s", "o", "x")] == [6, 4, 1]


def test_a_step_that_follows_its_input_stays_in_the_upstream_vertex() -> None:
    step = Node(Uid("o"), NodeKind.OPERATOR, (Connection(Uid("s")),), follows_input=True)

    graph = JobGraph.of([source("s", own=2), step, sink("x", "o")])

    assert graph.vertices[0].nodes == ("s", "o")


@pytest.mark.parametrize("own", [0, -1, 9])
def test_a_parallelism_beyond_the_key_groups_is_refused_by_uid(own: int) -> None:
    with pytest.raises(Rejected, match=f"parallelism of 'x' cannot be {own}; choose 1 to 8"):
        JobGraph.of([source("s"), sink("x", "s", own=own)], max_parallelism=8)


def test_a_run_with_fewer_key_groups_than_an_operator_has_subtasks_is_refused() -> None:
    graph = JobGraph.of([source("s"), sink("x", "s", own=9)])

    graph.check_fits(9)
    with pytest.raises(Rejected, match="parallelism of 'x' cannot be 9; choose 1 to 8"):
        graph.check_fits(8)


def test_local_spark_gets_at_least_one_thread_per_slot() -> None:
    def master(spec: RunSpec) -> str:
        return spec.on_slots(4).master

    assert master(spec_of(parallelism=2, master="local[2]")) == "local[4]"
    assert master(spec_of(parallelism=2, master="local[8]")) == "local[8]"
    assert master(spec_of(parallelism=2, master="spark://host:7077")) == "spark://host:7077"


def source(uid: str, own: int | None = None) -> Node:
    return Node(Uid(uid), NodeKind.SOURCE, parallelism=own)


def operator(uid: str, upstream: str, own: int | None = None) -> Node:
    inputs = (Connection(Uid(upstream)),)
    return Node(Uid(uid), NodeKind.OPERATOR, inputs, parallelism=own)


def sink(uid: str, upstream: str = "p", own: int | None = None) -> Node:
    return Node(Uid(uid), NodeKind.SINK, (Connection(Uid(upstream)),), parallelism=own)
