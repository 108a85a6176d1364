"""What the engine tells the world: one frozen type per event, JSON on the wire.

The journal holds `Envelope`s, one JSON object a line; the projector folds them into rows. A
reader that meets an event it does not know must stop, not skip. All times are wall-clock
milliseconds since the epoch (UTC); all durations are milliseconds and were measured on a
monotonic clock.
"""

import msgspec

from pipelines.domain.checkpoint_failures import CheckpointFailureReason
from pipelines.domain.ids import Attempt, CheckpointId, RequestId, RunId, Uid
from pipelines.domain.ledger import LedgerEntry
from pipelines.domain.nodes import EdgeKind
from pipelines.domain.origin import RecordOrigin
from pipelines.domain.phases import SubtaskPhases
from pipelines.domain.poison import IsolatedRange, PoisonRecord
from pipelines.domain.status import (
    CheckpointKind,
    JobStatus,
    RecoveryPhase,
    RequestOutcome,
    StopStage,
)


class Event(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Base of all events; the JSON field `type` carries the class name."""


class RunStarted(Event, frozen=True, kw_only=True):
    """A driver took the lease of a run (the first time, or after its predecessor died)."""

    pipeline: str
    parallelism: int
    max_parallelism: int
    master: str
    guarantee: str  # from end to end
    guarantee_reason: str = ""  # a clause
    settings: dict[str, str]
    restored_from: str | None  # the point this run was asked to start from
    driver_pid: int
    vertices: list["VertexShape"]  # topological order


class VertexShape(msgspec.Struct, frozen=True, kw_only=True):
    """One vertex of the running graph: a chain of operators, and whom it reads from."""

    uid: Uid
    operators: list[Uid]
    inputs: list[Uid]
    edges: list[EdgeKind] = []  # of the inputs; empty in journals older than it
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


class CheckpointTriggered(Event, frozen=True, kw_only=True):
    checkpoint_id: CheckpointId
    kind: CheckpointKind
    trigger_ms: int
    subtask_count: int
    request_id: RequestId | None = None


class SubtaskAcknowledged(Event, frozen=True, kw_only=True):
    """One subtask's snapshot is durable. `phases` is what the alignment timeline is drawn from."""

    checkpoint_id: CheckpointId
    phases: SubtaskPhases


class CheckpointCompleted(Event, frozen=True, kw_only=True):
    """The manifest is durable: recovery goes back to this point from now on."""

    checkpoint_id: CheckpointId
    kind: CheckpointKind
    path: str
    end_to_end_ms: float
    state_bytes: int  # full size of the state in the point
    uploaded_bytes: int  # what this checkpoint wrote
    buffered_records: int
    buffered_bytes: int
    persisted_bytes: int = 0  # records in flight, overtaken by the barriers and kept in the point
    source_records: int  # records read by the sources up to this cut, since the first run
    watermark_ms: int | None
    counters: dict[str, int]  # counters of operators at this cut, `<uid>.<name>`


class CheckpointFailed(Event, frozen=True, kw_only=True):
    """`checkpoint_id` is None when the request was refused before it got an id."""

    checkpoint_id: CheckpointId | None
    reason: CheckpointFailureReason
    message: str
    request_id: RequestId | None = None


class CheckpointCommitted(Event, frozen=True, kw_only=True):
    """Every sink has committed what belongs to this checkpoint: output is visible."""

    checkpoint_id: CheckpointId


class CheckpointDiscarded(Event, frozen=True, kw_only=True):
    """Retention deleted the files of a completed checkpoint that newer ones replace."""

    checkpoint_id: CheckpointId


class ClaimedPointDiscarded(Event, frozen=True, kw_only=True):
    """Retention deleted the point that this run was restored from and had claimed."""

    path: str


class FailureOccurred(Event, frozen=True, kw_only=True):
    """Something died. `vertex` and `subtask` are known when an operator failed."""

    cause: str  # one sentence: "slot 1 (pid 4711) was killed"
    vertex: Uid | None = None
    subtask: int | None = None
    slot: int | None = None
    detail: str = ""  # stack or log, may be empty
    operator: Uid | None = None  # whose function raised; its vertex is the head of its chain
    origin: RecordOrigin | None = None  # the records it was working on, as far as it is known


class RecordsIsolated(Event, frozen=True, kw_only=True):
    """The same failure came again at these records: from now on they are read in parts."""

    range: IsolatedRange


class RecordQuarantined(Event, frozen=True, kw_only=True):
    """From now on no operator is given this record: it goes to `directory`, where it is visible
    once a checkpoint has completed that has it."""

    record: PoisonRecord
    directory: str
    count: int  # of this run, with this one
    limit: int


class RecoveryPhaseReached(Event, frozen=True, kw_only=True):
    """Phase `phase` of the recovery that leads to attempt `attempt` took `duration_ms`."""

    phase: RecoveryPhase
    duration_ms: float
    restored_checkpoint_id: CheckpointId | None = None  # None: from the beginning
    restored_path: str | None = None
    records_to_replay: int | None = None


class RestorePointRefused(Event, frozen=True, kw_only=True):
    """A recovery point did not verify, at a recovery or on schedule; it is not offered again."""

    path: str
    message: str


class PointsVerified(Event, frozen=True, kw_only=True):
    """Every byte of the retained points was read again, as scheduled."""

    whole: int
    damaged: int
    duration_ms: float
    paths: list[str] = []  # of the whole ones; each damaged one is refused by an event of its own


class ZombieRefused(Event, frozen=True, kw_only=True):
    """Something of an older attempt spoke up and was refused."""

    zombie_attempt: Attempt
    what: str


class OutputSuperseded(Event, frozen=True, kw_only=True):
    """Output committed after the restored point was set aside, so that it is not doubled."""

    sink: Uid
    files: int
    moved_to: str


class LedgerBegun(Event, frozen=True, kw_only=True):
    """An attempt begins: the ledger is that of `lineage`; what was entered behind it is void.

    `start` is the entry of the starting point itself, once more: the driver that completed it may
    have died before it made one.
    """

    lineage: list[tuple[RunId, CheckpointId]]  # for each run, up to which checkpoint; oldest first
    start: LedgerEntry | None


class LedgerAdvanced(Event, frozen=True, kw_only=True):
    """A checkpoint is complete, and no sink has been told yet to commit what belongs to it."""

    entry: LedgerEntry


class RequestAccepted(Event, frozen=True, kw_only=True):
    request_id: RequestId


class RequestEnded(Event, frozen=True, kw_only=True):
    """The one terminal state of a request. `path` is the savepoint, where one was taken."""

    request_id: RequestId
    outcome: RequestOutcome
    message: str
    path: str | None = None


class SubtaskSample(msgspec.Struct, frozen=True, kw_only=True):
    """One subtask over the last sampling period. Ratios are 0 to 1 and sum to about 1."""

    vertex: Uid
    subtask: int
    records_in: int  # since the attempt started
    records_out: int
    busy_ratio: float
    backpressured_ratio: float
    idle_ratio: float
    watermark_ms: int | None
    queued_records: int
    queued_bytes: int
    state_bytes: int
    busy_ms: int | None = None  # since the attempt started, as are the two below
    backpressured_ms: int | None = None
    idle_ms: int | None = None


class SlotSample(msgspec.Struct, frozen=True, kw_only=True):
    slot: int
    resident_bytes: int


class MetricsSampled(Event, frozen=True, kw_only=True):
    """Once a second while a driver lives: also its heartbeat."""

    status: JobStatus
    records_per_s: float  # read by all sources over the last period
    last_completed_ms: int | None  # when the newest checkpoint completed
    last_committed_ms: int | None  # when sinks last committed
    subtasks: list[SubtaskSample]
    slots: list[SlotSample]
    counters: dict[str, int] = {}


class SettingsChanged(Event, frozen=True, kw_only=True):
    """A person changed settings of the running run; the newest such event holds for every driver.

    `settings` are all that are given, `changed` those that this changed.
    """

    settings: dict[str, str]
    changed: dict[str, str]
    requested_by: str
    reason: str


class RunStopping(Event, frozen=True, kw_only=True):
    """Whoever drives the run now ends it with the point at `path`, once that is complete."""

    path: str
    kind: CheckpointKind  # a savepoint, or the final checkpoint
    cancels_run: bool
    request_id: RequestId | None
    stage: StopStage = StopStage.PUBLISHED


class RunEnded(Event, frozen=True, kw_only=True):
    """The driver gave the lease back. Nothing follows in this journal."""

    status: JobStatus
    reason: str


EngineEvent = (
    RunStarted
    | JobStatusChanged
    | SlotConnected
    | SlotLost
    | CheckpointTriggered
    | SubtaskAcknowledged
    | CheckpointCompleted
    | CheckpointFailed
    | CheckpointCommitted
    | CheckpointDiscarded
    | ClaimedPointDiscarded
    | FailureOccurred
    | RecordsIsolated
    | RecordQuarantined
    | RecoveryPhaseReached
    | RestorePointRefused
    | PointsVerified
    | ZombieRefused
    | OutputSuperseded
    | LedgerBegun
    | LedgerAdvanced
    | RequestAccepted
    | RequestEnded
    | MetricsSampled
    | SettingsChanged
    | RunStopping
    | RunEnded
)


class Envelope(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a journal. `sequence` starts at 1 and has no gaps within a run."""

    sequence: int
    at_ms: int
    run_id: RunId
    attempt: Attempt
    event: EngineEvent
