"""The job graph: which operators there are, who reads from whom, and which run in one subtask.

Owns validation of the shape and chaining. A node with exactly one input, and that one forward,
joins the vertex of its upstream node; so a vertex is a tree of chained nodes, only its head reads
from other vertices, and every edge between vertices is an all-to-all exchange by the hash of some
columns. Knows nothing of what an operator does.

Source: Flink's `StreamingJobGraphGenerator` (chaining); trees instead of chains with side edges.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from graphlib import CycleError, TopologicalSorter
from typing import TypeVar

from pipelines.domain.errors import Rejected, check
from pipelines.domain.events import VertexShape
from pipelines.domain.ids import ChannelId, Uid, channel_id
from pipelines.domain.key_groups import DEFAULT_MAX_PARALLELISM

_T = TypeVar("_T")

# A uid names files, channels and counters, so it holds nothing that any of these treats specially.
UID_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")


class NodeKind(StrEnum):
    SOURCE = "source"
    OPERATOR = "operator"
    SINK = "sink"


@dataclass(frozen=True, slots=True)
class Connection:
    """One input of a node. `hash_by` None: forward, each subtask to the one with its index."""

    upstream: Uid
    hash_by: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Node:
    """An operator as the author named it. The position of a connection is its port."""

    uid: Uid
    kind: NodeKind
    inputs: tuple[Connection, ...] = ()

    @property
    def is_chained(self) -> bool:
        return len(self.inputs) == 1 and self.inputs[0].hash_by is None


@dataclass(frozen=True, slots=True)
class VertexInput:
    """An exchange into the head of a vertex: every upstream subtask sends to every one here."""

    port: int
    upstream_vertex: Uid
    upstream_node: Uid  # which node of the upstream vertex emits these records
    hash_by: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Vertex:
    """Nodes that run in one subtask. `uid` is the head's; `nodes` are in topological order."""

    uid: Uid
    nodes: tuple[Uid, ...]
    inputs: tuple[VertexInput, ...]


@dataclass(frozen=True, slots=True)
class OutEdge:
    """The other end of a `VertexInput`, as the emitting node sees it."""

    downstream_vertex: Uid
    port: int
    hash_by: tuple[str, ...]


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
        _check_each_node(declared)
        ordered = _in_topological_order(declared)
        _check_leads_to_sink(ordered)
        return cls(ordered, _chain(ordered), max_parallelism)

    def node(self, uid: Uid) -> Node:
        return _only((node for node in self.nodes if node.uid == uid), uid)

    def vertex(self, uid: Uid) -> Vertex:
        return _only((vertex for vertex in self.vertices if vertex.uid == uid), uid)

    def vertex_of(self, node: Uid) -> Vertex:
        return _only((vertex for vertex in self.vertices if node in vertex.nodes), node)

    def successors_in_chain(self, node: Uid) -> tuple[Uid, ...]:
        """The nodes that get this node's batches by a direct call."""
        return tuple(n.uid for n in self.nodes if n.is_chained and n.inputs[0].upstream == node)

    def outputs_of(self, node: Uid) -> tuple[OutEdge, ...]:
        """The exchanges that this node's batches enter."""
        return tuple(
            OutEdge(vertex.uid, edge.port, edge.hash_by)
            for vertex in self.vertices
            for edge in vertex.inputs
            if edge.upstream_node == node
        )

    def channels(self, parallelism: int) -> list[ChannelId]:
        """Every channel of every exchange, named after the vertices at its ends."""
        subtasks = range(parallelism)
        return [
            channel_id(edge.upstream_vertex, source, vertex.uid, edge.port, target)
            for vertex in self.vertices
            for edge in vertex.inputs
            for source in subtasks
            for target in subtasks
        ]

    def shape(self) -> list[VertexShape]:
        return [self._shape_of(vertex) for vertex in self.vertices]

    def _shape_of(self, vertex: Vertex) -> VertexShape:
        kinds = {self.node(uid).kind for uid in vertex.nodes}
        return VertexShape(
            uid=vertex.uid,
            operators=list(vertex.nodes),
            inputs=[edge.upstream_vertex for edge in vertex.inputs],
            is_source=NodeKind.SOURCE in kinds,
            is_sink=NodeKind.SINK in kinds,
        )


def _check_each_node(nodes: Sequence[Node]) -> None:
    if not nodes:
        raise Rejected("The pipeline is empty: it needs at least a source and a sink.")
    seen: dict[Uid, Node] = {}
    for node in nodes:
        if not UID_PATTERN.fullmatch(node.uid):
            raise Rejected(
                f"The uid {node.uid!r} cannot be used: a uid is 1 to 100 letters, digits, '_', '.'"
                " or '-' and starts with a letter or digit."
            )
        if node.uid in seen:
            raise Rejected(f"The uid {node.uid!r} is used twice; each operator needs its own.")
        seen[node.uid] = node
    for node in nodes:
        _check_inputs(node, seen)


def _check_inputs(node: Node, by_uid: dict[Uid, Node]) -> None:
    if node.kind is NodeKind.SOURCE and node.inputs:
        raise Rejected(f"The source {node.uid!r} has an input; a source only produces.")
    if node.kind is not NodeKind.SOURCE and not node.inputs:
        raise Rejected(f"The {node.kind} {node.uid!r} has no input.")
    if node.kind is NodeKind.SINK and len(node.inputs) > 1:
        raise Rejected(f"The sink {node.uid!r} has {len(node.inputs)} inputs; a sink takes one.")
    for connection in node.inputs:
        _check_connection(node, connection, by_uid)


def _check_connection(node: Node, connection: Connection, by_uid: dict[Uid, Node]) -> None:
    upstream = by_uid.get(connection.upstream)
    if upstream is None:
        raise Rejected(f"{node.uid!r} reads from {connection.upstream!r}, which does not exist.")
    if upstream.kind is NodeKind.SINK:
        raise Rejected(f"{node.uid!r} reads from the sink {upstream.uid!r}; a sink emits nothing.")
    if connection.hash_by == ():
        raise Rejected(f"The input of {node.uid!r} is hashed by no column; name at least one.")
    if connection.hash_by is None and len(node.inputs) > 1:
        raise Rejected(
            f"{node.uid!r} has several inputs and reads {connection.upstream!r} without a key;"
            " each of several inputs must be keyed."
        )


def _in_topological_order(nodes: Sequence[Node]) -> tuple[Node, ...]:
    by_uid = {node.uid: node for node in nodes}
    sorter = TopologicalSorter({n.uid: [c.upstream for c in n.inputs] for n in nodes})
    try:
        return tuple(by_uid[uid] for uid in sorter.static_order())
    except CycleError as error:
        cycle = " -> ".join(repr(uid) for uid in error.args[1])
        raise Rejected(f"The pipeline reads from itself: {cycle}.") from error


def _check_leads_to_sink(ordered: Sequence[Node]) -> None:
    """Every node without a reader must be a sink: what nobody reads would be computed in vain."""
    read = {connection.upstream for node in ordered for connection in node.inputs}
    for node in ordered:
        if node.kind is not NodeKind.SINK and node.uid not in read:
            raise Rejected(f"The output of {node.uid!r} reaches no sink; add one or remove it.")


def _chain(ordered: Sequence[Node]) -> tuple[Vertex, ...]:
    head_of: dict[Uid, Uid] = {}
    for node in ordered:
        head_of[node.uid] = head_of[node.inputs[0].upstream] if node.is_chained else node.uid
    return tuple(
        Vertex(
            head.uid,
            tuple(node.uid for node in ordered if head_of[node.uid] == head.uid),
            tuple(_vertex_inputs(head, head_of)),
        )
        for head in ordered
        if not head.is_chained
    )


def _vertex_inputs(head: Node, head_of: dict[Uid, Uid]) -> Iterable[VertexInput]:
    for port, connection in enumerate(head.inputs):
        check(connection.hash_by is not None, "only exchanges lead into a vertex", uid=head.uid)
        hash_by = connection.hash_by or ()
        yield VertexInput(port, head_of[connection.upstream], connection.upstream, hash_by)


def _only(found: Iterable[_T], uid: Uid) -> _T:
    matches = list(found)
    check(len(matches) == 1, "the graph knows each uid once", uid=uid)
    return matches[0]
