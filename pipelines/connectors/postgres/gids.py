"""Names of prepared transactions: they say who owns each, so that a writer ends only its own.

    ftdash-<place>-<uid>-<run>-a<attempt>-s<subtask>-i<interval>

`place` is a digest of database, schema and table, because a server has one list for all its
databases; `uid` is a digest of the sink's uid.

`interval` is its beginning: one more than the checkpoint before it. The checkpoint that ends it is
not known while it is written. For a completed checkpoint n the beginning is enough: n has passed
every subtask, so an interval that began before n ended with n at the latest.
"""

import hashlib
import re
from dataclasses import dataclass

from pipelines.connectors.sink import SinkContext
from pipelines.domain.errors import Rejected
from pipelines.domain.ids import Attempt, RunId

GID_BYTES_MAX = 199
"""PostgreSQL's limit."""

_PATTERN = re.compile(
    r"ftdash-(?P<place>[0-9a-f]{16})-(?P<uid>[0-9a-f]{8})-(?P<run>.+)"
    r"-a(?P<attempt>\d+)-s(?P<subtask>\d+)-i(?P<interval>\d+)"
)


@dataclass(frozen=True, slots=True)
class Gid:
    place: str  # of `place_of`
    uid: str  # a digest
    run_id: RunId
    attempt: Attempt
    subtask: int
    interval: int

    @classmethod
    def of(cls, place: str, context: SinkContext, interval: int) -> "Gid":
        """Raises Rejected when the run's name leaves no room."""
        gid = cls(
            place=place,
            uid=_digest(4, context.uid),
            run_id=context.run_id,
            attempt=context.attempt,
            subtask=context.subtask,
            interval=interval,
        )
        if len(str(gid).encode()) > GID_BYTES_MAX:
            raise Rejected(
                f"The name of the run {context.run_id} is too long for a prepared transaction of"
                " PostgreSQL; use PostgresInsert."
            )
        return gid

    @classmethod
    def parsed(cls, text: str) -> "Gid | None":
        """None: the name is not one of ours."""
        found = _PATTERN.fullmatch(text)
        if found is None:
            return None
        return cls(
            place=found["place"],
            uid=found["uid"],
            run_id=RunId(found["run"]),
            attempt=Attempt(int(found["attempt"])),
            subtask=int(found["subtask"]),
            interval=int(found["interval"]),
        )

    def __str__(self) -> str:
        return (
            f"ftdash-{self.place}-{self.uid}-{self.run_id}"
            f"-a{self.attempt}-s{self.subtask}-i{self.interval}"
        )

    def is_orphan_of(self, place: str, context: SinkContext) -> bool:
        """True if an earlier attempt of the run and sink left it to this subtask."""
        return (
            self.place == place
            and self.uid == _digest(4, context.uid)
            and self.run_id == context.run_id
            and self.attempt < context.attempt
            and context.inherits(self.subtask)
        )

    def is_behind(self, place: str, run_id: RunId, restored_id: int) -> bool:
        """True if the run made it behind its starting point: its checkpoint never completed."""
        return self.place == place and self.run_id == run_id and self.interval > restored_id


def place_of(database: str, schema: str, table: str) -> str:
    return _digest(8, database, schema, table)


def _digest(size: int, *names: str) -> str:
    return hashlib.blake2b("\0".join(names).encode(), digest_size=size).hexdigest()
