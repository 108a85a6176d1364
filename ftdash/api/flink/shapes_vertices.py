"""Bodies about vertices, their subtasks and their metrics, as Flink 2.3 sends them.

Source: Flink, `org.apache.flink.runtime.rest.messages.job` and `.job.metrics`.
"""

import msgspec

from ftdash.api.flink.shapes_jobs import IoMetrics, Kebab


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
    """`skew`: the subtasks' mean distance from their mean, in percent of that mean."""

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
