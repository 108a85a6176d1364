"""Addresses that read jobs."""

import re

from ftdash.api.flink import jobs, metrics, shapes_jobs
from ftdash.api.flink.http import Asked, Problem, Reply, check_id, job_of
from ftdash.api.flink.metrics import aggregated, listed
from ftdash.api.flink.names import job_id, job_state
from ftdash.checkpoints.queries.statistics import statistics_of
from ftdash.runs.queries import runs as run_queries
from ftdash.runs.queries.recovery_axis import failures

EXCEPTIONS = 20
"""The default of Flink's maxExceptions."""

EXCEPTIONS_MAX = 1000
SWITCHED_OFF = "Rescaling is temporarily disabled. See FLINK-12312."
_LABEL = re.compile("[^:]*:[^:]+")
NOT_ADAPTIVE = (
    "java.lang.UnsupportedOperationException: The parallelism of a job that runs cannot change;"
    " restore it from a savepoint with another one."
)


def ids(asked: Asked) -> object:
    found = run_queries.runs()
    listed = [
        shapes_jobs.JobId(id=job_id(run.run_id), status=job_state(run.state)) for run in found
    ]
    return shapes_jobs.JobIds(jobs=listed)


def overview(asked: Asked) -> object:
    return shapes_jobs.JobsOverview(jobs=[jobs.line(run) for run in run_queries.runs()])


def detail(asked: Asked, job: str) -> object:
    run = job_of(job)
    return jobs.detail(run, run_queries.newest_samples(run.run_id).subtasks)


def status(asked: Asked, job: str) -> object:
    return shapes_jobs.JobState(status=job_state(job_of(job).state))


def plan(asked: Asked, job: str) -> object:
    return shapes_jobs.PlanAnswer(plan=jobs.plan(job_of(job)))


def config(asked: Asked, job: str) -> object:
    return jobs.config(job_of(job))


def settings(asked: Asked, job: str) -> object:
    return jobs.settings(job_of(job))


def requirements(asked: Asked, job: str) -> object:
    """As with Flink's default scheduler, it can neither be read nor changed."""
    job_of(job)
    told = f"<Exception on server side:\n{NOT_ADAPTIVE}\nEnd of exception on server side>"
    return Reply(shapes_jobs.Errors(errors=["Internal server error.", told]), 500)


def rescaling(asked: Asked, job: str) -> object:
    """Flink's rescaling is switched off, for any job."""
    check_id("jobid", job)
    raise Problem(503, SWITCHED_OFF)


def rescaling_progress(asked: Asked, job: str, trigger: str) -> object:
    check_id("triggerid", trigger)
    return rescaling(asked, job)


def accumulators(asked: Asked, job: str) -> object:
    job_of(job)
    return {
        "job-accumulators": [],
        "user-task-accumulators": [],
        "serialized-user-task-accumulators": {},
    }


def exceptions(asked: Asked, job: str) -> object:
    run = job_of(job)
    limit = min(asked.count("maxExceptions", EXCEPTIONS), EXCEPTIONS_MAX)
    if _asks_for_labels(asked):
        return jobs.exception_history(run, [], limit)
    return jobs.exception_history(run, failures(run.run_id, limit + 1), limit)


def _asks_for_labels(asked: Asked) -> bool:
    """No failure has labels here, so no filter matches. Raises Problem unless it is `key:value`."""
    given = asked.values("failureLabelFilter")
    for each in given:
        if not _LABEL.fullmatch(each):
            raise Problem(
                400,
                f"Cannot resolve query parameter (failureLabelFilter) from value {each!r}: a label"
                " is key:value.",
            )
    return bool(given)


def metrics_of(asked: Asked, job: str) -> object:
    run = job_of(job)
    found = statistics_of(run.run_id)
    return listed(asked, metrics.of_job(run, found) if found else {})


def metrics_of_all(asked: Asked) -> object:
    """Over the listed jobs, or those of them that `jobs` names."""
    named = asked.values("jobs")
    for job in named:
        check_id("jobs", job, "query")
    wanted = [run for run in run_queries.runs() if not named or job_id(run.run_id) in named]
    runs = [(run, statistics_of(run.run_id)) for run in wanted]
    return aggregated(asked, [metrics.of_job(run, found) for run, found in runs if found])


def execution_result(asked: Asked, job: str) -> object:
    """Says only if there is a result: here, jobs do not return one as Flink's do."""
    is_over = job_of(job).state.is_terminal
    return {"status": shapes_jobs.Status(id="COMPLETED" if is_over else "IN_PROGRESS")}
