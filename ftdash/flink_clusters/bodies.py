"""The decoded answers of the REST interface of Flink 1.20 and 2.3. Pure.

A struct has the fields that ftdash uses and ignores all others, because each version of Flink adds
some. A field that a version may leave out has a default. Source: Flink,
`org.apache.flink.runtime.rest.messages`.
"""

from collections.abc import Iterable
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct, field

from pipelines.domain.errors import UNDECODABLE, Rejected

Answer = TypeVar("Answer")
NOT_SET = -1
Hex32 = Annotated[str, Meta(pattern="^[0-9a-f]{32}$")]
"""The id of a job, vertex or trigger. It becomes part of an address, so nothing else may pass."""


Long = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Count = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Millis = Annotated[int, Meta(ge=-1, le=253_402_300_799_000)]
"""In ms since the epoch, up to the year 9999."""


class Kebab(Struct, frozen=True, rename="kebab"):
    """Fields whose names are in kebab case, as most of Flink's are."""


class Snake(Struct, frozen=True):
    """Fields whose names are in snake case, as in Flink's statistics of checkpoints."""


class DashboardConfig(Kebab, frozen=True):
    flink_version: str


class JobOverview(Kebab, frozen=True):
    """Times are in ms since the epoch; `NOT_SET` means that there is none."""

    jid: Hex32
    name: str
    state: str
    start_time: Millis
    end_time: Millis = NOT_SET
    last_modification: Millis = NOT_SET


class JobsOverview(Struct, frozen=True):
    jobs: list[JobOverview]


class Vertex(Kebab, frozen=True):
    id: Hex32
    name: str
    parallelism: Count
    status: str = ""


class JobDetail(Kebab, frozen=True):
    now: Millis = NOT_SET  # the clock of Flink
    vertices: list[Vertex] = []


class Counts(Snake, frozen=True):
    restored: Long = 0
    total: Long = 0
    in_progress: Long = 0
    completed: Long = 0
    failed: Long = 0


class CheckpointStatistics(Snake, frozen=True):
    """One attempt. `end_to_end_duration` and sizes cover the subtasks that have acknowledged."""

    id: Long
    status: Literal["IN_PROGRESS", "COMPLETED", "FAILED"]
    trigger_timestamp: Millis
    is_savepoint: bool = False
    savepoint_format: str | None = field(default=None, name="savepointFormat")
    latest_ack_timestamp: Millis = NOT_SET
    checkpointed_size: Long | None = None
    state_size: Long | None = None
    end_to_end_duration: Long | None = None
    processed_data: Long | None = None
    persisted_data: Long | None = None
    num_subtasks: Count = 0
    num_acknowledged_subtasks: Count = 0
    checkpoint_type: str | None = None
    external_path: str | None = None
    discarded: bool = False
    failure_timestamp: Millis | None = None
    failure_message: str | None = None


class Restored(Snake, frozen=True):
    id: Long
    restore_timestamp: Millis
    is_savepoint: bool = False
    external_path: str | None = None


class Latest(Snake, frozen=True):
    completed: CheckpointStatistics | None = None
    savepoint: CheckpointStatistics | None = None
    failed: CheckpointStatistics | None = None
    restored: Restored | None = None


class Checkpoints(Snake, frozen=True):
    counts: Counts
    latest: Latest = Latest()
    history: list[CheckpointStatistics] = []

    def all(self) -> list[CheckpointStatistics]:
        """Returns the history, plus the latest of each kind if missing there. Newest first."""
        latest = (self.latest.completed, self.latest.savepoint, self.latest.failed)
        found = {each.id: each for each in latest if each is not None}
        found |= {each.id: each for each in self.history}
        return [found[key] for key in sorted(found, reverse=True)]


class CutFigures(Snake, frozen=True):
    sync: Long
    async_: Long = field(name="async")


class AlignmentFigures(Snake, frozen=True):
    duration: Long
    processed: Long = 0
    persisted: Long = 0


class SubtaskStatistics(Snake, frozen=True):
    """The figures are absent until the subtask has acknowledged."""

    index: Count
    status: str
    ack_timestamp: Long = NOT_SET
    end_to_end_duration: Long = 0
    checkpointed_size: Long = 0
    state_size: Long = 0
    checkpoint: CutFigures | None = None
    alignment: AlignmentFigures | None = None
    start_delay: Long = 0
    unaligned_checkpoint: bool = False
    aborted: bool = False


class VertexCheckpoint(Snake, frozen=True):
    subtasks: list[SubtaskStatistics]


class SubtaskPart(Snake, frozen=True):
    """The figures that are kept of one subtask that has acknowledged.

    Times are in ms; `acknowledged_ms` is the time after the trigger.
    """

    vertex: str
    index: int
    start_delay_ms: int
    alignment_ms: int
    sync_ms: int
    async_ms: int
    acknowledged_ms: int
    uploaded_bytes: int
    state_bytes: int
    processed_bytes: int
    persisted_bytes: int
    is_unaligned: bool
    is_aborted: bool


def parts_of(vertex: str, answer: VertexCheckpoint) -> list[SubtaskPart]:
    """Returns the parts of the subtasks that have acknowledged."""
    return [
        SubtaskPart(
            vertex=vertex,
            index=each.index,
            start_delay_ms=max(0, each.start_delay),
            alignment_ms=max(0, each.alignment.duration),
            sync_ms=max(0, each.checkpoint.sync),
            async_ms=max(0, each.checkpoint.async_),
            acknowledged_ms=each.end_to_end_duration,
            uploaded_bytes=each.checkpointed_size,
            state_bytes=each.state_size,
            processed_bytes=each.alignment.processed,
            persisted_bytes=each.alignment.persisted,
            is_unaligned=each.unaligned_checkpoint,
            is_aborted=each.aborted,
        )
        for each in answer.subtasks
        if each.checkpoint is not None and each.alignment is not None
    ]


class FailureEntry(Struct, frozen=True, kw_only=True, rename="camel"):
    exception_name: str
    stacktrace: str = ""
    timestamp: Millis
    task_name: str | None = None
    endpoint: str | None = None
    task_manager_id: str | None = None


class ExceptionHistory(Struct, frozen=True):
    entries: list[FailureEntry] = []


class Exceptions(Struct, frozen=True, rename="camel"):
    exception_history: ExceptionHistory = ExceptionHistory()


class SubtaskPressure(Struct, frozen=True, kw_only=True, rename="camel"):
    """Ratios of time, 0 to 1; Flink writes an unknown ratio as "NaN"."""

    ratio: float | str = 0.0
    idle_ratio: float | str = 0.0
    busy_ratio: float | str = 0.0


class VertexPressure(Kebab, frozen=True):
    """The `status` "deprecated" means that Flink has no fresh figures yet and gathers them."""

    status: str
    backpressure_level: str = "ok"
    subtasks: list[SubtaskPressure] = []


class Pressure(Snake, frozen=True):
    """The backpressure of an operator: Flink's level, and its subtasks' greatest ratios, 0 to 1."""

    vertex: str
    name: str
    level: str
    ratio: float
    busy_ratio: float
    idle_ratio: float


def pressure_of(vertex: Vertex, answer: VertexPressure) -> Pressure | None:
    """Returns None while Flink has no fresh figures."""
    if answer.status != "ok" or not answer.subtasks:
        return None
    return Pressure(
        vertex=vertex.id,
        name=vertex.name,
        level=answer.backpressure_level,
        ratio=_greatest(each.ratio for each in answer.subtasks),
        busy_ratio=_greatest(each.busy_ratio for each in answer.subtasks),
        idle_ratio=_greatest(each.idle_ratio for each in answer.subtasks),
    )


def _greatest(ratios: Iterable[float | str]) -> float:
    return max((each for each in ratios if isinstance(each, float)), default=0.0)


class Metric(Struct, frozen=True):
    id: str
    value: str = ""


class FailureCause(Struct, frozen=True, rename="kebab"):
    class_: str = field(default="", name="class")
    stack_trace: str = ""

    @property
    def first_line(self) -> str:
        return self.stack_trace.strip().partition("\n")[0] or self.class_ or "Flink gave no reason"


class Operation(Struct, frozen=True, kw_only=True):
    """The outcome of a trigger: of a savepoint or a stop, or of a checkpoint."""

    location: str | None = None
    checkpoint_id: Long | None = field(default=None, name="checkpointId")
    savepoint_failure: FailureCause | None = field(default=None, name="failure-cause")
    checkpoint_failure: FailureCause | None = field(default=None, name="failureCause")

    @property
    def failure(self) -> FailureCause | None:
        return self.savepoint_failure or self.checkpoint_failure


class TriggerStatus(Struct, frozen=True):
    id: str


class TriggerResult(Struct, frozen=True):
    status: TriggerStatus
    operation: Operation | None = None


class JobStatus(Struct, frozen=True):
    status: str


class Errors(Struct, frozen=True):
    errors: list[str] = []


Settings = dict[str, Any]
"""Flink's answer about the checkpoint settings of a job, unchanged."""


def decoded(content: bytes, type_: type[Answer], path: str) -> Answer:
    """Raises Rejected if this is not an answer of Flink."""
    try:
        return msgspec.json.decode(content, type=type_)
    except UNDECODABLE as error:
        raise Rejected(f"Its answer to {path} is none of Flink: {error}") from error


def first_error(content: bytes) -> str:
    """Returns the first line of Flink's own message, or an empty string if there is none."""
    try:
        found = msgspec.json.decode(content, type=Errors).errors
    except UNDECODABLE:
        return ""
    return found[0].strip().partition("\n")[0][:500] if found else ""
