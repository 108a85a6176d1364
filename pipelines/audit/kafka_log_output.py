"""Audits a topic of Kafka that is written from a log: each subtask's segments, in their order.

A segment is sent after it was entered, so the ledger cannot say where it lies. But whoever
publishes it does so as one producer for each subtask that ever prepared, in the order of the
checkpoints, and each in one transaction: see `kafka_segments`.
"""

from collections.abc import Iterable, Sequence

import msgspec

from pipelines.audit.history import Cut, History, Point
from pipelines.audit.kafka_segments import PublishedSegments
from pipelines.audit.kafka_topic import TopicReading
from pipelines.audit.output import Covers, Difference, Rows, given, judged_by_cut, weaker
from pipelines.connectors.kafka.owner import KafkaOwnership
from pipelines.connectors.write_ahead import Marker
from pipelines.domain.decoding import UNDECODABLE
from pipelines.domain.ids import Uid
from pipelines.domain.ledger import SinkOutput


class KafkaLogOutput:
    """`reading`: made after the journal was read, so that it has all that is committed by it."""

    def __init__(self, reading: TopicReading, ownership: KafkaOwnership) -> None:
        self._reading = reading
        self._ownership = ownership
        self._producers: dict[str, int] = {}  # by transactional id, as far as Kafka knows them
        self._segments = PublishedSegments(reading.writers.committed)
        self._judged: set[Cut] = set()

    def stray(self, history: History, sink: Uid) -> Difference | None:
        """What lies in the log beside a segment does not make it wrong: see `beside`."""
        self._learn_producers(history.committed, sink)
        return None

    def judge(self, point: Point, sink: Uid) -> Difference | Covers:
        return judged_by_cut(point, sink, self._judge)

    def beside(self, later: History, sink: Uid) -> Difference | None:
        """What `later` has besides may be published or not."""
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
        """Where the order begins is gone, and with it what every segment is."""
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
