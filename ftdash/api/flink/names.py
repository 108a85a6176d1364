"""Flink's names for our things: ids of 32 hexadecimal digits, states, times.

A run is a job; a vertex has the operator id of its uid; a slot is a task manager with one slot. If
a run's state is unknown, it is Flink's RECONCILING: known, but silent.
"""

import hashlib
import re
from datetime import datetime, timedelta

from ftdash import times
from ftdash.jobs.answers import ShownState, VertexView
from ftdash.runs.queries import runs as run_queries
from ftdash.runs.queries.runs import RunFacts
from pipelines.domain.ids import Uid, operator_id

HEX_ID = re.compile(r"[0-9a-f]{32}")

JOB_STATES = (
    "INITIALIZING",
    "CREATED",
    "RUNNING",
    "FAILING",
    "FAILED",
    "CANCELLING",
    "CANCELED",
    "FINISHED",
    "RESTARTING",
    "SUSPENDED",
    "RECONCILING",
)
EXECUTION_STATES = (
    "CREATED",
    "SCHEDULED",
    "DEPLOYING",
    "RUNNING",
    "FINISHED",
    "CANCELING",
    "CANCELED",
    "FAILED",
    "RECONCILING",
    "INITIALIZING",
)
_TASK_STATES = {  # for a job in this state; in other states, the job's name for it
    "CANCELLING": "CANCELING",
    "FAILING": "CANCELING",
    "RESTARTING": "SCHEDULED",
}
_known_jobs: dict[str, str] = {}  # job id to run id: a function of the run id, so never wrong


def job_id(run_id: str) -> str:
    """Always the same, whichever database holds the run."""
    return hashlib.sha256(f"ftdash run {run_id}".encode()).hexdigest()[:32]


def run_id_of(job: str) -> str | None:
    if job not in _known_jobs:
        _known_jobs.update({job_id(run_id): run_id for run_id in run_queries.run_ids()})
    return _known_jobs.get(job)


def vertex_id(vertex: VertexView) -> str:
    return operator_id(Uid(vertex.uid))


def vertex_name(vertex: VertexView) -> str:
    chain = " -> ".join(vertex.operators)
    return f"Source: {chain}" if vertex.is_source else chain


def task_manager_id(run_id: str, slot: int) -> str:
    return f"{run_id}-slot-{slot}"


def job_state(state: ShownState) -> str:
    return state.value if state.value in JOB_STATES else "RECONCILING"


def task_state(state: ShownState) -> str:
    """All subtasks of a run are in the same state: they start, run and end together."""
    return _TASK_STATES.get(job_state(state), job_state(state))


def state_counts(state: str, count: int) -> dict[str, int]:
    return {each: count if each == state else 0 for each in EXECUTION_STATES}


def epoch_ms(at: datetime | None) -> int:
    """-1: not reached."""
    return -1 if at is None else times.epoch_ms(at)


def started_ms(run: RunFacts) -> int:
    return epoch_ms(run.started_at or run.created_at)


def duration_ms(run: RunFacts) -> int:
    end = run.ended_at or run.now
    return max(0, (end - (run.started_at or run.created_at)) // timedelta(milliseconds=1))
