"""A topic's log, read up to its end and again where a transaction has still to end.

Reads; what it means is for `kafka_output` and `kafka_log_output`.
"""

from collections.abc import Collection, Sequence

from tenacity import Retrying, retry_if_result, stop_after_delay, wait_fixed

from pipelines.audit.kafka_batches import reading_log
from pipelines.audit.kafka_writers import Committed, KafkaWriters, RecordRows
from pipelines.audit.output import Difference
from pipelines.connectors.kafka.connection import KafkaAddress

SETTLING_S = 10.0
"""A broker that has promised to commit writes the end into the log a moment later."""


class TopicReading:
    """`writers` and `begins` are as of the last reading."""

    def __init__(self, address: KafkaAddress, topic: str, rows: RecordRows) -> None:
        """Raises Rejected when the topic cannot be read."""
        self.topic = topic
        self.writers = KafkaWriters(rows)
        self.begins: dict[int, int] = {}  # what lies before was deleted, by partition
        self._address = address
        self._read: dict[int, int] = {}  # up to where
        self.read_on()

    def producers(self, transactional_ids: Sequence[str]) -> dict[str, int]:
        """Of those that the broker has not forgotten."""
        with reading_log(self._address, self.topic) as log:
            return log.producers(transactional_ids)

    def read_on(self) -> None:
        with reading_log(self._address, self.topic) as log:
            self.begins, ends = log.begins(), log.ends()
            for partition, end in sorted(ends.items()):
                begin = max(self._read.get(partition, 0), self.begins[partition])
                for batch in log.batches(partition, begin, end):
                    self.writers.on_batch(batch)
                self._read[partition] = max(begin, end)

    def wait_for_ends(self, producers: Collection[int]) -> None:
        """Of their transactions, for a while."""

        def waits() -> bool:
            is_open = any(map(self.writers.is_open, producers))
            if is_open:
                self.read_on()
            return is_open

        tries = Retrying(
            retry=retry_if_result(bool),
            stop=stop_after_delay(SETTLING_S),
            wait=wait_fixed(0.05),
            retry_error_callback=lambda _: True,
        )
        tries(waits)

    def strangers(self, ours: Collection[int]) -> list[Committed]:
        """What others have written since ours began, partition by partition."""
        begun: dict[int, int] = {}
        for producer_id in ours:
            for each in self.writers.committed.get(producer_id, ()):
                begun[each.partition] = min(each.first, begun.get(each.partition, each.first))
        return [
            each
            for producer_id, of_one in self.writers.committed.items()
            for each in of_one
            if producer_id not in ours and each.first > begun.get(each.partition, each.first)
        ]

    def told(self, strangers: Sequence[Committed]) -> Difference | None:
        if not strangers:
            return None
        count = sum(each.rows.count for each in strangers)
        first = min(strangers, key=lambda each: (each.partition, each.first))
        what = f"Topic {self.topic} has {count:,} records that no checkpoint gave it."
        range_ = f"offsets {first.first:,} to {first.last:,} of partition {first.partition}"
        return Difference(what, part=range_)
