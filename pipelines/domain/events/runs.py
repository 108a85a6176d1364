"""A run and its slots: begun, changed by people, ended."""

import msgspec

from pipelines.domain.events.base import Event
from pipelines.domain.ids import RequestId, Uid
from pipelines.domain.nodes import EdgeKind
from pipelines.domain.status import CheckpointKind, JobStatus, StopStage


class RunStarted(Event, frozen=True, kw_only=True):
    """A driver took the lease of a run (the first time, or after its predecessor died)."""

    pipeline: str
    parallelism: int
    max_parallelism: int
    master: str
    guarantee: str  # end to end
    guarantee_reason: str = ""  # a clause
    settings: dict[str, str]
    restored_from: str | None  # the point from which this run was asked to start
    driver_pid: int
    vertices: list["VertexShape"]  # topological order
    transaction_timeouts_ms: dict[Uid, int] = msgspec.field(default_factory=dict)
    """By sink, if its target gives up a transaction that stays open for too long."""


class VertexShape(msgspec.Struct, frozen=True, kw_only=True):
    """One vertex of the running graph: a chain of operators, and the vertices it reads from."""

    uid: Uid
    operators: list[Uid]
    inputs: list[Uid]
    edges: list[EdgeKind] = []  # of the inputs; empty in journals older than the field
    is_source: bool
    is_sink: bool


class JobStatusChanged(Event, frozen=True, kw_only=True):
    status: JobStatus
    reason: str = ""


class SlotConnected(Event, frozen=True, kw_only=True):
    slot: int
    pid: int
    host: str


class SlotLost(Event, frozen=True, kw_only=True):
    slot: int
    pid: int
    reason: str


class SettingsChanged(Event, frozen=True, kw_only=True):
    """A person changed settings of the running run; the newest such event holds for every driver.

    `settings` are all the given settings, `changed` those that this event changed.
    """

    settings: dict[str, str]
    changed: dict[str, str]
    requested_by: str
    reason: str


class RunStopping(Event, frozen=True, kw_only=True):
    """From now on any driver of the run ends it with the point at `path`, once that is complete."""

    path: str
    kind: CheckpointKind  # a savepoint, or the final checkpoint
    cancels_run: bool
    request_id: RequestId | None
    stage: StopStage = StopStage.PUBLISHED


class RunEnded(Event, frozen=True, kw_only=True):
    """The driver gave the lease back. No event follows in this journal."""

    status: JobStatus
    reason: str


class JournalContinued(Event, frozen=True, kw_only=True):
    """The first line of every segment of a journal but the first: the lines of earlier segments
    that are still needed. A reader that has read those segments skips it.

    `kept` are the newest lines on each matter; `under_way` everything that had begun and not ended.
    """

    kept: list[msgspec.Raw]
    under_way: list[msgspec.Raw]
