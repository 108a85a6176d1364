"""Audits a Kafka topic: reads its log to the end, and compares each writer's rows with the ledger.

The ledger names the producer of each transaction, and no producer writes a second one. So the
auditor can tell a checkpoint's records from all others, wherever they lie in the log. With a
write-ahead log, each subtask's segments follow each other in order.

Records cannot be taken back. The auditor reports those of an abandoned run or checkpoint as records
that no checkpoint has. It also reports those that other programs wrote after this one had begun.

A consumer shows records without their writers. An auditor needs the writers, because transactions
of several writers interleave. So it fetches the log as replicas do, committed or not: batches with
their writer, and transaction ends. It keeps reading while a transaction has not ended.

Uses private parts of kafka-python (finding leaders, sending a request to one), so its version is
pinned. Source: Kafka's protocol, Fetch, and its record batch format, version 2.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum, auto
from itertools import chain, combinations
from typing import Any

import msgspec
import pyarrow as pa
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
from tenacity import Retrying, retry_if_result, stop_after_delay, wait_fixed

from pipelines.audit.file_output import batch_of, is_ambiguous
from pipelines.audit.history import Cut, History, Point
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
from pipelines.connectors.kafka.connection import KafkaAddress, python_settings
from pipelines.connectors.kafka.sink import KafkaOwnership
from pipelines.connectors.sink_bases import Marker
from pipelines.domain.errors import UNDECODABLE, Rejected
from pipelines.domain.ids import Uid
from pipelines.domain.ledger import SinkOutput
from pipelines.state.row_digest import digest_of

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
        (topic,) = self._client.describe_topics([self._topic])
        if topic["error_code"]:
            raise for_code(topic["error_code"])()
        return sorted(int(each["partition_index"]) for each in topic["partitions"])

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
                (transaction,) = self._client.describe_transactions([each]).values()
                found[each] = int(transaction.producer_id)
        return found

    def batches(self, partition: int, begin: int, end: int) -> Iterator[LogBatch]:
        """Yields the batches from offset `begin` up to, not including, `end`."""
        offset = begin
        while offset < end:
            fetched = MemoryRecords(self._fetched(partition, offset))
            start = offset
            while (batch := fetched.next_batch()) is not None and offset < end:
                if batch.next_offset > offset:
                    yield _log_batch(partition, batch, offset)
                    offset = batch.next_offset
            if offset == start:
                raise Rejected(f"Kafka shows nothing at offset {offset} of {self._topic}.")

    def _offsets(self, spec: Any) -> dict[int, int]:
        wanted = {TopicPartition(self._topic, number): spec for number in self.partitions()}
        offsets = self._client.list_partition_offsets(wanted)
        return {place.partition: int(found.offset) for place, found in offsets.items()}

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


def _log_batch(partition: int, batch: Any, begin: int) -> LogBatch:
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


ROWS = 8_192
NO_ROWS = Rows(0, 0)


@dataclass(frozen=True, slots=True)
class Committed:
    """One writer's transaction on one partition, or one batch that it wrote without any."""

    partition: int
    first: int
    last: int
    rows: Rows
    at_ms: int  # when the first record was made


@dataclass(slots=True)
class _Open:
    first: int
    at_ms: int
    last: int = -1
    rows: Rows = NO_ROWS
    waiting: list[Record] = field(default_factory=list)


class RecordRows:
    """Turns records into rows: `value` and `key` name columns; without `value`, each is JSON."""

    def __init__(self, schema: pa.Schema, value: str | None, key: str | None) -> None:
        self._schema = schema
        self._value = value
        self._key = key
        self._is_whole = value is None or set(schema.names) <= {value, key}

    def of(self, records: list[Record]) -> Rows:
        """Only counts the records if they do not hold all columns.

        Records that are no rows of the schema were never given: they get the digest of no rows.
        """
        if not self._is_whole:
            return Rows(len(records), None)
        try:
            batch = self._batch(records)
        except (ValueError, TypeError, pa.ArrowException):
            return Rows(len(records), 0)
        is_plain = self._value is not None or not is_ambiguous(batch)
        return Rows(len(records), digest_of(batch) if is_plain else None)

    def _batch(self, records: list[Record]) -> pa.RecordBatch:
        if self._value is None:
            return batch_of([value or b"" for _, _, value in records], self._schema)
        keys, values = [key for _, key, _ in records], [value for _, _, value in records]
        columns = [
            _column(values if field.name == self._value else keys, field) for field in self._schema
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)


class KafkaWriters:
    """`committed`: what readers see, or will see once an open transaction before it has ended."""

    def __init__(self, rows: RecordRows) -> None:
        self._rows = rows
        self._open: dict[tuple[int, int], _Open] = {}
        self.committed: dict[int, list[Committed]] = {}

    def on_batch(self, batch: LogBatch) -> None:
        key = batch.producer_id, batch.partition
        if batch.end is not None:
            found = self._open.pop(key, None)
            if found is not None and batch.end is End.COMMITTED:
                self._commit(key, found)
        elif batch.records:
            found = self._open.setdefault(key, _Open(batch.records[0][0], batch.at_ms))
            self._take(found, batch.records)
            if not batch.is_transactional:
                self._commit(key, self._open.pop(key))

    def is_open(self, producer_id: int) -> bool:
        return any(producer == producer_id for producer, _ in self._open)

    def rows_of(self, producer_id: int) -> Rows:
        return total(each.rows for each in self.committed.get(producer_id, []))

    def _take(self, found: _Open, records: list[Record]) -> None:
        found.last = records[-1][0]
        found.waiting += records
        if len(found.waiting) >= ROWS:
            self._digest(found)

    def _digest(self, found: _Open) -> None:
        if found.waiting:
            found.rows = total([found.rows, self._rows.of(found.waiting)])
            found.waiting = []

    def _commit(self, key: tuple[int, int], found: _Open) -> None:
        self._digest(found)
        producer_id, partition = key
        committed = Committed(partition, found.first, found.last, found.rows, found.at_ms)
        self.committed.setdefault(producer_id, []).append(committed)


def _column(values: list[bytes | None], field: pa.Field) -> pa.Array:
    raw = pa.array(values, pa.binary())
    return raw if pa.types.is_binary(field.type) else raw.cast(pa.string()).cast(field.type)


SETTLING_S = 10.0
"""A broker that has promised a commit writes its end into the log a moment later."""


class TopicReading:
    """`writers` and `begins` are as of the last reading."""

    def __init__(self, address: KafkaAddress, topic: str, rows: RecordRows) -> None:
        """Raises Rejected when the topic cannot be read."""
        self.topic = topic
        self.writers = KafkaWriters(rows)
        self.begins: dict[int, int] = {}  # by partition; older records were deleted
        self._address = address
        self._read: dict[int, int] = {}  # by partition: the end of the last reading
        self.read_on()

    def producers(self, transactional_ids: Sequence[str]) -> dict[str, int]:
        """Producer ids by transactional id, as far as the broker still knows them."""
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
        """Keeps reading until their transactions have ended, for at most SETTLING_S."""

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
        """Returns what other producers have committed since ours began, partition by partition."""
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

    def difference_for(self, strangers: Sequence[Committed]) -> Difference | None:
        if not strangers:
            return None
        count = sum(each.rows.count for each in strangers)
        first = min(strangers, key=lambda each: (each.partition, each.first))
        what = f"Topic {self.topic} has {count:,} records that no checkpoint gave it."
        range_ = f"offsets {first.first:,} to {first.last:,} of partition {first.partition}"
        return Difference(what, part=range_)


_PRODUCER = re.compile(r": producer (\d+)(?:,|$)")
_FIRST = re.compile(r"offsets ([\d,]+) to [\d,]+ of partition (\d+)")


class KafkaOutput:
    """Make `reading` after you read the journal, so that it has everything the journal commits."""

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
        return self._reading.difference_for(self._reading.strangers(_producers_of(tokens)))

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
        """True if the topic no longer keeps all of it; a long token does not name its place."""
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
    """Takes each segment once; count and digest prove that it is the right one."""

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
        """Returns what comes next on each partition, the earliest written first."""
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
    """Make `reading` after you read the journal, so that it has everything the journal commits."""

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
        return self._reading.difference_for([*left, *self._reading.strangers(ours)])

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
            return self._difference(cut, output, found) if isinstance(found, Rows) else found
        return Covers.DIGESTED

    def _difference(self, cut: Cut, output: SinkOutput, found: Rows) -> Difference:
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
        """Returns one id at most. A token that was too long for the ledger is no marker."""
        ids = []
        for token in output.share.tokens:
            try:
                marker = msgspec.json.decode(token, type=Marker)
            except UNDECODABLE:
                continue
            ids.append(self._ownership.log_id(marker.uid, marker.run_id, marker.subtask))
        return ids
