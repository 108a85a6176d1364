"""Events of checkpoints and of their points, and the state of a run once a second."""

from enum import StrEnum

import msgspec

from pipelines.domain.checkpoint_failures import CheckpointFailureReason, SubtaskPhases
from pipelines.domain.errors import FailureKind
from pipelines.domain.events.runs import Event
from pipelines.domain.gaps import Gap
from pipelines.domain.ids import CheckpointId, RequestId, RunId, Uid
from pipelines.domain.ledger import LedgerEntry
from pipelines.domain.status import CheckpointKind, DamageFinder, JobStatus


class CheckpointTriggered(Event, frozen=True, kw_only=True):
    checkpoint_id: CheckpointId
    kind: CheckpointKind
    trigger_ms: int
    subtask_count: int
    request_id: RequestId | None = None


class SubtaskAcknowledged(Event, frozen=True, kw_only=True):
    """One subtask's snapshot is durable. The alignment timeline shows its `phases`."""

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


class RestorePointRefused(Event, frozen=True, kw_only=True):
    """A recovery point did not verify, or relies on lost output; it is not offered again.

    It was verified at a recovery or on schedule.
    """

    path: str
    message: str
    kind: FailureKind = FailureKind.POINT_DAMAGED  # why; events of older versions have none


class DamageRemembered(Event, frozen=True, kw_only=True):
    """Files that checkpoints share were found damaged, or found whole again.

    No later checkpoint refers to a remembered file; the next one writes its content again.
    """

    files: list[str] = msgspec.field(default_factory=list)  # found damaged now
    points: list[str] = msgspec.field(default_factory=list)  # retained, and refer to one of them
    found_by: DamageFinder = DamageFinder.VERIFICATION
    message: str = ""  # what is wrong with the first of the files
    mended: list[str] = msgspec.field(default_factory=list)  # remembered until now, and whole
    remembered: list[str] = msgspec.field(default_factory=list)  # all of the run, from now on


class PointsVerified(Event, frozen=True, kw_only=True):
    """Every byte of the retained points was read again, as scheduled or on request."""

    whole: int
    damaged: int
    not_counted: int = 0  # deleted while they were read, or the storage did not answer
    duration_ms: float
    # Of the whole ones; each damaged one is refused by an event of its own.
    paths: list[str] = msgspec.field(default_factory=list)


class LedgerBegun(Event, frozen=True, kw_only=True):
    """An attempt begins: the ledger is that of `lineage`, and entries after it are void.

    `start` is the entry of the starting point itself, repeated because the driver that completed
    the point may have died before it made one.
    """

    lineage: list[tuple[RunId, CheckpointId]]  # for each run, up to which checkpoint; oldest first
    start: LedgerEntry | None
    gaps: list[Gap] = msgspec.field(default_factory=list)  # that the run went past


class LedgerAdvanced(Event, frozen=True, kw_only=True):
    """A checkpoint is complete, and no sink has been asked yet to commit its output."""

    entry: LedgerEntry


class MetricKind(StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class MetricSpread(msgspec.Struct, frozen=True, kw_only=True):
    """The newest values of a histogram."""

    least: float
    most: float
    mean: float
    p50: float
    p95: float
    p99: float


class MetricSample(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A metric of an author's function in one subtask."""

    operator: Uid
    name: str
    kind: MetricKind
    value: int | float | None = None  # a histogram's is the number of its values; None: not known
    spread: MetricSpread | None = None  # of a histogram with values
    problem: str = ""  # why the value, or a part of it, is not known


class HotKeys(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The keys that get most of what one subtask sends to `vertex`, from a sample of it.

    Shares are of all sampled records, 0 to 1, the greatest first.
    """

    vertex: Uid
    columns: list[str]  # of the key
    sampled: int  # records
    groups: list[tuple[int, float]]  # key groups
    keys: list[tuple[str, float]] = []  # as text; empty: the settings do not show records


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
    pending_records: int | None = None  # for a source: waiting to be read; None: not known
    bytes_in: int | None = None  # through channels since the attempt started, as is the one below
    bytes_out: int | None = None
    queued_ms: int | None = None  # about how long it takes to consume the queue; None: unmeasured
    window_bytes: int | None = None  # what each channel may hold; None: there is no channel
    metrics: list[MetricSample] = msgspec.field(default_factory=list)  # since the attempt started
    hot_keys: list[HotKeys] = msgspec.field(default_factory=list)  # one for each vertex it feeds
    stands_ms: int | None = None  # how long author's code has blocked it; None: it has not
    stands_at: str = ""  # the line of that code
    source_problem: str = msgspec.field(default="", name="trouble")
    """The system of a source that does not answer. Its name in the journal is older."""


class SlotSample(msgspec.Struct, frozen=True, kw_only=True):
    slot: int
    resident_bytes: int


class RestoreProgress(msgspec.Struct, frozen=True, kw_only=True):
    """How much of a recovery point has been read."""

    read_bytes: int
    total_bytes: int
    read_files: int
    total_files: int
    is_verifying: bool = False  # the driver reads it, before the slots do


class MetricsSampled(Event, frozen=True, kw_only=True):
    """Once a second while a driver lives: also its heartbeat."""

    status: JobStatus
    records_per_s: float  # read by all sources over the last period
    last_completed_ms: int | None  # when the newest checkpoint completed
    last_committed_ms: int | None  # when sinks last committed
    subtasks: list[SubtaskSample]
    slots: list[SlotSample]
    counters: dict[str, int] = msgspec.field(default_factory=dict)
    reached_records: int | None = None  # how far the sources have come, in any attempt
    restored_records: int | None = None  # how far they had come where this attempt began
    restoring: RestoreProgress | None = None  # None: no recovery point is being read
    mean_records_per_s: float | None = None  # over the last ten seconds
    next_restart_delay_ms: float | None = None  # of a failure now; None: unknown, or no restart
