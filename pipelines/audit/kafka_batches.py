"""Reads a topic's log as the broker keeps it: batches with their writer, and transaction ends.

A consumer shows records without their writers. An auditor needs the writers, because transactions
of several writers interleave. So it fetches the log as replicas do, committed or not.

Uses private parts of kafka-python (finding leaders, sending a request to one), so its version is
pinned. Source: Kafka's protocol, Fetch, and its record batch format, version 2.
"""

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from kafka import TopicPartition
from kafka.admin import KafkaAdminClient
from kafka.errors import (
    KafkaConfigurationError,
    KafkaError,
    TransactionalIdNotFoundError,
    UnsupportedCodecError,
    for_code,
)
from kafka.protocol.consumer import FetchRequest, OffsetSpec
from kafka.record import MemoryRecords

from pipelines.connectors.kafka.connection import KafkaAddress, python_settings
from pipelines.domain.errors import Rejected

FETCH_BYTES = 8 << 20
FETCH_WAIT_MS = 500
NEWEST_FETCH = 12
"""Newer versions name topics by number."""

Record = tuple[int, bytes | None, bytes | None]
"""Offset, key, value."""


class End(Enum):
    COMMITTED = auto()
    ABORTED = auto()


@dataclass(frozen=True, slots=True)
class LogBatch:
    """Records, or the end of their writer's transaction on that partition."""

    partition: int
    producer_id: int  # -1: written without a transaction and without a producer id
    is_transactional: bool
    records: list[Record]
    end: End | None
    at_ms: int  # when the first record was made, by its writer's clock


class TopicLog:
    """One connection; used by one thread."""

    def __init__(self, client: KafkaAdminClient, topic: str) -> None:
        self._client = client
        self._topic = topic

    def partitions(self) -> list[int]:
        (told,) = self._client.describe_topics([self._topic])
        if told["error_code"]:
            raise for_code(told["error_code"])()
        return sorted(int(each["partition_index"]) for each in told["partitions"])

    def begins(self) -> dict[int, int]:
        """The oldest offset of each partition; older records were deleted."""
        return self._offsets(OffsetSpec.EARLIEST)

    def ends(self) -> dict[int, int]:
        """One past the newest record or marker of each partition."""
        return self._offsets(OffsetSpec.LATEST)

    def producers(self, transactional_ids: Sequence[str]) -> dict[str, int]:
        """Producer ids by transactional id, as far as the broker still knows them."""
        found = {}
        for each in transactional_ids:
            with suppress(TransactionalIdNotFoundError):
                (told,) = self._client.describe_transactions([each]).values()
                found[each] = int(told.producer_id)
        return found

    def batches(self, partition: int, begin: int, end: int) -> Iterator[LogBatch]:
        """From offset `begin` up to, not including, `end`."""
        offset = begin
        while offset < end:
            fetched = MemoryRecords(self._fetched(partition, offset))
            start = offset
            while (batch := fetched.next_batch()) is not None and offset < end:
                if batch.next_offset > offset:
                    yield _told(partition, batch, offset)
                    offset = batch.next_offset
            if offset == start:
                raise Rejected(f"Kafka shows nothing at offset {offset} of {self._topic}.")

    def _offsets(self, spec: Any) -> dict[int, int]:
        wanted = {TopicPartition(self._topic, number): spec for number in self.partitions()}
        told = self._client.list_partition_offsets(wanted)
        return {place.partition: int(found.offset) for place, found in told.items()}

    def _fetched(self, partition: int, offset: int) -> bytes:
        place = TopicPartition(self._topic, partition)
        request = FetchRequest(
            max_wait_ms=FETCH_WAIT_MS,
            min_bytes=1,
            max_bytes=FETCH_BYTES,
            isolation_level=0,
            topics=[
                FetchRequest.FetchTopic(
                    topic=self._topic,
                    partitions=[
                        FetchRequest.FetchTopic.FetchPartition(
                            partition=partition,
                            current_leader_epoch=-1,
                            fetch_offset=offset,
                            last_fetched_epoch=-1,
                            partition_max_bytes=FETCH_BYTES,
                        )
                    ],
                )
            ],
            max_version=NEWEST_FETCH,
        )

        async def send(client: Any) -> Any:
            leaders = await client._async_get_leader_for_partitions([place])
            (leader,) = leaders
            return await client._manager.send(request, node_id=leader)

        answer: Any = self._client._manager.run(send, self._client)
        (of_partition,) = answer.responses[0].partitions
        if of_partition.error_code:
            raise for_code(of_partition.error_code)()
        return bytes(of_partition.records or b"")


@contextmanager
def reading_log(address: KafkaAddress, topic: str) -> Iterator[TopicLog]:
    """Raises Rejected when the topic cannot be read."""
    where = f"The topic {topic} of Kafka at {address.bootstrap_servers}"
    try:
        with closing(KafkaAdminClient(**python_settings(address))) as client:
            yield TopicLog(client, topic)
    except UnsupportedCodecError as error:
        raise Rejected(f"{where} cannot be audited: its records are compressed.") from error
    except (KafkaError, KafkaConfigurationError, ValueError, AssertionError, OSError) as error:
        raise Rejected(
            f"{where} cannot be read for the audit ({type(error).__name__})."
        ) from None  # its text may repeat a setting


def _told(partition: int, batch: Any, begin: int) -> LogBatch:
    """Leaves out the records of an earlier batch before `begin`."""
    end, records = None, []
    if batch.is_control_batch:
        end = End.ABORTED if next(batch).abort else End.COMMITTED
    else:
        records = [(each.offset, each.key, each.value) for each in batch if each.offset >= begin]
    return LogBatch(
        partition=partition,
        producer_id=batch.producer_id,
        is_transactional=batch.is_transactional,
        records=records,
        end=end,
        at_ms=batch.first_timestamp,
    )
