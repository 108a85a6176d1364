"""Reads partitions of Kafka for one subtask: one consumer for all of them, a batch at a time.

If a broker is away, the client reconnects by itself, and the reader yields nothing meanwhile. If
retention deletes records before they are read, the attempt ends and names the range; the client
alone would skip it. The reader pauses a partition that delivers faster than it is read.

A consumer delivers the records of all its partitions in one sequence. The records of partitions
other than the one to read now wait in `WaitingRecords`, up to a bound.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from pipelines.connectors.dead_letters import DeadLetter, with_letters
from pipelines.connectors.kafka.connection import REFUSALS, KafkaAddress, KafkaAdmin, weakly
from pipelines.connectors.kafka.values import (
    NO_TIME,
    Fetched,
    ValueFormat,
    by_partition,
    joined,
    place_of,
)
from pipelines.connectors.source import LoggedRecords, MalformedRecord, Offsets
from pipelines.connectors.split_progress import SplitProgress, sum_known
from pipelines.domain.errors import InputLost, Rejected, Retryable

BATCH_ROWS = 20_000
BATCH_BYTES = 16 * 1024 * 1024


class WaitingRecords:
    """The fetched records of one partition, in order.

    The reader pauses the partition at two batches and resumes it below one. So this holds less than
    two batches, plus the rest of the fetch that filled it.
    """

    def __init__(self, end_offset: int | None) -> None:
        self._end_offset = end_offset
        self._fetched: deque[Fetched] = deque()
        self._rows = 0
        self._bytes = 0
        self._end_seen = 0
        self.is_paused = False

    def __len__(self) -> int:
        return self._rows

    @property
    def has_batch(self) -> bool:
        return self._rows >= BATCH_ROWS or self._bytes >= BATCH_BYTES

    @property
    def is_full(self) -> bool:
        return self._rows >= 2 * BATCH_ROWS or self._bytes >= 2 * BATCH_BYTES

    @property
    def end(self) -> int:
        """The end behind the records that were taken; 0 if not known.

        Only transaction markers lie in between, and consumers do not get those.
        """
        return 0 if self._rows else self._end_seen

    def add(self, fetched: Fetched) -> None:
        """`fetched` holds at least one record."""
        if self._end_offset is not None and fetched.offsets[-1] >= self._end_offset:
            inside = int(np.searchsorted(fetched.offsets, self._end_offset))
            self.on_end(int(fetched.offsets[inside]))
            fetched, _ = fetched.divided(inside)
        self._put(fetched)

    def on_end(self, offset: int) -> None:
        self._end_seen = offset

    def take(self) -> Fetched:
        """Takes the next batch, or as much of it as there is."""
        parts: list[Fetched] = []
        rows, bytes_ = BATCH_ROWS, BATCH_BYTES  # the room left
        while self._fetched and rows > 0 and bytes_ > 0:
            first = self._fetched.popleft()
            taken, rest = first.divided(first.fitting_count(rows, bytes_))
            if len(rest):
                self._fetched.appendleft(rest)
            parts.append(taken)
            rows, bytes_ = rows - len(taken), bytes_ - taken.bytes
        self._rows -= BATCH_ROWS - rows
        self._bytes -= BATCH_BYTES - bytes_
        return joined(parts)

    def _put(self, fetched: Fetched) -> None:
        if len(fetched):
            self._fetched.append(fetched)
            self._rows += len(fetched)
            self._bytes += fetched.bytes


AWAY = frozenset({KafkaError._ALL_BROKERS_DOWN, KafkaError._TRANSPORT, KafkaError._RESOLVE})
OF_GROUPS = frozenset(  # the client looks for its group, which we do not use
    {
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.INVALID_GROUP_ID,
        KafkaError.NOT_COORDINATOR,
        KafkaError._WAIT_COORD,
    }
)
NO_GROUP = {"group.id": "ftdash"}
"""The client requires one; nothing is committed to it."""

CONFIRM_TIMEOUT_S = 0.5


class TopicsReader:
    def __init__(
        self,
        address: KafkaAddress,
        format: ValueFormat,
        timestamp_column: str | None,
        *,
        read_committed: bool,
        group: Mapping[str, Any] = NO_GROUP,
        dead_letters: bool = False,
    ) -> None:
        """`group`: the client's settings of its group, although it reads without one."""
        self._address = address
        self._format = format
        self._decoder = format.open()
        self._keeps_dead_letters = dead_letters
        self._timestamp_column = timestamp_column
        self._refusal: KafkaError | None = None
        self._admin: KafkaAdmin | None = None  # kept, because every cut asks it
        with address.settings_are_understood():
            self._consumer = Consumer(
                {
                    **address.settings(weakly(self._on_error)),
                    **group,
                    "enable.auto.commit": False,
                    "enable.auto.offset.store": False,
                    "enable.partition.eof": True,
                    "auto.offset.reset": "error",
                    "isolation.level": "read_committed" if read_committed else "read_uncommitted",
                }
            )
        self._waiting: dict[str, WaitingRecords] = {}
        self._at: dict[str, SplitProgress] = {}
        self._pending: dict[str, int | None] = {}
        self._source_problem = ""

    def read(self, split: SplitProgress) -> Iterator[LoggedRecords]:
        at = split
        waiting = self._waiting[at.name] = WaitingRecords(at.end_offset)
        self._pending[at.name] = None
        partition = partition_of(split.name)
        partition.offset = split.offset
        self._consumer.incremental_assign([partition])
        while at.end_offset is None or at.offset < at.end_offset:
            fetched = self._take(at, waiting)
            batch, malformed = self._decoded(at.name, fetched)
            if malformed is not None:
                if len(batch.offsets):
                    yield batch
                self._release(split)
                raise malformed
            if len(fetched):
                at = msgspec.structs.replace(at, offset=int(batch.offsets[-1]) + 1)
            if waiting.end > at.offset:
                at = msgspec.structs.replace(at, offset=waiting.end)
                batch = LoggedRecords(batch.records, batch.offsets, waiting.end)
            self._pending[at.name] = self._records_behind(at)
            yield batch
        self._release(split)

    def _release(self, split: SplitProgress) -> None:
        """Unassigns the partition, which may be read again from another offset."""
        waiting, partition = self._waiting.pop(split.name), partition_of(split.name)
        if waiting.is_paused:
            self._consumer.resume([partition])
        self._consumer.incremental_unassign([partition])

    def confirmed(self, splits: Sequence[SplitProgress]) -> dict[str, str]:
        """See `ConfirmsSplits`. The versions are topic ids.

        The client keeps reading by name, and does not say if a topic was created again. So the
        records that it fetched before the answer belong to the topic with that id.
        """
        topics = {split.name: partition_of(split.name).topic for split in splits}
        if self._admin is None:
            self._admin = KafkaAdmin(self._address)
        try:
            ids = self._admin.topic_ids(set(topics.values()), CONFIRM_TIMEOUT_S)
        except Retryable as error:
            self._source_problem = str(error)
            return {}  # a broker that does not answer delivers nothing; the next cut asks again
        self._source_problem = ""
        for split in splits:
            check_same_topic(split, ids[topics[split.name]])
        found = {name: ids[topic] for name, topic in topics.items()}
        return {name: topic_id for name, topic_id in found.items() if topic_id is not None}

    def close(self) -> None:
        self._consumer.close()

    def pending_records(self) -> int | None:
        """Counts offsets between position and end, gaps included, as Kafka's tools count lag."""
        return sum_known(self._pending.copy().values())

    def source_problem(self) -> str:
        """See `ReportsProblem`; this is the problem of the newest cut."""
        return self._source_problem

    def _records_behind(self, at: SplitProgress) -> int | None:
        """Counts to the end that came with the newest fetch, without asking the broker."""
        _, end = self._consumer.get_watermark_offsets(partition_of(at.name), cached=True)
        if end < 0:
            return None
        return max(0, min(end, at.end_offset or end) - at.offset)

    def _take(self, at: SplitProgress, waiting: WaitingRecords) -> Fetched:
        """Takes the next records of that partition; those of other partitions wait."""
        self._at[at.name] = at
        if len(waiting) == 0:
            self._fetch()
            self._pause_full_ones()
        taken = waiting.take()
        if waiting.is_paused and not waiting.has_batch:
            self._consumer.resume([partition_of(at.name)])
            waiting.is_paused = False
        return self._format.records_among(taken)

    def _pause_full_ones(self) -> None:
        for name, waiting in self._waiting.items():
            if waiting.is_full and not waiting.is_paused:
                self._consumer.pause([partition_of(name)])
                waiting.is_paused = True

    def _fetch(self) -> None:
        fetched = self._consumer.consume(BATCH_ROWS, timeout=0)
        errors = [message for message in fetched if message.error() is not None]
        if errors:
            fetched = [message for message in fetched if message.error() is None]
        for name, records in by_partition(fetched):
            if name in self._waiting:
                self._waiting[name].add(records)
        for message in errors:
            self._on_event(message)
        refusal, self._refusal = self._refusal, None
        if refusal is not None:
            raise self._address.translated(refusal)

    def _on_event(self, message: Message) -> None:
        """Handles a message that is not a record."""
        error, name = message.error(), place_of(message)
        if error is None:
            return
        if error.code() == KafkaError._PARTITION_EOF:
            if name in self._waiting:
                self._waiting[name].on_end(message.offset() or 0)
        elif error.code() not in AWAY | OF_GROUPS:
            raise self._failure(error, self._at.get(name))

    def _failure(self, error: KafkaError, at: SplitProgress | None) -> Rejected | Retryable:
        """Translates an error; `at` None: it is the client's, not a partition's.

        Raises Rejected if the topic was created again.
        """
        is_gone = error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE)
        if at is not None and is_gone:
            admin, partition = KafkaAdmin(self._address), partition_of(at.name)
            check_same_topic(at, admin.topic_ids({partition.topic})[partition.topic])
            (oldest,) = admin.oldest([partition])
            if oldest > at.offset:
                return InputLost(range_gone(at, oldest))
            # The partition ends before the offset, for a moment or for good. The recovery finds out
            # which it is.
        return self._address.translated(error)

    def _decoded(self, name: str, fetched: Fetched) -> tuple[LoggedRecords, MalformedRecord | None]:
        """Returns all records, with dead letters among them, if dead letters are kept.

        Otherwise returns the records before the first one that cannot be decoded, and that one.
        """
        decoded = self._decoder.decoded(fetched).with_event_time(self._timestamp_column)
        offsets = fetched.offsets
        sentences = {
            row: problem.sentence(_place(name, offsets, row))
            for row, problem in decoded.problems.items()
        }
        if self._keeps_dead_letters:
            letters = {
                row: letter_of(name, fetched, row, sentence) for row, sentence in sentences.items()
            }
            return LoggedRecords(with_letters(decoded.rows, letters, len(fetched)), offsets), None
        if not sentences:
            return LoggedRecords(decoded.rows, offsets), None
        first = min(sentences)
        before = LoggedRecords(decoded.rows.slice(0, first), offsets[:first])
        return before, _malformed(sentences[first], fetched, first)

    def _on_error(self, error: KafkaError) -> None:
        if error.code() in REFUSALS:
            self._refusal = error


def _malformed(sentence: str, fetched: Fetched, row: int) -> MalformedRecord:
    text, offset = fetched.values[row] or b"", int(fetched.offsets[row])
    return MalformedRecord(sentence, row=row, offset=offset, text=text)


def letter_of(name: str, fetched: Fetched, row: int, sentence: str) -> DeadLetter:
    place, at_ms = partition_of(name), int(fetched.times_ms[row])
    return DeadLetter(
        topic=place.topic,
        partition=place.partition,
        offset=int(fetched.offsets[row]),
        at_ms=None if at_ms == NO_TIME else at_ms,
        key=fetched.keys[row],
        value=fetched.values[row],
        error=sentence,
    )


def name_of(partition: TopicPartition) -> str:
    return f"{partition.topic}-{partition.partition}"


def partition_of(name: str) -> TopicPartition:
    topic, _, number = name.rpartition("-")
    return TopicPartition(topic, int(number))


def check_same_topic(split: SplitProgress, topic_id: str | None) -> None:
    """Raises Rejected if `topic_id`, the id of the topic with that name now, is another one.

    A topic keeps its id for ever, and no other topic gets it (KIP-516).
    """
    if None in (split.version, topic_id) or split.version == topic_id:
        return
    raise Rejected(
        f"The topic {partition_of(split.name).topic} was deleted and created again: it had the id"
        f" {split.version} when it was read, and has the id {topic_id} now. What was not read of"
        " the old topic is gone. To read the new topic, start the pipeline without a recovery"
        " point. To keep the state as well, give the source another uid, and restore with"
        " non-restored state allowed."
    )


def range_gone(split: SplitProgress, oldest: int) -> str:
    partition = partition_of(split.name)
    return (
        f"Partition {partition.partition} of topic {partition.topic}: offsets {split.offset:,} to"
        f" {oldest - 1:,} are gone (retention) and were not read."
    )


def _place(name: str, offsets: Offsets, row: int) -> str:
    partition = partition_of(name)
    return f"offset {offsets[row]} of partition {partition.partition} of topic {partition.topic}"
