"""Makes Flink's bodies about applications: each job is an application of its own, with its id."""

from ftdash.api.flink import shapes_jobs as shapes
from ftdash.api.flink.jobs import exception, line, timestamps
from ftdash.api.flink.names import duration_ms, epoch_ms, job_id, job_state, started_ms
from ftdash.jobs.answers import FailureView, ShownState
from ftdash.runs.queries.runs import RunFacts

_APPLICATION_STATES = {  # to the state of its one job
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
    """`failures`: newest first."""
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
