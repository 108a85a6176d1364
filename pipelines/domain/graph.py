"""The job graph: the operators, their connections, and which of them run in one subtask.

Owns validation of the shape, and chaining. A node with exactly one input, a forward one, joins the
vertex of its upstream node, unless it starts a chain. So a vertex is a tree of chained nodes, and
only its head reads from other vertices. The kind of an edge between vertices says where a record
goes: to the owner of its key, to each subtask in turn, to all, or to the subtask with the sender's
index (if a head has several inputs, or starts a chain). All nodes of a vertex have one parallelism,
their own or the run's. A slot hosts subtask i of every vertex that has one, as Flink's slot sharing
does. Does not know what an operator does.

Source: Flink's `StreamingJobGraphGenerator` (chaining); trees instead of chains with side edges.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from pipelines.domain.errors import check
from pipelines.domain.events import VertexShape
from pipelines.domain.ids import ChannelId, Uid, channel_id
from pipelines.domain.key_groups import DEFAULT_MAX_PARALLELISM
from pipelines.domain.nodes import (
    Connection,
    EdgeKind,
    Node,
    NodeKind,
    check_each_node,
    check_leads_to_sink,
    check_parallelisms,
    in_topological_order,
    with_parallelisms,
)

__all__ = [
    "Connection",
    "EdgeKind",
    "JobGraph",
    "Node",
    "NodeKind",
    "OutEdge",
    "Vertex",
    "VertexInput",
]

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class VertexInput:
    """An exchange into the head of a vertex. `hash_by` is empty unless it is a HASH edge."""

    port: int
    upstream_vertex: Uid
    upstream_node: Uid  # which node of the upstream vertex emits these records
    hash_by: tuple[str, ...]
    kind: EdgeKind = EdgeKind.HASH
    is_anchored: bool = True
    time_column: str | None = None


@dataclass(frozen=True, slots=True)
class Vertex:
    """Nodes that run in one subtask. `uid` is the head's; `nodes` are in topological order.

    A `parallelism` of None means that of the run."""

    uid: Uid
    nodes: tuple[Uid, ...]
    inputs: tuple[VertexInput, ...]
    parallelism: int | None = None


@dataclass(frozen=True, slots=True)
class OutEdge:
    """The other end of a `VertexInput`, as the emitting node sees it."""

    downstream_vertex: Uid
    port: int
    hash_by: tuple[str, ...]
    kind: EdgeKind = EdgeKind.HASH
    is_anchored: bool = True


@dataclass(frozen=True, slots=True)
class JobGraph:
    """A valid graph: build it with `of`. `nodes` and `vertices` are in topological order."""

    nodes: tuple[Node, ...]
    vertices: tuple[Vertex, ...]
    max_parallelism: int = DEFAULT_MAX_PARALLELISM

    @classmethod
    def of(
        cls, nodes: Iterable[Node], max_parallelism: int = DEFAULT_MAX_PARALLELISM
    ) -> "JobGraph":
        """Raises Rejected with a sentence that names the uid at fault."""
        declared = tuple(nodes)
        check_each_node(declared)
        ordered = in_topological_order(declared)
        check_leads_to_sink(ordered)
        check_parallelisms(ordered, max_parallelism)
        placed = with_parallelisms(ordered)
        return cls(placed, _chain(placed), max_parallelism)

    def node(self, uid: Uid) -> Node:
        return _only((node for node in self.nodes if node.uid == uid), uid)

    def vertex(self, uid: Uid) -> Vertex:
        return _only((vertex for vertex in self.vertices if vertex.uid == uid), uid)

    def successors_in_chain(self, node: Uid, side: str | None = None) -> tuple[Uid, ...]:
        """The nodes that get the batches of this node's main or side output by direct calls."""
        return tuple(
            n.uid
            for n in self.nodes
            if n.is_chained and (n.inputs[0].upstream, n.inputs[0].side) == (node, side)
        )

    def assigner_of(self, node: Uid) -> Uid | None:
        """Returns the operator before it in its chain that assigns the event time the node sees.

        None means that it sees the event time of the chain's input.
        """
        each = self.node(node)
        while each.is_chained:
            each = self.node(each.inputs[0].upstream)
            if each.assigns_event_time:
                return each.uid
        return None

    def side_outputs_of(self, node: Uid) -> frozenset[str]:
        """The side outputs that have a reader."""
        inputs = (connection for each in self.nodes for connection in each.inputs)
        return frozenset(c.side for c in inputs if c.upstream == node and c.side is not None)

    def outputs_of(self, node: Uid) -> tuple[OutEdge, ...]:
        """The exchanges that this node's batches enter."""
        return tuple(
            OutEdge(vertex.uid, edge.port, edge.hash_by, edge.kind, edge.is_anchored)
            for vertex in self.vertices
            for edge in vertex.inputs
            if edge.upstream_node == node
        )

    def parallelism_of(self, vertex: Uid, parallelism: int) -> int:
        """How many subtasks the vertex has in a run of this parallelism."""
        return self.vertex(vertex).parallelism or parallelism

    def slot_count(self, parallelism: int) -> int:
        """How many slots a run of this parallelism needs."""
        return max(vertex.parallelism or parallelism for vertex in self.vertices)

    @property
    def own_parallelisms(self) -> dict[Uid, int]:
        """The parallelism of each node that does not use the run's."""
        return {n.uid: n.parallelism for n in self.nodes if n.parallelism is not None}

    def check_fits(self, max_parallelism: int) -> None:
        """Raises Rejected naming a node with more subtasks than the run has key groups."""
        check_parallelisms(self.nodes, max_parallelism)

    def channels(self, parallelism: int) -> list[ChannelId]:
        """Every channel of every exchange, named after the vertices at its ends."""
        return [
            channel_id(edge.upstream_vertex, source, vertex.uid, edge.port, target)
            for vertex in self.vertices
            for edge in vertex.inputs
            for source in range(self.parallelism_of(edge.upstream_vertex, parallelism))
            for target in edge.kind.peers(source, vertex.parallelism or parallelism)
        ]

    def shape(self) -> list[VertexShape]:
        return [self._shape_of(vertex) for vertex in self.vertices]

    def _shape_of(self, vertex: Vertex) -> VertexShape:
        kinds = {self.node(uid).kind for uid in vertex.nodes}
        return VertexShape(
            uid=vertex.uid,
            operators=list(vertex.nodes),
            inputs=[edge.upstream_vertex for edge in vertex.inputs],
            edges=[edge.kind for edge in vertex.inputs],
            is_source=NodeKind.SOURCE in kinds,
            is_sink=NodeKind.SINK in kinds,
            parallelism=vertex.parallelism,
        )


def _chain(ordered: Sequence[Node]) -> tuple[Vertex, ...]:
    head_of: dict[Uid, Uid] = {}
    for node in ordered:
        head_of[node.uid] = head_of[node.inputs[0].upstream] if node.is_chained else node.uid
    return tuple(
        Vertex(
            head.uid,
            tuple(node.uid for node in ordered if head_of[node.uid] == head.uid),
            tuple(_vertex_inputs(head, head_of)),
            head.parallelism,
        )
        for head in ordered
        if not head.is_chained
    )


def _vertex_inputs(head: Node, head_of: dict[Uid, Uid]) -> Iterable[VertexInput]:
    for port, connection in enumerate(head.inputs):
        upstream, hash_by = connection.upstream, connection.hash_by or ()
        kind, is_anchored = connection.kind, connection.is_anchored
        time_column = connection.time_column
        yield VertexInput(
            port=port,
            upstream_vertex=head_of[upstream],
            upstream_node=upstream,
            hash_by=hash_by,
            kind=kind,
            is_anchored=is_anchored,
            time_column=time_column,
        )


def _only(found: Iterable[_T], uid: Uid) -> _T:
    matches = list(found)
    check(len(matches) == 1, "the graph knows each uid once", uid=uid)
    return matches[0]
