"""An author's declarations: operators, and how the records of one reach the subtasks of another.

Owns the kinds of edges. `graph_rules` decides which declarations make a graph, `graph` which nodes
run together.
"""

from dataclasses import dataclass
from enum import StrEnum

from pipelines.domain.ids import Uid


class NodeKind(StrEnum):
    SOURCE = "source"
    OPERATOR = "operator"
    SINK = "sink"


class EdgeKind(StrEnum):
    """Which subtasks of the reader get a record. Source: Flink's `StreamPartitioner`s."""

    FORWARD = "forward"  # the subtask with the sender's index
    HASH = "hash"  # the owner of the record's key
    REBALANCE = "rebalance"  # each in turn
    BROADCAST = "broadcast"  # all

    def peers(self, subtask: int, parallelism: int) -> range:
        """The subtasks at the other end of an edge with which `subtask` shares a channel."""
        return range(subtask, subtask + 1) if self is EdgeKind.FORWARD else range(parallelism)


@dataclass(frozen=True, slots=True)
class Connection:
    """One input of a node, by the hash of columns if there are any, else as `unkeyed` says.

    `side` names a side output of `upstream`; None: its main output.
    """

    upstream: Uid
    hash_by: tuple[str, ...] | None = None
    unkeyed: EdgeKind = EdgeKind.FORWARD
    side: str | None = None
    is_anchored: bool = True  # mode ACKED: the source waits for the records of this connection
    time_column: str | None = None  # the event time of the records

    @property
    def kind(self) -> EdgeKind:
        return self.unkeyed if self.hash_by is None else EdgeKind.HASH


@dataclass(frozen=True, slots=True)
class Node:
    """An operator as the author named it. The index of a connection is its port."""

    uid: Uid
    kind: NodeKind
    inputs: tuple[Connection, ...] = ()

    @property
    def is_chained(self) -> bool:
        return len(self.inputs) == 1 and self.inputs[0].kind is EdgeKind.FORWARD
