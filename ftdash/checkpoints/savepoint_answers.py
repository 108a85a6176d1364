"""The answers of the savepoint queries: frozen values."""

from dataclasses import dataclass
from datetime import datetime

from pipelines.domain.status import SavepointFormat


@dataclass(frozen=True, slots=True)
class RestoredRun:
    run_id: str
    pipeline: str
    number: int
    created_at: datetime
    is_claimed: bool  # the run owns the savepoint, and deletes it when newer points replace it


@dataclass(frozen=True, slots=True)
class Reading:
    """How far all bytes of a point have been read again, and the result."""

    files_read: int
    files: int | None  # None: not known yet
    bytes_read: int
    bytes: int
    moved_at: datetime
    ended_at: datetime | None
    problem: str  # empty: none so far
    waiting_for: str = ""  # why it cannot go on now; it is tried again while a person watches


@dataclass(frozen=True, slots=True)
class Savepoint:
    key: str  # in addresses
    pipeline: str
    run_id: str
    run_number: int
    checkpoint_id: int
    label: str  # empty: none
    labelled_by: str
    labelled_at: datetime | None
    savepoint_format: SavepointFormat
    path: str
    completed_at: datetime
    committed_at: datetime | None
    state_bytes: int
    source_records: int
    parallelism: int
    max_parallelism: int
    watermark_at: datetime | None
    request_label: str  # "stop with savepoint"; empty: no person asked for it
    requester: str
    reason: str
    is_disposed: bool
    is_present: bool  # its manifest is there to be read
    verified_at: datetime | None  # when all its files were last read again, and were as written
    problem: str  # why it was refused at the last check
    reading: Reading | None
    restored_by: list[RestoredRun]  # oldest first

    @property
    def directory(self) -> str:
        return self.path.rstrip("/").rpartition("/")[2]

    @property
    def is_claimed(self) -> bool:
        return any(run.is_claimed for run in self.restored_by)

    @property
    def is_being_read(self) -> bool:
        reading = self.reading
        return self.is_present and reading is not None and reading.ended_at is None


@dataclass(frozen=True, slots=True)
class SavepointPage:
    rows: list[Savepoint]  # newest first
    page: int
    page_count: int
    total_count: int
    kept_bytes: int  # of all that were not disposed of


@dataclass(frozen=True, slots=True)
class OtherPoints:
    """The other points from which a pipeline could still be restored, without the savepoint."""

    count: int
    newest_older_id: int | None  # the nearest one that completed before it
    newest_older_kind: str
    records_between: int | None  # read after that one and before the savepoint
