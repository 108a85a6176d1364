"""Storm's acker: decides whether all that descends from a spout's record has been processed.

Every record that travels between two subtasks is an edge of a tree and has a random 64-bit id. Two
subtasks XOR this id into the tree: the one that sends the record and the one that has processed it.
So the tree's value is 0 when nothing of it is under way, in whatever order the messages come in. A
tree costs 9 bytes, however large it is. A value may also be 0 by chance: each message that leaves
work under way does this with a probability of 2**-64. Then a record counts as processed though it
is not; Storm accepts this, too.

Pure: no clock, no I/O. Messages are arrays, and one message covers many trees. Does not report
trees that never settle: the spout gives them up itself (`protocol.spout`).

Source: Storm, `org.apache.storm.daemon.Acker`; JStorm's is the same.
"""

from dataclasses import dataclass

import numpy as np

from pipelines.domain.errors import check
from pipelines.protocol.trees import (
    SETTLED,
    Ids,
    Numbers,
    RotatingTrees,
    numbers_of,
    spouts_of,
)

BUCKET_COUNT = 3
"""As in Storm's acker: an unsettled tree is forgotten between two and three rotations later."""

_INITIALISED = 1
_FAILED = 2


@dataclass(frozen=True, slots=True)
class Verdict:
    """Which trees of a spout are processed, and which have failed."""

    spout: int
    acked: Numbers
    failed: Numbers


@dataclass(frozen=True, slots=True)
class AckerStatistics:
    init_count: int
    ack_count: int  # one per record and tree it belongs to, however many came in one message
    fail_count: int
    late_count: int  # messages about trees that are forgotten or settled
    acked_count: int  # trees


class Acker:
    """Follows the trees whose number is `index` modulo `count`.

    Guarantee: a tree is acked once, when its spout has announced it and each edge was XORed twice;
    or it fails once, when its spout has announced it and any of its records has failed. Later
    messages about it change nothing. Needs edge ids that are drawn at random, and one message that
    XORs an edge together with the edges that came out of it.
    """

    def __init__(self, *, index: int, count: int) -> None:
        check(0 <= index < count, "an acker is one of several", index=index, count=count)
        self._index = index
        self._count = count
        self._spouts: dict[int, RotatingTrees] = {}
        self._init_count = self._ack_count = self._fail_count = 0
        self._late_count = self._acked_count = 0

    def on_init(self, trees: Ids, edges: Ids) -> list[Verdict]:
        """A spout has begun each of these trees with these edges, XORed."""
        self._init_count += len(trees)
        return self._on_message(trees, edges, _INITIALISED)

    def on_ack(self, trees: Ids, edges: Ids) -> list[Verdict]:
        """Records were processed: their own edge, XORed with those that came out of them."""
        self._ack_count += len(trees)
        return self._on_message(trees, edges, 0)

    def on_fail(self, trees: Ids) -> list[Verdict]:
        """A record of each of these trees could not be processed."""
        self._fail_count += len(trees)
        return self._on_message(trees, np.zeros(len(trees), np.uint64), _FAILED)

    def rotate(self) -> None:
        """A timeout has passed: forget trees that have been here for `BUCKET_COUNT` timeouts."""
        for kept in self._spouts.values():
            kept.rotate()

    def statistics(self) -> AckerStatistics:
        return AckerStatistics(
            self._init_count,
            self._ack_count,
            self._fail_count,
            self._late_count,
            self._acked_count,
        )

    def _on_message(self, trees: Ids, edges: Ids, mark: int) -> list[Verdict]:
        check(len(trees) == len(edges), "each tree comes with its edges")
        spouts, numbers = spouts_of(trees), numbers_of(trees)
        check(bool((numbers % self._count == self._index).all()), "a tree has one acker")
        verdicts = []
        for spout in np.unique(spouts):
            mine = spouts == spout
            verdicts.append(self._update(int(spout), numbers[mine], edges[mine], mark))
        return [v for v in verdicts if len(v.acked) or len(v.failed)]

    def _update(self, spout: int, numbers: Numbers, edges: Ids, mark: int) -> Verdict:
        kept = self._spouts.setdefault(spout, RotatingTrees(BUCKET_COUNT))
        places, is_kept = kept.find(numbers // self._count)  # without gaps again
        is_open = kept.states[places] != SETTLED
        places, edges = places[is_open], edges[is_kept][is_open]
        self._late_count += len(numbers) - len(places)
        np.bitwise_xor.at(kept.values, places, edges)
        kept.states[places] |= np.uint8(mark)
        return self._settle(spout, kept, np.unique(places))

    def _settle(self, spout: int, kept: RotatingTrees, places: Numbers) -> Verdict:
        states = kept.states[places]
        acked = places[(states == _INITIALISED) & (kept.values[places] == 0)]
        failed = places[states == (_INITIALISED | _FAILED)]
        kept.states[acked] = kept.states[failed] = SETTLED
        self._acked_count += len(acked)
        return Verdict(spout, self._numbers(kept, acked), self._numbers(kept, failed))

    def _numbers(self, kept: RotatingTrees, places: Numbers) -> Numbers:
        return (places + kept.base) * self._count + self._index
