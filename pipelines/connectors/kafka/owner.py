"""Who writes to a topic for a pipeline: names of its transactions, and a mark of who came last.

The mark is the text beside an offset of the group `ftdash/PIPELINE/TOPIC`; nobody reads with it. It
refuses a replaced writer early and by name. That such a writer publishes nothing does not depend
on it: its transactions are ended, and only a checkpoint's completion commits one.
"""

import re
from dataclasses import dataclass
from urllib.parse import quote, unquote

import msgspec

from pipelines.connectors.kafka.coordinator import KafkaCoordinator
from pipelines.connectors.sink import SinkContext
from pipelines.domain.errors import ProtocolError
from pipelines.domain.ids import Attempt, RunId, Uid

PART = r"([^/]+)"


@dataclass(frozen=True, slots=True)
class TransactionName:
    """Never used twice: what has been prepared under it can be nothing else."""

    uid: Uid
    run_id: RunId
    attempt: Attempt
    subtask: int
    number: int


class Owner(msgspec.Struct, frozen=True, kw_only=True):
    run_id: RunId
    attempt: Attempt


@dataclass(frozen=True, slots=True)
class KafkaOwnership:
    """Of two runs with the same pipeline and topic the one that came last writes."""

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
        """None: somebody else's."""
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

    def is_log_of_another_run(self, transactional_id: str, run_id: RunId) -> bool:
        found = re.fullmatch(rf"{re.escape(self.prefix)}/{PART}/{PART}/log/\d+", transactional_id)
        return found is not None and found[2] != _quoted(run_id)

    def take_over(self, coordinator: KafkaCoordinator, run_id: RunId) -> None:
        """From now on writers of other runs are refused."""
        owner = self._owner(coordinator)
        if owner is None or owner.run_id != run_id:
            self._put(coordinator, Owner(run_id=run_id, attempt=Attempt(0)))

    def enter(self, coordinator: KafkaCoordinator, context: SinkContext) -> None:
        """From now on older attempts are refused. Raises ProtocolError if this one is."""
        owner = self.check_current(coordinator, context)
        mine = Owner(run_id=context.run_id, attempt=context.attempt)
        if owner != mine:
            self._put(coordinator, mine)

    def check_current(self, coordinator: KafkaCoordinator, context: SinkContext) -> Owner | None:
        """Raises ProtocolError if a newer attempt or another run writes here now."""
        owner = self._owner(coordinator)
        if owner and (owner.run_id != context.run_id or owner.attempt > context.attempt):
            raise ProtocolError(
                f"attempt {context.attempt} of run {context.run_id} may not write to topic"
                f" {self.topic} any more: attempt {owner.attempt} of run {owner.run_id} does"
            )
        return owner

    def _owner(self, coordinator: KafkaCoordinator) -> Owner | None:
        mark = coordinator.remembered(self.prefix, self.topic)
        return None if mark is None else msgspec.json.decode(mark[1], type=Owner)

    def _put(self, coordinator: KafkaCoordinator, owner: Owner) -> None:
        coordinator.remember(self.prefix, self.topic, 0, msgspec.json.encode(owner).decode())


def _quoted(part: str) -> str:
    return quote(part, safe="")
