"""Audits a Kafka topic: written by transactions, or from a write-ahead log.

The ledger names the producer of each transaction, and no producer writes a second one. So the
auditor can tell a checkpoint's records from all others, wherever they lie in the log. From a
write-ahead log, each subtask's segments follow each other in order.

Records cannot be taken back. The auditor reports those of an abandoned run or checkpoint as records
that no checkpoint has, and also those that other programs wrote once this one had begun.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, combinations

import msgspec

from pipelines.audit.history import Cut, History, Point
from pipelines.audit.kafka_topic import Committed, TopicReading
from pipelines.audit.report import (
    Covers,
    Difference,
    Rows,
    compared,
    given,
    judged_by_cut,
    total,
    weaker,
)
from pipelines.connectors.kafka.sink import KafkaOwnership
from pipelines.connectors.write_ahead import Marker
from pipelines.domain.errors import UNDECODABLE
from pipelines.domain.ids import Uid
from pipelines.domain.ledger import SinkOutput

_PRODUCER = re.compile(r": producer (\d+)(?:,|$)")
_FIRST = re.compile(r"offsets ([\d,]+) to [\d,]+ of partition (\d+)")


class KafkaOutput:
    """Make `reading` after reading the journal, so that it has all that the journal commits."""

    def __init__(self, reading: TopicReading) -> None:
        self._reading = reading

    def stray(self, history: History, sink: Uid) -> Difference | None:
        """Other records in the log do not make a transaction wrong: see `beside`."""
        return None

    def judge(self, point: Point, sink: Uid) -> Difference | Covers:
        return judged_by_cut(point, sink, self._judge)

    def beside(self, later: History, sink: Uid) -> Difference | None:
        points = (*later.committed, *later.pending)
        outputs = chain.from_iterable(p.given_to(sink).values() for p in points)
        tokens = [token for each in chain(*outputs) for token in each.share.tokens]
        if later.unknown:
            return None
        return self._reading.told(self._reading.strangers(_producers_of(tokens)))

    def _judge(self, cut: Cut, outputs: Sequence[SinkOutput]) -> Difference | Covers:
        tokens = [token for output in outputs for token in output.share.tokens]
        if len(_producers_of(tokens)) < len(tokens) or any(map(self._is_deleted, tokens)):
            return Covers.NOTHING
        self._reading.wait_for_ends(_producers_of(tokens))
        writers = self._reading.writers
        parts = {t: writers.rows_of(p) for t in tokens for p in _producers_of([t])}
        still_open = [t for t in tokens for p in _producers_of([t]) if writers.is_open(p)]
        for token in still_open:
            return Difference(f"{token} has not ended.", cut, given(outputs), part=token)
        return compared(cut, outputs, parts)

    def _is_deleted(self, token: str) -> bool:
        """True if the topic no longer keeps all of it; the token may have no room for its place."""
        begins, places = self._reading.begins, _FIRST.findall(token)
        if not places:
            return any(begins.values())
        return any(
            int(first.replace(",", "")) < begins.get(int(partition), 0)
            for first, partition in places
        )


def _producers_of(tokens: Sequence[str]) -> set[int]:
    found = (_PRODUCER.search(token) for token in tokens)
    return {int(each[1]) for each in found if each}


SUBSETS_MAX = 10
"""Up to this many partitions, all subsets are tried."""


class PublishedSegments:
    """Takes off each segment once; count and digest prove that it is the right one."""

    def __init__(self, committed: Mapping[int, Sequence[Committed]]) -> None:
        self._committed = committed
        self._taken: dict[tuple[int, int], int] = {}  # by producer and partition

    def take(self, producer_id: int, expected: Rows) -> Covers | Rows:
        """Takes the producer's next segment; or returns what is there instead and leaves it."""
        heads = self._heads(producer_id)
        for chosen in _choices(heads):
            found = total(each.rows for each in chosen)
            is_digested = None not in (found.digest, expected.digest)
            if found.count == expected.count and (
                found.digest == expected.digest or not is_digested
            ):
                for each in chosen:
                    key = producer_id, each.partition
                    self._taken[key] = self._taken.get(key, 0) + 1
                return Covers.DIGESTED if is_digested else Covers.COUNTED
        return total(each.rows for each in heads)

    def left(self, producer_id: int) -> list[Committed]:
        return [each for of_one in self._left(producer_id).values() for each in of_one]

    def _heads(self, producer_id: int) -> list[Committed]:
        """What comes next on each partition, the earliest written first."""
        left = [of_one[0] for of_one in self._left(producer_id).values() if of_one]
        return sorted(left, key=lambda each: each.at_ms)

    def _left(self, producer_id: int) -> dict[int, list[Committed]]:
        left: dict[int, list[Committed]] = {}
        for each in self._committed.get(producer_id, ()):
            left.setdefault(each.partition, []).append(each)
        return {
            partition: of_one[self._taken.get((producer_id, partition), 0) :]
            for partition, of_one in left.items()
        }


def _choices(heads: Sequence[Committed]) -> Iterator[Sequence[Committed]]:
    for count in range(1, len(heads) + 1):
        yield heads[:count]
    if len(heads) <= SUBSETS_MAX:
        for count in range(1, len(heads)):
            yield from combinations(heads, count)


class KafkaLogOutput:
    """Make `reading` after reading the journal, so that it has all that the journal commits."""

    def __init__(self, reading: TopicReading, ownership: KafkaOwnership) -> None:
        self._reading = reading
        self._ownership = ownership
        self._producers: dict[str, int] = {}  # by transactional id, as far as Kafka knows them
        self._segments = PublishedSegments(reading.writers.committed)
        self._judged: set[Cut] = set()

    def stray(self, history: History, sink: Uid) -> Difference | None:
        """Other records in the log do not make a segment wrong: see `beside`."""
        self._learn_producers(history.committed, sink)
        return None

    def judge(self, point: Point, sink: Uid) -> Difference | Covers:
        return judged_by_cut(point, sink, self._judge)

    def beside(self, later: History, sink: Uid) -> Difference | None:
        """Output that only `later` has may be published or not."""
        points = (*later.committed, *later.pending)
        self._learn_producers(points, sink)
        for point in points:
            for cut, outputs in point.given_to(sink).items():
                if cut not in self._judged:
                    self._judge(cut, outputs)
        if later.unknown or self._has_lost_some:
            return None
        ours = set(self._producers.values())
        left = [each for producer_id in ours for each in self._segments.left(producer_id)]
        return self._reading.told([*left, *self._reading.strangers(ours)])

    @property
    def _has_lost_some(self) -> bool:
        """True if the log's beginning is deleted: then no segment can be identified."""
        return any(self._reading.begins.values())

    def _judge(self, cut: Cut, outputs: Sequence[SinkOutput]) -> Difference | Covers:
        self._judged.add(cut)
        covers = Covers.DIGESTED
        for output in outputs:
            judged = self._judge_one(cut, output)
            if isinstance(judged, Difference):
                return judged
            covers = weaker(covers, judged)
        return covers

    def _judge_one(self, cut: Cut, output: SinkOutput) -> Difference | Covers:
        producers = [self._producers.get(id_) for id_ in self._ids_of(output)]
        expected = given([output])
        if None in producers or self._has_lost_some or (expected.count and not producers):
            return Covers.NOTHING
        for producer_id in (each for each in producers if each is not None):
            found = self._segments.take(producer_id, expected)
            if isinstance(found, Rows) and self._reading.writers.is_open(producer_id):
                self._reading.wait_for_ends({producer_id})
                found = self._segments.take(producer_id, expected)
            return self._told(cut, output, found) if isinstance(found, Rows) else found
        return Covers.DIGESTED

    def _told(self, cut: Cut, output: SinkOutput, found: Rows) -> Difference:
        expected = given([output])
        what = (
            f"Subtask {output.subtask} was given {expected.count} rows, and what it published next"
            f" are {found.count}, or others."
        )
        return Difference(what, cut, expected, found, f"topic {self._reading.topic}")

    def _learn_producers(self, points: Iterable[Point], sink: Uid) -> None:
        outputs = [o for p in points for of_cut in p.given_to(sink).values() for o in of_cut]
        ids = {id_ for output in outputs for id_ in self._ids_of(output)} - set(self._producers)
        if ids:
            self._producers |= self._reading.producers(sorted(ids))

    def _ids_of(self, output: SinkOutput) -> list[str]:
        """One at most. A token that was too long for the ledger is no marker."""
        ids = []
        for token in output.share.tokens:
            try:
                marker = msgspec.json.decode(token, type=Marker)
            except UNDECODABLE:
                continue
            ids.append(self._ownership.log_id(marker.uid, marker.run_id, marker.subtask))
        return ids
