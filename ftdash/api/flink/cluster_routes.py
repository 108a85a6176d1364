"""Addresses about the cluster: this installation, whose task managers are the connected slots."""

from collections import Counter

from ftdash.api.flink import applications as apps
from ftdash.api.flink import shapes_jobs, shapes_vertices
from ftdash.api.flink import task_managers as managers
from ftdash.api.flink.http import Asked, Problem, job_of
from ftdash.api.flink.metric_lists import aggregated, listed
from ftdash.api.flink.names import job_state
from ftdash.runs.queries import runs as run_queries
from ftdash.runs.queries.failures import failures
from pipelines.domain.settings.table import DEFINITIONS

FLINK_VERSION = "2.3.0"
"""The version of Flink whose interface this is."""

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
    return _overview()


def _overview() -> shapes_jobs.ClusterOverview:
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
    lines = [apps.brief(run) for run in run_queries.runs()]
    return shapes_jobs.Applications(applications=lines)


def application(asked: Asked, application: str) -> object:
    return apps.detail(job_of(application))


def application_exceptions(asked: Asked, application: str) -> object:
    """The failure that ended it; empty if it goes on or ended otherwise."""
    run = job_of(application)
    return apps.exceptions(run, failures(run.run_id, 1))


def settings(asked: Asked) -> object:
    """The defaults for a job that sets nothing else."""
    found = {each.key: each.default for each in DEFINITIONS}
    return [shapes_jobs.ConfigEntry(key=key, value=found[key]) for key in sorted(found)]


def metrics(asked: Asked) -> object:
    found = _overview()
    return listed(
        asked,
        {
            "numRegisteredTaskManagers": found.taskmanagers,
            "numRunningJobs": found.jobs_running,
            "taskSlotsAvailable": found.slots_available,
            "taskSlotsTotal": found.slots_total,
        },
    )


def task_managers(asked: Asked) -> object:
    return shapes_vertices.TaskManagers(taskmanagers=managers.connected())


def task_manager(asked: Asked, manager: str) -> object:
    return managers.detail(_known(manager))


def task_manager_metrics(asked: Asked, manager: str) -> object:
    """Empty: Flink's metrics are those of a Java process, and a slot is not one."""
    _known(manager)
    return listed(asked, {})


def metrics_of_task_managers(asked: Asked) -> object:
    return aggregated(asked, [])


def _known(manager: str) -> managers.Connected:
    found = managers.find(manager)
    if found is None:
        raise Problem(404, f"There is no task manager {manager}.")
    return found
