"""An author's declarations: operators, and how the records of one reach the subtasks of another.

Owns the kinds of edges, and decides which declarations make a graph; each refusal is a sentence
that names the uid. Also decides which nodes have a parallelism of their own, and how records get
from one parallelism to another. `graph` decides which nodes run together.
"""

import re
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace
from enum import StrEnum
from graphlib import CycleError, TopologicalSorter

from pipelines.domain.errors import Rejected, check
from pipelines.domain.ids import Uid


class NodeKind(StrEnum):
    SOURCE = "source"
    OPERATOR = "operator"
    SINK = "sink"


class EdgeKind(StrEnum):
    """The subtasks of the reader that get a record. Source: Flink's `StreamPartitioner`s."""

    FORWARD = "forward"  # the subtask with the sender's index
    HASH = "hash"  # the owner of the record's key
    REBALANCE = "rebalance"  # each in turn
    BROADCAST = "broadcast"  # all

    def peers(self, subtask: int, parallelism: int) -> range:
        """Returns the subtasks at the other end of an edge that share a channel with `subtask`.

        `parallelism` is that of the other end; both ends of a FORWARD edge have the same."""
        return range(subtask, subtask + 1) if self is EdgeKind.FORWARD else range(parallelism)


@dataclass(frozen=True, slots=True)
class Connection:
    """One input of a node: by the hash of columns if there are any, else as `unkeyed` says.

    `side` names a side output of `upstream`; None means its main output. A forward connection
    between two parallelisms becomes a rebalance, or a hash of `keeps_order_of` if rows with equal
    values there must not overtake each other.
    """

    upstream: Uid
    hash_by: tuple[str, ...] | None = None
    unkeyed: EdgeKind = EdgeKind.FORWARD
    side: str | None = None
    is_anchored: bool = True  # mode ACKED: the source waits for the records of this connection
    time_column: str | None = None  # the event time of the records
    _: KW_ONLY
    keeps_order_of: tuple[str, ...] = ()

    @property
    def kind(self) -> EdgeKind:
        return self.unkeyed if self.hash_by is None else EdgeKind.HASH


@dataclass(frozen=True, slots=True)
class Node:
    """An operator as the author named it. The index of a connection is its port.

    With `assigns_event_time`, watermarks of its input end at it, and those behind it are its own. A
    `parallelism` of None means that of the run. With `follows_input`, it has the parallelism of the
    node in front of it, like a step of another operator or a reader of a side output.
    """

    uid: Uid
    kind: NodeKind
    inputs: tuple[Connection, ...] = ()
    assigns_event_time: bool = False
    starts_chain: bool = False
    _: KW_ONLY
    parallelism: int | None = None
    follows_input: bool = False

    @property
    def is_chained(self) -> bool:
        is_forward = len(self.inputs) == 1 and self.inputs[0].kind is EdgeKind.FORWARD
        return is_forward and not self.starts_chain


# A uid is part of names of files, channels and counters, so it has no special characters.
UID_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")


def check_each_node(nodes: Sequence[Node]) -> None:
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
    check(
        connection.side is None or (node.is_chained and node.follows_input),
        "a side output is read by a chained node with its parallelism",
        uid=node.uid,
    )


def in_topological_order(nodes: Sequence[Node]) -> tuple[Node, ...]:
    by_uid = {node.uid: node for node in nodes}
    sorter = TopologicalSorter({n.uid: [c.upstream for c in n.inputs] for n in nodes})
    try:
        return tuple(by_uid[uid] for uid in sorter.static_order())
    except CycleError as error:
        cycle = " -> ".join(repr(uid) for uid in error.args[1])
        raise Rejected(f"The pipeline reads from itself: {cycle}.") from error


def with_parallelisms(ordered: Sequence[Node]) -> tuple[Node, ...]:
    """Gives nodes that follow their input its parallelism.

    Also turns forward connections between two parallelisms into exchanges. Whether two are equal
    does not depend on the run's.
    """
    placed: dict[Uid, Node] = {}
    for node in ordered:
        own = (
            placed[node.inputs[0].upstream].parallelism if node.follows_input else node.parallelism
        )
        inputs = tuple(_between(placed[c.upstream].parallelism, own, c) for c in node.inputs)
        placed[node.uid] = replace(node, parallelism=own, inputs=inputs)
    return tuple(placed.values())


def _between(upstream: int | None, own: int | None, connection: Connection) -> Connection:
    if upstream == own or connection.kind is not EdgeKind.FORWARD:
        return connection
    if connection.keeps_order_of and own != 1:
        return replace(connection, hash_by=connection.keeps_order_of)
    return replace(connection, unkeyed=EdgeKind.REBALANCE)


def check_parallelisms(nodes: Sequence[Node], max_parallelism: int) -> None:
    """Raises Rejected naming a node that would have more subtasks than there are key groups."""
    for node in nodes:
        if node.parallelism is not None and not 1 <= node.parallelism <= max_parallelism:
            raise Rejected(
                f"The parallelism of {node.uid!r} cannot be {node.parallelism}; choose 1 to"
                f" {max_parallelism}, the maximum parallelism of this pipeline."
            )


def check_leads_to_sink(ordered: Sequence[Node]) -> None:
    """Every node without a reader must be a sink: its output would be computed in vain."""
    read = {connection.upstream for node in ordered for connection in node.inputs}
    for node in ordered:
        if node.kind is not NodeKind.SINK and node.uid not in read:
            raise Rejected(f"The output of {node.uid!r} reaches no sink; add one or remove it.")
