"""Bodies about the cluster, its jobs, their vertices and subtasks, as Flink 2.3 sends them.

Times are milliseconds since the epoch, -1 when not reached; durations are milliseconds. A field
with a default is left out when it has that value.

Source: Flink, `org.apache.flink.runtime.rest.messages` (with `.job`, `.job.metrics`), `webmonitor`.
"""

import msgspec


class Kebab(msgspec.Struct, frozen=True, kw_only=True, rename="kebab", omit_defaults=True):
    """Fields in kebab case, like most of Flink's."""


class Features(Kebab, frozen=True, kw_only=True):
    web_submit: bool
    web_cancel: bool
    web_rescale: bool
    web_history: bool


class DashboardConfiguration(Kebab, frozen=True, kw_only=True):
    refresh_interval: int
    timezone_name: str
    timezone_offset: int
    flink_version: str
    flink_revision: str
    features: Features


class ClusterOverview(Kebab, frozen=True, kw_only=True):
    taskmanagers: int
    slots_total: int
    slots_available: int
    jobs_running: int
    jobs_finished: int
    jobs_cancelled: int
    jobs_failed: int
    flink_version: str
    flink_commit: str


class ApplicationLine(Kebab, frozen=True, kw_only=True):
    id: str
    name: str
    start_time: int
    end_time: int
    duration: int
    status: str
    jobs: dict[str, int]


class Applications(Kebab, frozen=True, kw_only=True):
    applications: list[ApplicationLine]


class JobId(Kebab, frozen=True, kw_only=True):
    id: str
    status: str


class JobIds(Kebab, frozen=True, kw_only=True):
    jobs: list[JobId]


class JobLine(Kebab, frozen=True, kw_only=True):
    jid: str
    name: str
    job_type: str = msgspec.field(name="jobType")
    scheduler_type: str = msgspec.field(name="schedulerType")
    start_time: int
    end_time: int
    duration: int
    state: str
    last_modification: int
    tasks: dict[str, int]
    pending_operators: int


class JobsOverview(Kebab, frozen=True, kw_only=True):
    jobs: list[JobLine]


class ApplicationDetail(Kebab, frozen=True, kw_only=True):
    id: str
    name: str
    status: str
    start_time: int
    end_time: int
    duration: int
    timestamps: dict[str, int]
    jobs: list[JobLine]


class JobState(Kebab, frozen=True, kw_only=True):
    status: str


class PlanInput(Kebab, frozen=True, kw_only=True, rename=None):
    id: str
    num: int
    exchange: str
    ship_strategy: str


class PlanNode(Kebab, frozen=True, kw_only=True, rename=None):
    id: str
    operator: str
    parallelism: int
    operator_strategy: str
    description: str
    optimizer_properties: dict[str, str]
    inputs: list[PlanInput] | msgspec.UnsetType = msgspec.UNSET


class Plan(Kebab, frozen=True, kw_only=True):
    jid: str
    name: str
    type: str
    nodes: list[PlanNode]


class PlanAnswer(Kebab, frozen=True, kw_only=True):
    plan: Plan


class IoMetrics(Kebab, frozen=True, kw_only=True):
    """A `complete` field is false if the number before it is not fully known."""

    read_bytes: int
    read_bytes_complete: bool
    write_bytes: int
    write_bytes_complete: bool
    read_records: int
    read_records_complete: bool
    write_records: int
    write_records_complete: bool
    accumulated_backpressured_time: int
    accumulated_idle_time: int
    accumulated_busy_time: float


class JobVertex(Kebab, frozen=True, kw_only=True):
    id: str
    slot_sharing_group_id: str = msgspec.field(name="slotSharingGroupId")
    name: str
    max_parallelism: int = msgspec.field(name="maxParallelism")
    parallelism: int
    status: str
    start_time: int
    end_time: int
    duration: int
    tasks: dict[str, int]
    metrics: IoMetrics


class JobDetail(Kebab, frozen=True, kw_only=True):
    jid: str
    application_id: str
    name: str
    is_stoppable: bool = msgspec.field(name="isStoppable")
    state: str
    job_type: str
    scheduler_type: str = msgspec.field(name="schedulerType")
    start_time: int
    end_time: int
    duration: int
    max_parallelism: int = msgspec.field(name="maxParallelism")
    now: int
    timestamps: dict[str, int]
    vertices: list[JobVertex]
    status_counts: dict[str, int]
    plan: Plan
    pending_operators: int


class ExecutionConfig(Kebab, frozen=True, kw_only=True):
    restart_strategy: str
    job_parallelism: int
    object_reuse_mode: bool
    user_config: dict[str, str]


class JobConfig(Kebab, frozen=True, kw_only=True):
    jid: str
    name: str
    execution_config: ExecutionConfig


class ConfigEntry(Kebab, frozen=True, kw_only=True):
    key: str
    value: str


class ExceptionEntry(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    exception_name: str
    stacktrace: str
    timestamp: int
    failure_labels: dict[str, str]
    task_name: str | msgspec.UnsetType = msgspec.UNSET
    endpoint: str | msgspec.UnsetType = msgspec.UNSET
    task_manager_id: str | msgspec.UnsetType = msgspec.UNSET
    concurrent_exceptions: list["ExceptionEntry"]


class ExceptionEntries(msgspec.Struct, frozen=True, kw_only=True):
    entries: list[ExceptionEntry]
    truncated: bool


class ExceptionHistory(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    exception_history: ExceptionEntries


class ApplicationException(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    exception_name: str
    stacktrace: str
    timestamp: int
    job_id: str


class ApplicationExceptionEntries(msgspec.Struct, frozen=True, kw_only=True):
    entries: list[ApplicationException]


class ApplicationExceptions(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    exception_history: ApplicationExceptionEntries


class Status(Kebab, frozen=True, kw_only=True):
    id: str


class Errors(Kebab, frozen=True, kw_only=True):
    errors: list[str]


class Spread(Kebab, frozen=True, kw_only=True):
    min: int
    max: int
    avg: int
    sum: int
    median: int
    p25: int
    p75: int
    p95: int


class Aggregated(Kebab, frozen=True, kw_only=True):
    metrics: dict[str, Spread]
    status_duration: dict[str, Spread]


class SubtaskAttempt(Kebab, frozen=True, kw_only=True):
    subtask: int
    status: str
    attempt: int
    endpoint: str
    start_time: int
    end_time: int
    duration: int
    metrics: IoMetrics
    taskmanager_id: str
    status_duration: dict[str, int]
    start_time_again: int = msgspec.field(name="start_time")


class VertexDetail(Kebab, frozen=True, kw_only=True):
    id: str
    name: str
    parallelism: int
    max_parallelism: int = msgspec.field(name="maxParallelism")
    now: int
    subtasks: list[SubtaskAttempt]
    aggregated: Aggregated


class SubtaskBackpressure(Kebab, frozen=True, kw_only=True):
    subtask: int
    level: str = msgspec.field(name="backpressureLevel")
    ratio: float
    idle_ratio: float = msgspec.field(name="idleRatio")
    busy_ratio: float = msgspec.field(name="busyRatio")
    backpressure_level: str


class BackPressure(Kebab, frozen=True, kw_only=True):
    status: str
    level: str = msgspec.field(name="backpressureLevel")
    end_timestamp: int
    subtasks: list[SubtaskBackpressure]
    backpressure_level: str


class BackPressureUnknown(Kebab, frozen=True, kw_only=True):
    status: str


class SubtaskTime(Kebab, frozen=True, kw_only=True):
    subtask: int
    endpoint: str
    duration: int
    timestamps: dict[str, int]


class SubtaskTimes(Kebab, frozen=True, kw_only=True):
    id: str
    name: str
    now: int
    subtasks: list[SubtaskTime]


class VertexTaskManager(Kebab, frozen=True, kw_only=True):
    endpoint: str
    status: str
    start_time: int
    end_time: int
    duration: int
    metrics: IoMetrics
    status_counts: dict[str, int]
    taskmanager_id: str
    aggregated: Aggregated


class VertexTaskManagers(Kebab, frozen=True, kw_only=True):
    id: str
    name: str
    now: int
    taskmanagers: list[VertexTaskManager]


class VertexAccumulators(Kebab, frozen=True, kw_only=True):
    id: str
    user_accumulators: list[str]


class SubtaskAccumulators(Kebab, frozen=True, kw_only=True):
    subtask: int
    attempt: int
    endpoint: str
    user_accumulators: list[str]


class SubtasksAccumulators(Kebab, frozen=True, kw_only=True):
    id: str
    parallelism: int
    subtasks: list[SubtaskAccumulators]


class MetricName(Kebab, frozen=True, kw_only=True):
    id: str


class MetricValue(Kebab, frozen=True, kw_only=True):
    id: str
    value: str


class MetricOverSubtasks(Kebab, frozen=True, kw_only=True):
    """`skew` is the subtasks' mean distance from their mean, in percent of that mean."""

    id: str
    min: float | msgspec.UnsetType = msgspec.UNSET
    max: float | msgspec.UnsetType = msgspec.UNSET
    avg: float | msgspec.UnsetType = msgspec.UNSET
    sum: float | msgspec.UnsetType = msgspec.UNSET
    skew: float | msgspec.UnsetType = msgspec.UNSET


class Resources(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    cpu_cores: float = 0.0
    task_heap_memory: int = 0
    task_off_heap_memory: int = 0
    managed_memory: int = 0
    network_memory: int = 0
    extended_resources: dict[str, int] = {}


class Hardware(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    cpu_cores: int = 0
    physical_memory: int = 0
    free_memory: int = 0
    managed_memory: int = 0


class MemoryConfiguration(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    framework_heap: int = 0
    task_heap: int = 0
    framework_off_heap: int = 0
    task_off_heap: int = 0
    network_memory: int = 0
    managed_memory: int = 0
    jvm_metaspace: int = 0
    jvm_overhead: int = 0
    total_flink_memory: int = 0
    total_process_memory: int = 0


class TaskManager(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    id: str
    path: str
    data_port: int
    jmx_port: int
    time_since_last_heartbeat: int
    slots_number: int
    free_slots: int
    assigned_tasks: int
    total_resource: Resources
    free_resource: Resources
    hardware: Hardware
    memory_configuration: MemoryConfiguration


class TaskManagers(Kebab, frozen=True, kw_only=True):
    taskmanagers: list[TaskManager]


class AllocatedSlot(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    job_id: str
    resource: Resources
    assigned_tasks: int


class TaskManagerMetrics(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Metrics of a Java process and of Netty's buffers."""

    heap_used: int = 0
    heap_committed: int = 0
    heap_max: int = 0
    non_heap_used: int = 0
    non_heap_committed: int = 0
    non_heap_max: int = 0
    direct_count: int = 0
    direct_used: int = 0
    direct_max: int = 0
    mapped_count: int = 0
    mapped_used: int = 0
    mapped_max: int = 0
    netty_shuffle_memory_segments_available: int = 0
    netty_shuffle_memory_segments_used: int = 0
    netty_shuffle_memory_segments_total: int = 0
    netty_shuffle_memory_available: int = 0
    netty_shuffle_memory_used: int = 0
    netty_shuffle_memory_total: int = 0
    garbage_collectors: tuple[()] = ()


class TaskManagerDetail(TaskManager, frozen=True, kw_only=True, rename="camel"):
    allocated_slots: list[AllocatedSlot]
    metrics: TaskManagerMetrics
