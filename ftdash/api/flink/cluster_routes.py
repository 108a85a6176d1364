"""Addresses about the cluster: this installation, whose task managers are the connected slots."""

from collections import Counter

from ftdash.api.flink import jobs, shapes_jobs
from ftdash.api.flink.http import Asked
from ftdash.api.flink.names import job_state
from ftdash.jobs import run_queries

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
