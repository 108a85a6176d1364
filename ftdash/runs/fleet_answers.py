"""The results for the page of all pipelines: one line each, with how pressing it is."""

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import NamedTuple

from ftdash.jobs.answers import Liveness, ShownState
from ftdash.metrics.load_rules import Finding
from pipelines.domain.status import JobStatus


class Concern(StrEnum):
    """Why a person should look; the most pressing first."""

    FAILED = "failed"  # it has ended, and nothing works on its input
    DRIVER_LOST = "driver lost"  # another one is on its way
    CLOCK_OFF = "clock off"  # its driver reports from the future
    SILENT = "silent"  # its state is unknown
    STUCK = "stuck"  # it neither starts nor ends
    NO_CHECKPOINT = "no checkpoint"  # for too long, so the cost of a failure grows
    NO_OUTPUT = "no output"  # for too long, although checkpoints complete
    TRANSACTION_EXPIRES = "transaction expires"  # its target gives it up before it is committed
    UNSTABLE = "unstable"  # it recovers again and again
    RECOVERING = "recovering"  # it recovers by itself
    CHECKPOINTS_FAIL = "checkpoints fail"  # the newest ones did
    SOURCE_AWAY = "source away"  # its system does not answer; it waits
    STUCK_CODE = "stuck code"  # a function does not return
    SKEWED = "skewed"  # one subtask has most of the work
    BEHIND = "behind"  # more comes than it processes
    SLOW_CHECKPOINTS = "slow checkpoints"  # compared with what is usual for it
    WATERMARK_STILL = "watermark stands still"
    BACKPRESSURED = "backpressured"
    NONE = "none"

    @property
    def is_urgent(self) -> bool:
        """True if something is lost or may be, unless a person acts."""
        return self in (
            Concern.FAILED,
            Concern.SILENT,
            Concern.STUCK,
            Concern.NO_CHECKPOINT,
            Concern.NO_OUTPUT,
            Concern.TRANSACTION_EXPIRES,
            Concern.UNSTABLE,
        )


@dataclass(frozen=True, slots=True)
class Attention:
    concern: Concern
    text: str  # one sentence, empty if no person needs to look


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPulse:
    """How a run has been doing recently. None: not known."""

    durations_ms: list[float]  # of the newest completed checkpoints, oldest first
    failed_in_row: int  # checkpoints, since the newest that completed
    failed_why: str  # of the newest of them; Flink's sentence
    backpressured_operator: str | None  # the one with the most over the last minute
    backpressured_ratio: float | None  # the least mean over its subtasks in that time
    recent_recovery_count: int  # within `pulse.RECENT`
    records_to_replay: int | None  # about, if it died now
    to_recover_ms: float | None  # about, until those are read again
    recovery_count: int  # the number of measured recoveries behind that
    is_backpressured_long: bool = True  # else it may be catching up for a moment
    findings: list[Finding] = field(default_factory=list)  # the most pressing first


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineSummary:
    """One row of the fleet page."""

    name: str
    flow: str
    run_id: str | None
    run_number: int | None
    state: ShownState
    state_reason: str  # one sentence, may be empty
    last_reported_state: str | None  # the job state before it became STALE or UNKNOWN
    as_of: datetime | None
    guarantee: str
    parallelism: int
    records_per_s: float
    restart_count: int
    last_completed_at: datetime | None
    last_committed_at: datetime | None
    last_checkpoint_id: int | None
    concern: Concern
    attention: str  # why a person should look, empty if no person needs to
    pulse: RunPulse | None  # None: it never ran
    labels: list[str]  # what people group it by, in alphabetical order
    version: str


@dataclass(frozen=True, slots=True)
class Fleet:
    """Pipelines in the order of their concerns, then by name."""

    now: datetime
    projector: Liveness
    reconcile: Liveness
    pipelines: list[PipelineSummary]

    @property
    def is_new(self) -> bool:
        """True if the installation is unused: then no process that has never run is missed."""
        return not self.pipelines and (self.projector.at is None or self.reconcile.at is None)


class NewestRun(NamedTuple):
    """The columns of a pipeline's newest run that a line in the list of all pipelines needs.

    They are half of the columns, without those that take longer to decode the wider the run is.
    Models of all rows would take twice as long to make, and no answer changes them.
    """

    pk: int
    pipeline_id: int
    run_id: str
    number: int
    version: int
    parallelism: int
    settings: dict[str, str]
    changed_settings: dict[str, str] | None
    status: str
    reason: str
    attempt: int
    restart_count: int
    guarantee: str
    transaction_timeouts_ms: dict[str, float]
    restoring: dict[str, object] | None
    projection_error: str
    created_at: datetime
    started_at: datetime | None
    last_event_at: datetime | None
    clock_behind_s: float
    last_checkpoint_id: int | None
    last_completed_at: datetime | None
    last_committed_at: datetime | None
    records_per_s: float
    reached_records: int | None
    restored_records: int | None
    next_restart_delay_ms: float | None
    driver_started_at: datetime | None
    driver_due_at: datetime | None
    driver_waits_since: datetime | None
    driver_note: str
    driver_silence: str

    @property
    def is_terminal(self) -> bool:
        return JobStatus(self.status).is_terminal

    @property
    def settings_now(self) -> dict[str, str]:
        return self.changed_settings or self.settings
