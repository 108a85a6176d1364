"""What both sinks for Kafka have in common: their fields, what is checked, and who holds the topic.

How records become visible exactly once is in `kafka.transactions` and `kafka.write_ahead`. Names
are checked before Kafka and its client see one: the client truncates a name at a NUL, which makes
it another name, and ends the whole process if it cannot read a group's name. A broker only says of
a bad topic name that it is invalid. Source: Kafka, `org.apache.kafka.common.internals.Topic`.

The holder of a topic is the text beside an offset of the group `ftdash/PIPELINE/TOPIC`, the offset
its epoch; the newest attempt lies in the same way in the group `.../attempt`. No consumer reads
with these groups. The holder is replaced in a transaction of an id of its own, which fences any
other process that replaces it at the same time. That a replaced writer publishes nothing does not
depend on these marks: its transactions are ended, and only a checkpoint's completion commits one.
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
from pipelines.domain.errors import ProtocolError, Rejected, Retryable
from pipelines.domain.ids import Attempt, CheckpointId, RunId, Uid
from pipelines.domain.ownership import Claim, Holder, taken

PART = r"([^/]+)"
RENEWED_AFTER_S = 12 * 3600.0
"""Well below any sensible `offsets.retention.minutes`, which is a week by default."""

Mark = TypeVar("Mark")


@dataclass(frozen=True, slots=True)
class TransactionName:
    """Never used twice: what has been prepared under it can be nothing else."""

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
    """Of two runs with the same pipeline and topic one holds it, and only that one writes."""

    pipeline: str
    topic: str

    @property
    def prefix(self) -> str:
        """Of transactional ids, and the name of the group."""
        return f"ftdash/{_quoted(self.pipeline)}/{_quoted(self.topic)}"

    def id_of(self, name: TransactionName) -> str:
        numbers = f"{name.attempt}/{name.subtask}/{name.number}"
        return f"{self.prefix}/{_quoted(name.uid)}/{_quoted(name.run_id)}/t/{numbers}"

    def name_of(self, transactional_id: str) -> TransactionName | None:
        """None: it is not one of ours."""
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
        """Of what publishes segments, and of the group that remembers the last one."""
        return f"{self.prefix}/{_quoted(uid)}/{_quoted(run_id)}/log/{subtask}"

    def run_of(self, transactional_id: str) -> RunId | None:
        """That writes by this id, by transactions or from a log. None: it is not of a writer of
        this pipeline and topic."""
        writer = r"(?:t/\d+/\d+/\d+|log/\d+)"
        found = re.fullmatch(rf"{re.escape(self.prefix)}/{PART}/{PART}/{writer}", transactional_id)
        return None if found is None else RunId(unquote(found[2]))

    def is_log_of_another_run(self, transactional_id: str, run_id: RunId) -> bool:
        found = re.fullmatch(rf"{re.escape(self.prefix)}/{PART}/{PART}/log/\d+", transactional_id)
        return found is not None and found[2] != _quoted(run_id)

    def holder(self, coordinator: KafkaCoordinator) -> Holder | None:
        (mark,) = coordinator.remembered(self.topic, self.prefix)
        return _decoded(mark, Holder)

    def hold(self, coordinator: KafkaCoordinator, output: KafkaOutput, claim: Claim) -> None:
        """Raises TargetTaken."""
        if self.holder(coordinator) != claim.holder:
            self.put(coordinator, output, claim)

    def put(self, coordinator: KafkaCoordinator, output: KafkaOutput, claim: Claim) -> None:
        """1. Fence who else is at it; what they did is to be seen then. 2. Compare and replace.
        3. Wait until that is to be seen. Raises TargetTaken.
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
        """Raises TargetTaken when another run holds the topic."""
        holder = self.holder(coordinator)
        if holder is not None and holder.run_id != run_id:
            raise taken(place, run_id, holder)


class HeldTopic:
    """The right of one attempt's subtask to write to a topic.

    Brokers forget a group whose offset is a week old, and with it who holds the topic. So the first
    subtask of a run puts that down again from time to time.
    """

    def __init__(
        self,
        ownership: KafkaOwnership,
        output: KafkaOutput,
        coordinator: KafkaCoordinator,
        context: SinkContext,
    ) -> None:
        """From now on older attempts are refused. Raises as `check_current` does."""
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
        """Raises ProtocolError when a newer attempt writes to the topic now, and TargetTaken when
        another run holds it."""
        topic, context = self._ownership.topic, self._context
        groups = (self._ownership.prefix, self._attempts)
        held, came = self._coordinator.remembered(topic, *groups)
        holder, newest = _decoded(held, Holder), _decoded(came, NewestAttempt)
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


def _decoded(mark: tuple[int, str] | None, kind: type[Mark]) -> Mark | None:
    """The producing client ends a text by NUL."""
    return None if mark is None else msgspec.json.decode(mark[1].rstrip("\0"), type=kind)


def _quoted(part: str) -> str:
    return quote(part, safe="")


TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
DIRECTORIES = (".", "..")
SHOWN = 50


def check_topic(name: str) -> None:
    """Raises Rejected."""
    if not TOPIC.fullmatch(name) or name in DIRECTORIES:
        raise Rejected(
            "A Kafka topic is named by up to 249 letters, digits and any of . _ -, and not by"
            f" {name[:SHOWN]!r}."
        )


def check_group(name: str) -> None:
    """Raises Rejected. A group may have any other name."""
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

    `value` and `key` are columns, see `RecordForm`; without `value` a record is the row in that
    `format`, or as JSON.
    Kafka's log cannot be rewound: restoring an older point publishes again what came after it.
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
        """What is published stays; what other runs were publishing from a log is ended, or it held
        up readers, and the run that restores it begins again."""
        with closing(KafkaCoordinator(self.address)) as coordinator:
            self.ownership.check_holds(coordinator, run_id, self.target)
            for transactional_id in coordinator.ongoing():
                if self.ownership.is_log_of_another_run(transactional_id, run_id):
                    coordinator.end(transactional_id, self.transaction_timeout)
        return None

    def unfinished(self) -> list[Unfinished]:
        """See `LeavesUnfinished`. An open transaction hides from readers what comes behind it,
        until it ends or its timeout has passed."""
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
