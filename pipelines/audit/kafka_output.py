"""Audits a topic of Kafka that is written by transactions: each by the number of its producer.

The ledger names the producer of each transaction, and no producer writes a second one. So what a
checkpoint gave is told apart from all else in the log, however it lies in it.

Records cannot be taken back: those of a run or a checkpoint that was left behind stay, and are
found here as what no checkpoint has. So are those of other programs, once this one has begun.
"""

import re
from collections.abc import Sequence
from itertools import chain

from tenacity import Retrying, retry_if_result, stop_after_delay, wait_fixed

from pipelines.audit.history import Cut, History, Point
from pipelines.audit.kafka_batches import reading_log
from pipelines.audit.kafka_writers import Committed, KafkaWriters, RecordRows
from pipelines.audit.output import Covers, Difference, compared, given, judged_by_cut
from pipelines.connectors.kafka.connection import KafkaAddress
from pipelines.domain.ids import Uid
from pipelines.domain.ledger import SinkOutput

_PRODUCER = re.compile(r": producer (\d+)(?:,|$)")
_FIRST = re.compile(r"offsets ([\d,]+) to [\d,]+ of partition (\d+)")
SETTLING_S = 10.0
"""A broker that has promised to commit writes the end into the log a moment later."""


class KafkaOutput:
    """`rows` says how records become rows. The log is read up to its end when it is made."""

    def __init__(self, address: KafkaAddress, topic: str, rows: RecordRows) -> None:
        """Raises Rejected when the topic cannot be read."""
        self._address = address
        self._topic = topic
        self._writers = KafkaWriters(rows)
        self._read: dict[int, int] = {}  # up to where, by partition
        self._begins: dict[int, int] = {}
        self._read_on()

    def stray(self, history: History, sink: Uid) -> Difference | None:
        """What lies in the log beside a transaction does not make it wrong: see `beside`."""
        return None

    def judge(self, point: Point, sink: Uid) -> Difference | Covers:
        return judged_by_cut(point, sink, self._judge)

    def beside(self, later: History, sink: Uid) -> Difference | None:
        """`later`: of after the log was read, so that all that it shows is in it by right."""
        points = (*later.committed, *later.pending)
        outputs = chain.from_iterable(p.given_to(sink).values() for p in points)
        ours = {_producer_of(t) for each in chain(*outputs) for t in each.share.tokens}
        if later.unknown or not ours:
            return None
        begun = self._first_places(ours)
        strangers = [
            each
            for producer_id, of_one in self._writers.committed.items()
            for each in of_one
            if producer_id not in ours and each.first > begun.get(each.partition, each.first)
        ]
        return self._told(strangers) if strangers else None

    def _judge(self, cut: Cut, outputs: Sequence[SinkOutput]) -> Difference | Covers:
        tokens = [token for output in outputs for token in output.share.tokens]
        if any(_producer_of(token) is None or self._is_deleted(token) for token in tokens):
            return Covers.NOTHING
        self._wait_for_end(tokens)
        parts = {token: self._writers.rows_of(_producer_of(token) or 0) for token in tokens}
        still_open = next((token for token in tokens if self._is_open(token)), None)
        if still_open is not None:
            return Difference(f"{still_open} has not ended.", cut, given(outputs), part=still_open)
        return compared(cut, outputs, parts)

    def _is_deleted(self, token: str) -> bool:
        """Whether the topic no longer keeps all of it. Where it was may not have found room."""
        places = _FIRST.findall(token)
        if not places:
            return any(self._begins.values())
        return any(
            int(first.replace(",", "")) < self._begins.get(int(partition), 0)
            for first, partition in places
        )

    def _is_open(self, token: str) -> bool:
        return self._writers.is_open(_producer_of(token) or 0)

    def _wait_for_end(self, tokens: Sequence[str]) -> None:
        def waits() -> bool:
            is_open = any(map(self._is_open, tokens))
            if is_open:
                self._read_on()
            return is_open

        tries = Retrying(
            retry=retry_if_result(bool),
            stop=stop_after_delay(SETTLING_S),
            wait=wait_fixed(0.05),
            retry_error_callback=lambda _: True,
        )
        tries(waits)

    def _read_on(self) -> None:
        with reading_log(self._address, self._topic) as log:
            self._begins, ends = log.begins(), log.ends()
            for partition, end in sorted(ends.items()):
                begin = max(self._read.get(partition, 0), self._begins[partition])
                for batch in log.batches(partition, begin, end):
                    self._writers.on_batch(batch)
                self._read[partition] = max(begin, end)

    def _first_places(self, producers: set[int | None]) -> dict[int, int]:
        """Where each partition has the first record of theirs."""
        places: dict[int, int] = {}
        for producer_id, of_one in self._writers.committed.items():
            for each in of_one if producer_id in producers else ():
                places[each.partition] = min(each.first, places.get(each.partition, each.first))
        return places

    def _told(self, strangers: Sequence[Committed]) -> Difference:
        count = sum(each.rows.count for each in strangers)
        first = min(strangers, key=lambda each: (each.partition, each.first))
        what = f"Topic {self._topic} has {count:,} records that no checkpoint gave it."
        range_ = f"offsets {first.first:,} to {first.last:,} of partition {first.partition}"
        return Difference(what, part=range_)


def _producer_of(token: str) -> int | None:
    found = _PRODUCER.search(token)
    return int(found[1]) if found else None
