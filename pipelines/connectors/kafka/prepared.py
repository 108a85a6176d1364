"""The handle of a transaction at Kafka that a snapshot keeps, so that any process can end it.

Decides nothing: the coordinator supplies it and takes it back.
"""

import msgspec


class PreparedAtKafka(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A transaction that waits for its end. `ranges`: first offset and count, by partition."""

    transactional_id: str
    producer_id: int
    epoch: int
    topic: str
    ranges: dict[str, tuple[int, int]]

    @property
    def records(self) -> int:
        return sum(count for _, count in self.ranges.values())

    @property
    def range(self) -> str:
        parts = [
            f"offsets {first:,} to {first + count - 1:,} of partition {partition}"
            for partition, (first, count) in sorted(self.ranges.items())
        ]
        return f"{', '.join(parts)} of topic {self.topic}"
