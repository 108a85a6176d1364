"""The results of the queries of jobs: frozen values, complete, with their age.

`as_of` is when the driver last reported what is shown. `state` is a Flink job state, or STALE (the
driver should report once a second and does not) or UNKNOWN (nothing folds the reports).
"""

import re
from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass, field
from datetime import datetime
from enum import StrEnum

from ftdash.jobs.models import RequestPhase
from pipelines.domain.commands import RequestKind
from pipelines.domain.gaps import Gap


class ShownState(StrEnum):
    """JobStatus, and three more states that only an observer can see."""

    NEVER_STARTED = "NEVER_STARTED"
    CREATED = "CREATED"  # a driver is being started
    INITIALIZING = "INITIALIZING"
    RUNNING = "RUNNING"
    RESTARTING = "RESTARTING"
    FAILING = "FAILING"
    FAILED = "FAILED"
    CANCELLING = "CANCELLING"
    CANCELED = "CANCELED"
    FINISHED = "FINISHED"
    STALE = "STALE"
    UNKNOWN = "UNKNOWN"

    @property
    def is_terminal(self) -> bool:
        return self in (ShownState.FAILED, ShownState.CANCELED, ShownState.FINISHED)


@dataclass(frozen=True, slots=True)
class Liveness:
    """One of our own processes, by its last sign of life."""

    is_alive: bool
    at: datetime | None  # None: it has never run
    note: str  # one sentence for a person, empty when all is well
    unread_since: datetime | None = None
    """The time of the oldest event that the projector has not read; None if it has read all."""


@dataclass(frozen=True, slots=True)
class VertexView:
    uid: str
    operators: list[str]
    inputs: list[str]
    is_source: bool
    is_sink: bool
    edges: list[str] = field(default_factory=list)  # domain.nodes.EdgeKind of each input
    _: KW_ONLY
    parallelism: int | None = None  # its own; None: that of the run

    def subtask_count(self, parallelism: int) -> int:
        """Returns the number of its subtasks in a run of this parallelism."""
        return self.parallelism or parallelism


@dataclass(frozen=True, slots=True)
class SlotView:
    slot: int
    pid: int
    host: str
    resident_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SubtaskView:
    """One subtask in the newest sample."""

    vertex: str
    subtask: int
    records_in: int
    records_out: int
    busy_ratio: float
    backpressured_ratio: float
    idle_ratio: float
    watermark_at: datetime | None
    queued_records: int
    queued_bytes: int
    state_bytes: int
    busy_ms: int | None = None  # since the attempt started; None: it did not say
    backpressured_ms: int | None = None
    idle_ms: int | None = None
    pending_records: int | None = None  # records there to be read, of a source that knows
    bytes_in: int | None = None  # through channels, since the attempt started
    bytes_out: int | None = None
    queued_ms: int | None = None  # about how long the queued records take; None: not measured
    window_bytes: int | None = None  # what each of its channels may hold
    stands_ms: int | None = None  # how long author's code has held it
    stands_at: str = ""  # the line of that code
    trouble: str = ""  # a source whose system does not answer; its name in the API


@dataclass(frozen=True, slots=True, kw_only=True)
class RunView:
    """Everything the header of a pipeline's page says about one run."""

    run_id: str
    number: int
    attempt: int
    state: ShownState
    state_reason: str
    last_reported_state: str
    as_of: datetime | None
    driver_note: str  # what the control plane last did about the driver, and why
    projection_error: str
    guarantee: str  # from end to end
    guarantee_reason: str
    parallelism: int
    max_parallelism: int
    master: str
    code: str  # the package that it runs, with version and digest; empty: an installed one
    parameters: dict[str, str]
    settings: dict[str, str]
    restored_from: str | None
    parent_run_id: str | None
    input_gaps: list[Gap]  # input that was gone, and that a person accepted as lost
    created_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    driver_pid: int | None
    records_per_s: float
    watermark_at: datetime | None
    last_checkpoint_id: int | None
    last_completed_at: datetime | None
    last_committed_at: datetime | None
    restart_count: int
    counters: dict[str, int]
    vertices: list[VertexView]
    slots: list[SlotView]
    subtasks: list[SubtaskView]
    records_to_replay: int | None  # about, if it died now; None: not known
    to_recover_ms: float | None  # about, until those are read again; None: not known, or not run
    restart_at: datetime | None  # when it continues, while it waits before a restart
    next_restart_delay_ms: float | None  # of a failure now; None: not known
    recovery_count: int  # the number of measured recoveries that this rests on
    journal_path: str
    journal_gap: str  # what was deleted before it was read; a sentence
    driver_log_path: str

    @property
    def next_attempt(self) -> int:
        return self.attempt + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RunBrief:
    """One run in the list of a pipeline's runs, newest first."""

    run_id: str
    number: int
    state: ShownState
    parallelism: int
    restored_from: str | None
    parent_run_id: str | None
    started_at: datetime | None
    ended_at: datetime | None
    reason: str


@dataclass(frozen=True, slots=True)
class ActionOffer:
    """Says whether an action makes sense now, not whether this person may do it."""

    kind: RequestKind
    is_possible: bool
    why_not: str  # one sentence, empty when possible
    consequence: str  # one sentence with numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestView:
    """One request of a person: its progress, and its line in the audit log."""

    request_id: str
    kind: RequestKind
    label: str  # "stop with savepoint"
    pipeline: str
    run_id: str | None
    parameters: dict[str, str]
    requester: str
    reason: str
    phase: RequestPhase
    phase_label: str
    is_open: bool
    waits_for_delivery: bool  # stored, and the worker has not taken it for 3 s
    message: str
    path: str | None
    checkpoint_id: int | None
    created_at: datetime
    ended_at: datetime | None
    deadline_at: datetime


@dataclass(frozen=True, slots=True)
class Mark:
    """Something that was deployed or changed; charts mark it on their time axes."""

    at: datetime
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelinePage:
    """A pipeline with its newest run (None before the first) and what can be done to it."""

    now: datetime
    name: str
    flow: str
    parallelism: int  # the default of the next run
    max_parallelism: int
    parameters: dict[str, str]
    settings: dict[str, str]
    allows_faults: bool
    labels: list[str]  # what people group it by
    version: str
    run: RunView | None
    runs: list[RunBrief]
    actions: dict[RequestKind, ActionOffer]
    open_requests: list[RequestView]
    marks: list[Mark]  # the newest, oldest first
    projector: Liveness
    reconcile: Liveness


@dataclass(frozen=True, slots=True)
class PhaseView:
    phase: str  # domain.status.RecoveryPhase
    duration_ms: float
    at: datetime  # when it was reached


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryView:
    run_id: str
    attempt: int
    started_at: datetime
    running_at: datetime | None  # None: not running again yet
    ended_at: datetime | None
    to_running_ms: float | None  # sum of the phases up to all subtasks running
    phases: list[PhaseView]
    restored_checkpoint_id: int | None
    restored_path: str | None
    records_to_replay: int | None


@dataclass(frozen=True, slots=True)
class RecordsView:
    """A range of one split; both offsets belong to it."""

    source: str
    split: str
    first_offset: int
    last_offset: int
    is_moment: bool  # it only gives the time: what failed was made from other records


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureView:
    run_id: str
    attempt: int
    at: datetime
    cause: str
    vertex: str | None
    subtask: int | None
    slot: int | None
    detail: str
    label: str = "SYSTEM"  # Flink's failure label "type": USER or SYSTEM
    error_type: str = ""  # the exception's, without its module; empty: nothing was raised
    operator: str | None = None  # whose function raised
    records: RecordsView | None = None  # what it was working on, as far as it is known
    author_trace: str = ""  # the frames of the author's code
    record: str = ""  # its values, if the run's settings show them


@dataclass(frozen=True, slots=True)
class FailureGroup:
    """One failure, with the number of times that it has come."""

    newest: FailureView
    count: int
    first_at: datetime


_NUMBER = re.compile(r"\d+")


def grouped(newest_first: Iterable[FailureView]) -> list[FailureGroup]:
    """Groups equal failures; the group that failed last comes first.

    Failures that differ only in the numbers of processes, attempts and offsets are equal.
    """
    found: dict[tuple[str | None, str], FailureGroup] = {}
    for failure in newest_first:
        key = (failure.operator or failure.vertex, _NUMBER.sub("", failure.cause))
        known = found.get(key)
        group = FailureGroup(failure, 1, failure.at)
        if known is not None:
            group = FailureGroup(known.newest, known.count + 1, failure.at)
        found[key] = group
    return list(found.values())


@dataclass(frozen=True, slots=True)
class StatusView:
    run_id: str
    at: datetime
    status: str
    reason: str


@dataclass(frozen=True, slots=True)
class AxisPoint:
    """A completed checkpoint or savepoint on the time axis."""

    run_id: str
    checkpoint_id: int
    kind: str
    at: datetime
    is_available: bool  # not discarded
    path: str | None


@dataclass(frozen=True, slots=True)
class Notice:
    """Something a person should know that is neither failure nor recovery, oldest first."""

    kind: str
    """One of restore_refused, zombie_refused, output_superseded, output_published_again,
    leftovers_discarded, leftovers_kept or target_taken_over.
    """

    run_id: str
    attempt: int
    at: datetime
    text: str


@dataclass(frozen=True, slots=True)
class VerificationView:
    """The retained points were read again, byte for byte."""

    run_id: str
    at: datetime
    whole: int
    damaged: int
    not_counted: int  # deleted meanwhile, or the storage did not answer
    duration_ms: float


@dataclass(frozen=True, slots=True)
class DamageView:
    """Files that checkpoints share were found damaged, or whole again."""

    run_id: str
    at: datetime
    what: str
    outcome: str  # which points that concerns, and what follows
    message: str  # what is wrong with the first file


@dataclass(frozen=True, slots=True)
class ZombiesView:
    """The refusals of one attempt that was over: how many, and the last time."""

    attempt: int  # 0: a stranger that claimed no past attempt
    kind: str  # "late commit", "late acknowledgement", "connection", ...
    count: int
    last_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class QuarantinedView:
    """A record that no operator receives any more."""

    at: datetime
    source: str
    split: str
    offset: int
    operator: str
    error_type: str  # without its module
    error: str
    directory: str


@dataclass(frozen=True, slots=True)
class QuarantineView:
    """The quarantine of one run; `records` are the newest, newest first."""

    count: int
    limit: int  # 0: the run has set nothing aside
    records: list[QuarantinedView]
    replays: list["ReplayView"] = field(default_factory=list)  # newest first

    @property
    def directories(self) -> list[str]:
        return sorted({record.directory for record in self.records})


@dataclass(frozen=True, slots=True)
class ReplayView:
    """A run that reads the quarantine again; `records` counts those read so far."""

    run_id: str
    run_number: int
    sources: list[str]
    records: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryAxis:
    """Failures, recoveries and recovery points of one run on one time axis, oldest first."""

    run_id: str
    from_at: datetime
    to_at: datetime
    points: list[AxisPoint] = field(default_factory=list)
    failures: list[FailureView] = field(default_factory=list)
    recoveries: list[RecoveryView] = field(default_factory=list)
    statuses: list[StatusView] = field(default_factory=list)
    notices: list[Notice] = field(default_factory=list)
    verifications: list[VerificationView] = field(default_factory=list)
    damages: list[DamageView] = field(default_factory=list)
    zombies: list[ZombiesView] = field(default_factory=list)  # oldest attempt first
