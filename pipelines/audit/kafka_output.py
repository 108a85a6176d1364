"""Audits a Kafka topic written by transactions: finds each one by its producer id.

The ledger names the producer of each transaction, and no producer writes a second one. So the
auditor can tell a checkpoint's records from all others, wherever they lie in the log.

Records cannot be taken back. The auditor reports those of an abandoned run or checkpoint as records
that no checkpoint has, and also those that other programs wrote once this one had begun.
"""

import re
from collections.abc import Sequence
from itertools import chain

from pipelines.audit.history import Cut, History, Point
from pipelines.audit.kafka_topic import TopicReading
from pipelines.audit.output import Covers, Difference, compared, given, judged_by_cut
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
