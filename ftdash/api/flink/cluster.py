"""Flink's addresses about the cluster: this installation, its applications and task managers.

Each job is an application of its own, with the job's id. Each connected slot is a task manager with
one slot; values that only a Java process has are 0.
"""

from collections import Counter
from dataclasses import dataclass

import msgspec

from ftdash.api.flink import shapes
from ftdash.api.flink.http import FlinkCall, Problem, job_of
from ftdash.api.flink.jobs import exception, line, timestamps
from ftdash.api.flink.metrics import aggregated, listed
from ftdash.api.flink.names import (
    duration_ms,
    epoch_ms,
    job_id,
    job_state,
    started_ms,
    task_manager_id,
)
from ftdash.jobs.answers import FailureView, ShownState
from ftdash.runs.queries import runs as run_queries
from ftdash.runs.queries.recovery_axis import failures
from ftdash.runs.queries.runs import RunFacts
from pipelines.domain.settings.parsing import DEFINITIONS


@dataclass(frozen=True, slots=True)
class Connected:
    """A slot that is connected to the driver of a run."""

    run: RunFacts
    slot: int


def connected() -> list[shapes.TaskManager]:
    return [_body(each) for each in _all()]


def find(manager: str) -> Connected | None:
    """Finds the connected slot of that name, or returns None if there is none."""
    named = (each for each in _all() if task_manager_id(each.run.run_id, each.slot) == manager)
    return next(named, None)


def detail_body(found: Connected) -> shapes.TaskManagerDetail:
    return shapes.TaskManagerDetail(
        **msgspec.structs.asdict(_body(found)),
        allocated_slots=[
            shapes.AllocatedSlot(
                job_id=job_id(found.run.run_id),
                resource=shapes.Resources(),
                assigned_tasks=len(found.run.vertices),
            )
        ],
        metrics=shapes.TaskManagerMetrics(),
    )


def _all() -> list[Connected]:
    return [Connected(run, slot) for run in run_queries.runs() for slot in sorted(run.slots)]


def _body(found: Connected) -> shapes.TaskManager:
    run, slot = found.run, found.slot
    return shapes.TaskManager(
        id=task_manager_id(run.run_id, slot),
        path=f"{run.slots[slot]}/{run.pipeline}/{slot}",
        data_port=-1,
        jmx_port=-1,
        time_since_last_heartbeat=0 if run.last_event_at is None else epoch_ms(run.last_event_at),
        slots_number=1,
        free_slots=0,
        assigned_tasks=len(run.vertices),
        total_resource=shapes.Resources(),
        free_resource=shapes.Resources(),
        hardware=shapes.Hardware(),
        memory_configuration=shapes.MemoryConfiguration(),
    )


_APPLICATION_STATES = {  # maps to the state of its one job
    "CREATED": "CREATED",
    "RUNNING": "RUNNING",
    "FAILING": "FAILING",
    "FAILED": "FAILED",
    "CANCELING": "CANCELLING",
    "CANCELED": "CANCELED",
    "FINISHED": "FINISHED",
}


def brief(run: RunFacts) -> shapes.ApplicationLine:
    """Each job is an application of its own."""
    return shapes.ApplicationLine(
        id=job_id(run.run_id),
        name=run.pipeline,
        start_time=started_ms(run),
        end_time=epoch_ms(run.ended_at),
        duration=duration_ms(run),
        status=run.state.value if run.state.is_terminal else "RUNNING",
        jobs={job_state(run.state): 1},
    )


def detail(run: RunFacts) -> shapes.ApplicationDetail:
    found, entered = brief(run), timestamps(run)
    return shapes.ApplicationDetail(
        id=found.id,
        name=found.name,
        status=found.status,
        start_time=found.start_time,
        end_time=found.end_time,
        duration=found.duration,
        timestamps={name: entered[state] for name, state in _APPLICATION_STATES.items()},
        jobs=[line(run)],
    )


def exceptions(run: RunFacts, failures: list[FailureView]) -> shapes.ApplicationExceptions:
    """`failures` come newest first."""
    entries = [exception(run, failure) for failure in failures[:1]]
    return shapes.ApplicationExceptions(
        exception_history=shapes.ApplicationExceptionEntries(
            entries=[
                shapes.ApplicationException(
                    exception_name=each.exception_name,
                    stacktrace=each.stacktrace,
                    timestamp=each.timestamp,
                    job_id=job_id(run.run_id),
                )
                for each in entries
                if run.state is ShownState.FAILED
            ]
        )
    )


FLINK_VERSION = "2.3.0"
"""The version of Flink whose interface this is."""

REVISION = "ftdash"
REFRESH_MS = 3000


def config(call: FlinkCall) -> object:
    return shapes.DashboardConfiguration(
        refresh_interval=REFRESH_MS,
        timezone_name="Coordinated Universal Time",
        timezone_offset=0,
        flink_version=FLINK_VERSION,
        flink_revision=REVISION,
        features=shapes.Features(
            web_submit=False,
            web_cancel=call.caller.may_act,
            web_rescale=False,
            web_history=False,
        ),
    )


def overview(call: FlinkCall) -> object:
    return _overview()


def _overview() -> shapes.ClusterOverview:
    runs = run_queries.runs()
    states = Counter(job_state(run.state) for run in runs)
    slots = sum(len(run.slots) for run in runs)
    ended = {name: states[name] for name in ("FINISHED", "CANCELED", "FAILED")}
    return shapes.ClusterOverview(
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


def applications(call: FlinkCall) -> object:
    lines = [brief(run) for run in run_queries.runs()]
    return shapes.Applications(applications=lines)


def application(call: FlinkCall, application: str) -> object:
    return detail(job_of(application))


def application_exceptions(call: FlinkCall, application: str) -> object:
    """The failure that ended the application; empty if it still runs or ended in another way."""
    run = job_of(application)
    return exceptions(run, failures(run.run_id, 1))


def settings(call: FlinkCall) -> object:
    """The defaults for a job that sets nothing else."""
    found = {each.key: each.default for each in DEFINITIONS}
    return [shapes.ConfigEntry(key=key, value=found[key]) for key in sorted(found)]


def metrics(call: FlinkCall) -> object:
    found = _overview()
    return listed(
        call,
        {
            "numRegisteredTaskManagers": found.taskmanagers,
            "numRunningJobs": found.jobs_running,
            "taskSlotsAvailable": found.slots_available,
            "taskSlotsTotal": found.slots_total,
        },
    )


def task_managers(call: FlinkCall) -> object:
    return shapes.TaskManagers(taskmanagers=connected())


def task_manager(call: FlinkCall, manager: str) -> object:
    return detail_body(_known(manager))


def task_manager_metrics(call: FlinkCall, manager: str) -> object:
    """Empty: Flink's metrics are those of a Java process, and a slot is not one."""
    _known(manager)
    return listed(call, {})


def metrics_of_task_managers(call: FlinkCall) -> object:
    return aggregated(call, [])


def _known(manager: str) -> Connected:
    found = find(manager)
    if found is None:
        raise Problem(404, f"There is no task manager {manager}.")
    return found
