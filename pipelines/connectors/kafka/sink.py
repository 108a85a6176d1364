"""The common part of both sinks for Kafka: their fields, their checks, and the holder of the topic.

`kafka.transactions` and `kafka.write_ahead` make records visible exactly once. This module checks
names before Kafka and its client see them: the client truncates a name at a NUL, which makes it
another name, and ends the whole process if it cannot read a group's name. A broker only says that a
bad topic name is invalid. Source: Kafka, `org.apache.kafka.common.internals.Topic`.

The group `ftdash/PIPELINE/TOPIC` stores the holder of a topic: its offset is the holder's epoch,
and the text with the offset is the holder. The group `.../attempt` stores the newest attempt in the
same way. No consumer reads with these groups. A process replaces the holder in a transaction with
its own id, which fences any other process that replaces it at the same time. A replaced writer
publishes nothing even without these marks: its transactions are ended, and only a checkpoint's
completion commits one.
"""

import re
import time
from collections.abc import Collection
from contextlib import closing
from dataclasses import KW_ONLY, dataclass
from datetime import timedelta
from typing import TypeVar
from urllib.parse import quote, unquote

import msgspec
import pyarrow as pa
from confluent_kafka import TopicPartition
from tenacity import Retrying, retry_if_result, stop_after_delay, wait_random_exponential

from pipelines.connectors.kafka.connection import ANSWER_TIMEOUT_S, KafkaAddress, KafkaAdmin
from pipelines.connectors.kafka.coordinator import LONGEST_PAUSE_S, KafkaCoordinator
from pipelines.connectors.kafka.producer import KafkaOutput, RecordForm, TransactionalProducer
from pipelines.connectors.kafka.values import RowFormat
from pipelines.connectors.sink import SinkContext, Superseded, Unfinished
from pipelines.domain.errors import UNDECODABLE, ProtocolError, Rejected, Retryable
from pipelines.domain.ids import Attempt, CheckpointId, RunId, Uid
from pipelines.domain.ownership import Claim, Holder, taken

PART = r"([^/]+)"
RENEWED_AFTER_S = 12 * 3600.0
"""Well below any sensible `offsets.retention.minutes`, which is a week by default."""

Mark = TypeVar("Mark")


@dataclass(frozen=True, slots=True)
class TransactionName:
    """Never used twice, so it identifies what was prepared under it."""

    uid: Uid
    run_id: RunId
    attempt: Attempt
    subtask: int
    number: int


class NewestAttempt(msgspec.Struct, frozen=True, kw_only=True):
    run_id: RunId
    attempt: Attempt


@dataclass(frozen=True, slots=True)
class KafkaOwnership:
    """Only one run of a pipeline holds a topic, and only that run writes to it."""

    pipeline: str
    topic: str

    @property
    def prefix(self) -> str:
        """The beginning of transactional ids, and the name of the group."""
        return f"ftdash/{_quoted(self.pipeline)}/{_quoted(self.topic)}"

    def id_of(self, name: TransactionName) -> str:
        numbers = f"{name.attempt}/{name.subtask}/{name.number}"
        return f"{self.prefix}/{_quoted(name.uid)}/{_quoted(name.run_id)}/t/{numbers}"

    def name_of(self, transactional_id: str) -> TransactionName | None:
        """Returns the name, or None if the id is not one of ours."""
        found = re.fullmatch(
            rf"{re.escape(self.prefix)}/{PART}/{PART}/t/(\d+)/(\d+)/(\d+)", transactional_id
        )
        if found is None:
            return None
        uid, run_id, attempt, subtask, number = found.groups()
        return TransactionName(
            Uid(unquote(uid)),
            RunId(unquote(run_id)),
            Attempt(int(attempt)),
            int(subtask),
            int(number),
        )

    def log_id(self, uid: Uid, run_id: RunId, subtask: int) -> str:
        """The id of the producer of segments, and of the group that remembers the last one."""
        return f"{self.prefix}/{_quoted(uid)}/{_quoted(run_id)}/log/{subtask}"

    def run_of(self, transactional_id: str) -> RunId | None:
        """Returns the run that writes with this id, by transactions or from a log.

        None: the id belongs to no writer of this pipeline and topic.
        """
        writer = r"(?:t/\d+/\d+/\d+|log/\d+)"
        found = re.fullmatch(rf"{re.escape(self.prefix)}/{PART}/{PART}/{writer}", transactional_id)
        return None if found is None else RunId(unquote(found[2]))

    def is_log_of_another_run(self, transactional_id: str, run_id: RunId) -> bool:
        found = re.fullmatch(rf"{re.escape(self.prefix)}/{PART}/{PART}/log/\d+", transactional_id)
        return found is not None and found[2] != _quoted(run_id)

    def holder(self, coordinator: KafkaCoordinator) -> Holder | None:
        (mark,) = coordinator.remembered(self.topic, self.prefix)
        return _decoded(self.prefix, mark, Holder)

    def hold(self, coordinator: KafkaCoordinator, output: KafkaOutput, claim: Claim) -> None:
        """Makes the claim's run the holder. Raises TargetTaken."""
        if self.holder(coordinator) != claim.holder:
            self.put(coordinator, output, claim)

    def put(self, coordinator: KafkaCoordinator, output: KafkaOutput, claim: Claim) -> None:
        """Replaces the holder. Raises TargetTaken.

        1. Fence other processes that are replacing it, so that their result shows.
        2. Compare and replace.
        3. Wait until the new holder shows.
        """
        transactional_id = f"{self.prefix}/holder"
        producer = TransactionalProducer(output, transactional_id)
        held = claim.admit(self.holder(coordinator), output.place)
        mark = msgspec.json.encode(held).decode()
        producer.begin()
        producer.commit(self.prefix, TopicPartition(self.topic, 0, held.epoch, mark))
        coordinator.end(transactional_id, output.timeout)
        shown = Retrying(
            retry=retry_if_result(lambda found: found is None or found.epoch < held.epoch),
            stop=stop_after_delay(ANSWER_TIMEOUT_S),
            wait=wait_random_exponential(multiplier=0.02, max=LONGEST_PAUSE_S),
            retry_error_callback=lambda state: None,
        )(self.holder, coordinator)
        if shown is None:
            raise Retryable(f"{output.place} does not show who holds it")
        claim.admit(shown, output.place)

    def check_holds(self, coordinator: KafkaCoordinator, run_id: RunId, place: str) -> None:
        """Raises TargetTaken if another run holds the topic."""
        holder = self.holder(coordinator)
        if holder is not None and holder.run_id != run_id:
            raise taken(place, run_id, holder)


class HeldTopic:
    """The right of one attempt's subtask to write to a topic.

    Brokers forget a group whose offset is a week old, and with it the holder of the topic. So the
    first subtask of a run writes the holder again from time to time.
    """

    def __init__(
        self,
        ownership: KafkaOwnership,
        output: KafkaOutput,
        coordinator: KafkaCoordinator,
        context: SinkContext,
    ) -> None:
        """From now on, older attempts are refused. Raises the errors of `check_current`."""
        self._ownership = ownership
        self._output = output
        self._coordinator = coordinator
        self._context = context
        self._renewal_due_s = time.monotonic() + RENEWED_AFTER_S
        mine = NewestAttempt(run_id=context.run_id, attempt=context.attempt)
        if self.check_current() != mine:
            mark = msgspec.json.encode(mine).decode()
            coordinator.remember(self._attempts, ownership.topic, 0, mark)

    def check_current(self) -> NewestAttempt | None:
        """Returns the run's newest attempt, if it is known.

        Raises ProtocolError if a newer attempt writes to the topic now, and TargetTaken if another
        run holds it.
        """
        topic, context = self._ownership.topic, self._context
        groups = (self._ownership.prefix, self._attempts)
        held, came = self._coordinator.remembered(topic, *groups)
        holder = _decoded(groups[0], held, Holder)
        newest = _decoded(groups[1], came, NewestAttempt)
        if holder is not None and holder.run_id != context.run_id:
            raise taken(self._output.place, context.run_id, holder)
        if newest is not None and newest.run_id != context.run_id:
            newest = None
        if newest is not None and newest.attempt > context.attempt:
            raise ProtocolError(
                f"attempt {context.attempt} of run {context.run_id} may not write to topic {topic}"
                f" any more: attempt {newest.attempt} does"
            )
        self._renew_when_due(holder)
        return newest

    @property
    def _attempts(self) -> str:
        return f"{self._ownership.prefix}/attempt"

    def _renew_when_due(self, holder: Holder | None) -> None:
        if holder is None or self._context.subtask or time.monotonic() < self._renewal_due_s:
            return
        self._ownership.put(self._coordinator, self._output, Claim(holder=holder))
        self._renewal_due_s = time.monotonic() + RENEWED_AFTER_S


def _decoded(group: str, mark: tuple[int, str] | None, kind: type[Mark]) -> Mark | None:
    """Decodes a mark; the producing client ends its text with a NUL."""
    if mark is None:
        return None
    try:
        return msgspec.json.decode(mark[1].rstrip("\0"), type=kind)
    except UNDECODABLE as error:
        raise Rejected(
            f"The Kafka group {group} does not say who writes to the topic: {error}. See what else"
            " commits offsets in that group."
        ) from error


def _quoted(part: str) -> str:
    return quote(part, safe="")


TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
DIRECTORIES = (".", "..")
SHOWN = 50


def check_topic(name: str) -> None:
    """Raises Rejected if no topic can have this name."""
    if not TOPIC.fullmatch(name) or name in DIRECTORIES:
        raise Rejected(
            "A Kafka topic is named by up to 249 letters, digits and any of . _ -, and not by"
            f" {name[:SHOWN]!r}."
        )


def check_group(name: str) -> None:
    """Raises Rejected for an empty name, or one with a NUL or that is no text; allows any other."""
    if not name:
        raise Rejected("The Kafka group for offsets needs a name; leave it out to commit none.")
    if "\0" in name or not _is_text(name):
        raise Rejected(f"A Kafka group is named by text without NUL, and not by {name[:SHOWN]!r}.")


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class KafkaSink:
    """`pipeline` and `topic` name its transactions; of the runs that use both, one holds the topic.

    `value` and `key` are columns, see `RecordForm`; without `value`, a record is the row in that
    `format`, or as JSON. Kafka's log cannot be rewound: if you restore an older point, the run
    publishes again what came after it.
    """

    address: KafkaAddress
    topic: str
    _: KW_ONLY
    pipeline: str
    value: str | None = None
    key: str | None = None
    format: RowFormat | None = None
    transaction_timeout: timedelta

    @property
    def guarantee(self) -> str:
        return "exactly-once"

    @property
    def record_form(self) -> RecordForm:
        encoder = None if self.format is None else self.format.encoder(self.topic)
        return RecordForm(self.value, self.key, self.format, encoder)

    @property
    def output(self) -> KafkaOutput:
        return KafkaOutput(self.address, self.topic, self.record_form, self.transaction_timeout)

    @property
    def ownership(self) -> KafkaOwnership:
        return KafkaOwnership(self.pipeline, self.topic)

    def check_columns(self, schema: pa.Schema) -> None:
        """See `ChecksColumns`."""
        check_topic(self.topic)
        self.output.form.check(schema, self.topic)

    def validate(self, schema: pa.Schema) -> None:
        self.check_columns(schema)
        try:
            with closing(KafkaCoordinator(self.address)) as coordinator:
                KafkaAdmin(self.address).partitions(self.topic)
                if self.format is not None:
                    self.format.check_target(self.topic)
                coordinator.end(f"{self.ownership.prefix}/validation", self.transaction_timeout)
        except Retryable as error:
            raise Rejected(f"{error}.") from error

    @property
    def target(self) -> str:
        """See `HoldsTarget`."""
        return self.output.place

    @property
    def published_to(self) -> str:
        """See `TakesNothingBack`."""
        return f"topic {self.topic}"

    def holder(self) -> Holder | None:
        with closing(KafkaCoordinator(self.address)) as coordinator:
            return self.ownership.holder(coordinator)

    def hold(self, claim: Claim) -> None:
        with closing(KafkaCoordinator(self.address)) as coordinator:
            self.ownership.hold(coordinator, self.output, claim)

    def rewind(
        self, ancestors: list[tuple[RunId, CheckpointId]], run_id: RunId
    ) -> Superseded | None:
        """Keeps published records, and ends transactions in which other runs publish from a log.

        Such a transaction would block readers. A run that restores its segment begins it again.
        """
        with closing(KafkaCoordinator(self.address)) as coordinator:
            self.ownership.check_holds(coordinator, run_id, self.target)
            for transactional_id in coordinator.ongoing():
                if self.ownership.is_log_of_another_run(transactional_id, run_id):
                    coordinator.end(transactional_id, self.transaction_timeout)
        return None

    def unfinished(self) -> list[Unfinished]:
        """See `LeavesUnfinished`.

        An open transaction hides the records behind it from readers until it ends or times out.
        """
        with closing(KafkaCoordinator(self.address)) as coordinator:
            return [
                Unfinished(each, run_id, "open transactions", is_ended_by_writers=True)
                for each in coordinator.ongoing()
                if (run_id := self.ownership.run_of(each)) is not None
            ]

    def discard(self, names: Collection[str], run_id: RunId) -> int:
        """Ends the transactions and fences their producers."""
        with closing(KafkaCoordinator(self.address)) as coordinator:
            self.ownership.check_holds(coordinator, run_id, self.target)
            found = [each for each in coordinator.ongoing() if each in names]
            for transactional_id in found:
                coordinator.end(transactional_id, self.transaction_timeout)
        return len(found)
