"""The state of a run, once a second."""

import msgspec

from pipelines.domain.events.runs import Event
from pipelines.domain.ids import Uid
from pipelines.domain.status import JobStatus


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
