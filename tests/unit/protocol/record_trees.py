"""Random trees of records: spouts, joins, unanchored records, and messages in any order.

The model tracks the open records of each tree without any XOR. The tests compare the acker with it.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from pipelines.protocol.acking import Acker, Ids, Settled, ackers_of, tree_ids

Message = tuple[Callable[[Acker], list[Settled]], int]
Item = TypeVar("Item")
RECORDS_MAX = 100
DEPTH_MAX = 4


@dataclass(frozen=True, slots=True)
class Record:
    edges: dict[int, int]  # tree -> id of the edge
    depth: int = 1


@dataclass
class Trees:
    """`losing` and `failing` are the shares of records that are lost or fail."""

    seed: int
    losing: float = 0.0
    failing: float = 0.0
    begun: list[int] = field(default_factory=list)
    acked: list[int] = field(default_factory=list)
    failed: list[int] = field(default_factory=list)
    damaged: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._rng = np.random.default_rng(self.seed)
        count = int(self._rng.integers(1, 5))
        self._ackers = [Acker(index=i, count=count) for i in range(count)]
        self._spouts = int(self._rng.integers(1, 4))
        self._numbers = Counter[int]()
        self._records: list[Record] = []
        self._open = Counter[int]()
        self._messages: list[Message] = []
        self._left = int(self._rng.integers(1, RECORDS_MAX))
        self._new: list[int] = []

    def step(self) -> bool:
        """Makes one random event happen. Returns False if none is left."""
        possible = [
            *([self._begin] if self._left else []),
            *([self._process] if self._records else []),
            *([self._deliver] if self._messages else []),
        ]
        if possible:
            possible[self._rng.integers(len(possible))]()
        return bool(possible)

    def newly_acked(self) -> list[int]:
        new, self._new = self._new, []
        return new

    def open_records_of(self, tree: int) -> int:
        return self._open[tree]

    def _begin(self) -> None:
        """A spout emits some records, each the root of a tree, with 0 to 2 edges each."""
        spout = int(self._rng.integers(self._spouts))
        count = min(self._left, int(self._rng.integers(1, 20)))
        self._left -= count
        numbers = np.arange(self._numbers[spout], self._numbers[spout] + count)
        self._numbers[spout] += count
        trees = tree_ids(spout, numbers)
        self.begun = sorted([*self.begun, *trees.tolist()])
        self._say("init", [item for tree in trees.tolist() for item in self._emit([tree]).items()])

    def _process(self) -> None:
        """Processes some records of any trees, each by itself or all joined."""
        count = min(len(self._records), int(self._rng.integers(1, 4)))
        taken = [_pop(self._records, self._rng) for _ in range(count)]
        if self._rng.random() < 0.3:
            self._process_together(taken)
            return
        for record in taken:
            chance = self._rng.random()
            if chance < self.losing + self.failing:
                self._damage(record, is_failed=chance >= self.losing)
            else:
                self._process_together([record])

    def _process_together(self, records: list[Record]) -> None:
        """Processes the records as one; the output is anchored to all of their trees."""
        trees = sorted({tree for record in records for tree in record.edges})
        depth = max(record.depth for record in records)
        values = self._emit(trees if depth < DEPTH_MAX else [], depth + 1)
        for record in records:
            self._open.subtract(record.edges.keys())
            for tree, edge in record.edges.items():
                values[tree] = values.get(tree, 0) ^ edge
        self._say("ack", list(values.items()))

    def _damage(self, record: Record, *, is_failed: bool) -> None:
        self.damaged.update(record.edges)
        if is_failed:
            self._say("fail", [(tree, 0) for tree in record.edges])

    def _emit(self, trees: list[int], depth: int = 1) -> dict[int, int]:
        """Emits 0 to 2 records anchored to all these trees; returns their edges, XORed by tree."""
        total = dict.fromkeys(trees, 0)
        for _ in range(self._rng.integers(0, 3)):
            edges = {t: int(self._rng.integers(0, 2**64, dtype=np.uint64)) for t in trees}
            self._records.append(Record(edges, depth))
            self._open.update(edges.keys())
            total = {t: total[t] ^ edges[t] for t in total}
        return total

    def _say(self, kind: str, said: list[tuple[int, int]]) -> None:
        """Queues one message for each acker that owns a tree. They are delivered in any order."""
        trees = np.array([t for t, _ in said], np.uint64)
        edges = np.array([e for _, e in said], np.uint64)
        owners = ackers_of(trees, len(self._ackers))
        for index in np.unique(owners):
            mine = owners == index
            self._messages.append((_message(kind, trees[mine], edges[mine]), int(index)))

    def _deliver(self) -> None:
        tell, index = _pop(self._messages, self._rng)
        for verdict in tell(self._ackers[index]):
            acked = tree_ids(verdict.spout, verdict.acked).tolist()
            self.acked += acked
            self._new += acked
            self.failed += tree_ids(verdict.spout, verdict.failed).tolist()


def _pop(items: list[Item], rng: np.random.Generator) -> Item:
    return items.pop(int(rng.integers(len(items))))


def _message(kind: str, trees: Ids, edges: Ids) -> Callable[[Acker], list[Settled]]:
    match kind:
        case "init":
            return lambda acker: acker.on_init(trees, edges)
        case "ack":
            return lambda acker: acker.on_ack(trees, edges)
        case _:
            return lambda acker: acker.on_fail(trees)
