"""Events of a run and its slots: begun, changed by people, failed, recovered, ended.

They include the outcomes of people's requests, and what an older attempt may not do any more.
`Event` is the base of all events.
"""

import msgspec

from pipelines.domain.errors import FailureKind
from pipelines.domain.ids import Attempt, CheckpointId, RequestId, RunId, Uid
from pipelines.domain.nodes import EdgeKind
from pipelines.domain.origins import RecordOrigin
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
    guarantee: str  # end to end
    guarantee_reason: str = ""  # a clause
    settings: dict[str, str]
    restored_from: str | None  # the point from which this run was asked to start
    driver_pid: int
    vertices: list["VertexShape"]  # topological order
    renamed_uids: dict[Uid, Uid] = msgspec.field(default_factory=dict)
    """Operators that have other uids in the point than in the pipeline."""
    accepted_gaps: list[str] = msgspec.field(default_factory=list)
    """Ranges of input that were gone, and that a person accepted as lost."""
    transaction_timeouts_ms: dict[Uid, int] = msgspec.field(default_factory=dict)
    """The timeout by sink, if its target gives up a transaction that stays open for too long."""


class VertexShape(msgspec.Struct, frozen=True, kw_only=True):
    """One vertex of the running graph: a chain of operators, and the vertices it reads from."""

    uid: Uid
    operators: list[Uid]
    inputs: list[Uid]
    edges: list[EdgeKind] = []  # of the inputs; empty in journals older than the field
    is_source: bool
    is_sink: bool
    parallelism: int | None = None  # None: that of the run


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
    """A person changed settings of the running run; the newest such event applies to every driver.

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
    """The first line of each later segment of a journal: earlier lines that are still needed.

    A reader that has read the earlier segments skips it.

    `kept` are the newest lines on each matter; `under_way` everything that had begun and not ended.
    """

    kept: list[msgspec.Raw]
    under_way: list[msgspec.Raw]


class RequestAccepted(Event, frozen=True, kw_only=True):
    request_id: RequestId


class RequestEnded(Event, frozen=True, kw_only=True):
    """The one terminal state of a request. `path` is the savepoint, if one was taken."""

    request_id: RequestId
    outcome: RequestOutcome
    message: str
    path: str | None = None


class FailureOccurred(Event, frozen=True, kw_only=True):
    """Something failed. `vertex` and `subtask` are known if it was an operator."""

    cause: str  # one sentence: "slot 1 (pid 4711) was killed"
    vertex: Uid | None = None
    subtask: int | None = None
    slot: int | None = None
    detail: str = ""  # stack or log, may be empty
    operator: Uid | None = None  # whose function raised; its vertex is the head of its chain
    origin: RecordOrigin | None = None  # the records it was working on, as far as it is known
    author_trace: str = ""  # the frames of the author's code; empty: none is in the stack
    record: str = ""  # its values, if the settings show them and one record is known
    kind: FailureKind = FailureKind.UNKNOWN


class RecordsIsolated(Event, frozen=True, kw_only=True):
    """The same failure came again at these records: from now on they are read in parts."""

    range: IsolatedRange


class RecordQuarantined(Event, frozen=True, kw_only=True):
    """From now on, no operator gets this record.

    It goes to `directory`, where it is visible once a checkpoint with it has completed.
    """

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


class RestartScheduled(Event, frozen=True, kw_only=True):
    """The run waits on purpose, as its restart strategy says; a person may end the wait."""

    at_ms: int  # wall clock: when the wait ends
    attempt: Attempt  # that begins then
    delay_ms: float  # of the whole wait


class ZombieRefused(Event, frozen=True, kw_only=True):
    """Something of an older attempt still tried to act, and was refused."""

    zombie_attempt: Attempt
    what: str


class OutputSuperseded(Event, frozen=True, kw_only=True):
    """Output committed after the restored point was set aside, so that it is not doubled."""

    sink: Uid
    files: int
    moved_to: str


class StartUndone(Event, frozen=True, kw_only=True):
    """The start of the run was undone: its targets hold the output of `lineage` again."""

    lineage: list[tuple[RunId, CheckpointId]]


class OutputPublishedAgain(Event, frozen=True, kw_only=True):
    """A target that takes nothing back already has records from after the run's starting point.

    Without `restored_id`, the run starts from nothing.
    """

    sink: Uid
    target: str
    records: int | None  # None: not known
    is_at_most: bool = False  # it is not known that all of them are visible
    published_by: RunId
    published_id: CheckpointId | None = None  # the newest checkpoint that they belong to
    restored_run: RunId | None = None
    restored_id: CheckpointId | None = None


class LeftoversDiscarded(Event, frozen=True, kw_only=True):
    """Uncommitted output that no recovery point needs was removed from a target.

    Earlier runs of the pipeline left it there, or the run itself at its end.
    """

    sink: Uid
    target: str
    what: str  # in the plural: "prepared transactions"
    count: int = 0
    runs: tuple[RunId, ...] = ()  # that left it, or some of them
    run_count: int = 0
    size_bytes: int | None = None  # None: the target does not say


class LeftoversKept(Event, frozen=True, kw_only=True):
    """Output that was never committed stays in a target."""

    sink: Uid
    target: str
    what: str
    why: str  # a sentence
    count: int = 0
    runs: tuple[RunId, ...] = ()
    run_count: int = 0


class TargetTakenOver(Event, frozen=True, kw_only=True):
    """The run, which a person started, took a target over from another installation's run.

    That run may not write there any more.
    """

    sink: Uid
    target: str
    from_run: RunId
    from_installation: str  # empty: not known
    epoch: int


class DriverReplaced(Event, frozen=True, kw_only=True):
    """The control plane took the run away from a driver that hung; another one follows.

    The control plane writes it, under the run's lease, in place of both drivers.
    """

    pid: int = 0
    host: str = ""
    silent_ms: float = 0.0  # how long it had shown no sign of life, or no progress
    reason: str = ""  # a sentence: what was missing
    was_killed: bool = False  # else it was fenced off, and can change nothing
