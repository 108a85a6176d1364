"""What both sinks for Kafka have in common: their fields, what is checked, and who writes.

How records become visible exactly once is in `kafka.transactions` and `kafka.write_ahead`.

Checks the names that Kafka and its client accept, before either of them sees one.

The client truncates a name at a NUL, which makes it another name, and ends the whole process if it
cannot read a group's name. A broker only says of a bad topic name that it is invalid. Source:
Kafka, `org.apache.kafka.common.internals.Topic`.
"""

import re
from collections.abc import Collection
from contextlib import closing
from dataclasses import KW_ONLY, dataclass
from datetime import timedelta

import pyarrow as pa

from pipelines.connectors.kafka.connection import KafkaAddress, KafkaAdmin
from pipelines.connectors.kafka.coordinator import KafkaCoordinator
from pipelines.connectors.kafka.owner import KafkaOwnership
from pipelines.connectors.kafka.producer import KafkaOutput
from pipelines.connectors.kafka.records import RecordForm
from pipelines.connectors.sink import Superseded, Unfinished
from pipelines.domain.errors import Rejected, Retryable
from pipelines.domain.ids import CheckpointId, RunId
from pipelines.domain.ownership import Claim, Holder

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

    `value` and `key` are columns, see `RecordForm`; without `value` a record is the row as JSON.
    Kafka's log cannot be rewound: restoring an older point publishes again what came after it.
    """

    address: KafkaAddress
    topic: str
    _: KW_ONLY
    pipeline: str
    value: str | None = None
    key: str | None = None
    transaction_timeout: timedelta

    @property
    def guarantee(self) -> str:
        return "exactly-once"

    @property
    def output(self) -> KafkaOutput:
        form = RecordForm(self.value, self.key)
        return KafkaOutput(self.address, self.topic, form, self.transaction_timeout)

    @property
    def ownership(self) -> KafkaOwnership:
        return KafkaOwnership(self.pipeline, self.topic)

    def validate(self, schema: pa.Schema) -> None:
        check_topic(self.topic)
        self.output.form.check(schema, self.topic)
        try:
            with closing(KafkaCoordinator(self.address)) as coordinator:
                KafkaAdmin(self.address).partitions(self.topic)
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
        up readers, and whoever restores it begins again."""
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
