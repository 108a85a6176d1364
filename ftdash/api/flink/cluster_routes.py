"""Addresses about the cluster: this installation, whose task managers are the connected slots."""

from collections import Counter

from ftdash.api.flink import jobs, shapes_jobs, shapes_vertices
from ftdash.api.flink.http import Asked
from ftdash.api.flink.names import epoch_ms, job_state, task_manager_id
from ftdash.jobs import run_queries
from ftdash.jobs.run_queries import RunFacts

FLINK_VERSION = "2.3.0"
"""Whose interface this is."""

REVISION = "ftdash"
REFRESH_MS = 3000


def config(asked: Asked) -> object:
    return shapes_jobs.DashboardConfiguration(
        refresh_interval=REFRESH_MS,
        timezone_name="Coordinated Universal Time",
        timezone_offset=0,
        flink_version=FLINK_VERSION,
        flink_revision=REVISION,
        features=shapes_jobs.Features(
            web_submit=False,
            web_cancel=asked.caller.may_act,
            web_rescale=False,
            web_history=False,
        ),
    )


def overview(asked: Asked) -> object:
    runs = run_queries.runs()
    states = Counter(job_state(run.state) for run in runs)
    slots = sum(len(run.slots) for run in runs)
    ended = {name: states[name] for name in ("FINISHED", "CANCELED", "FAILED")}
    return shapes_jobs.ClusterOverview(
        taskmanagers=slots,
        slots_total=slots,
        slots_available=0,
        jobs_running=len(runs) - sum(ended.values()),
        jobs_finished=ended["FINISHED"],
        jobs_cancelled=ended["CANCELED"],
        jobs_failed=ended["FAILED"],
        flink_version=FLINK_VERSION,
        flink_commit=REVISION,
    )


def applications(asked: Asked) -> object:
    lines = [jobs.application(run) for run in run_queries.runs()]
    return shapes_jobs.Applications(applications=lines)


def task_managers(asked: Asked) -> object:
    """Each connected slot. What a Java process has and a slot has not is 0."""
    found = [_task_manager(run, slot) for run in run_queries.runs() for slot in sorted(run.slots)]
    return shapes_vertices.TaskManagers(taskmanagers=found)


def _task_manager(run: RunFacts, slot: int) -> shapes_vertices.TaskManager:
    return shapes_vertices.TaskManager(
        id=task_manager_id(run.run_id, slot),
        path=f"{run.slots[slot]}/{run.pipeline}/{slot}",
        data_port=-1,
        jmx_port=-1,
        time_since_last_heartbeat=0 if run.last_event_at is None else epoch_ms(run.last_event_at),
        slots_number=1,
        free_slots=0,
        assigned_tasks=len(run.vertices),
        total_resource=_NO_RESOURCES,
        free_resource=_NO_RESOURCES,
        hardware=shapes_vertices.Hardware(
            cpu_cores=0, physical_memory=0, free_memory=0, managed_memory=0
        ),
        memory_configuration=_NO_MEMORY,
    )


_NO_RESOURCES = shapes_vertices.Resources(
    cpu_cores=0.0,
    task_heap_memory=0,
    task_off_heap_memory=0,
    managed_memory=0,
    network_memory=0,
    extended_resources={},
)
_NO_MEMORY = shapes_vertices.MemoryConfiguration(
    framework_heap=0,
    task_heap=0,
    framework_off_heap=0,
    task_off_heap=0,
    network_memory=0,
    managed_memory=0,
    jvm_metaspace=0,
    jvm_overhead=0,
    total_flink_memory=0,
    total_process_memory=0,
)
