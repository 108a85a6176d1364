"""Flink's addresses that read jobs, with their bodies, from the facts about runs."""

import re

import msgspec

from ftdash.api.flink import metrics, shapes
from ftdash.api.flink.http import FlinkCall, Problem, Reply, check_id, job_of
from ftdash.api.flink.metrics import aggregated, listed
from ftdash.api.flink.names import (
    JOB_STATES,
    duration_ms,
    epoch_ms,
    job_id,
    job_state,
    started_ms,
    state_counts,
    task_manager_id,
    task_state,
    vertex_id,
    vertex_name,
)
from ftdash.checkpoints.queries.statistics import statistics_of
from ftdash.jobs.answers import FailureView, SubtaskView, VertexView
from ftdash.metrics.queries.loads import sum_known
from ftdash.runs.queries import runs as run_queries
from ftdash.runs.queries.recovery_axis import failures
from ftdash.runs.queries.runs import RunFacts
from pipelines.domain.settings import RestartOptions, RestartStrategy
from pipelines.domain.settings.parsing import parse_settings

JOB_TYPE = "STREAMING"
SCHEDULER = "Default"
EXCHANGE = "pipelined_bounded"
MAX_PARALLELISM_UNSET = -1


def line(run: RunFacts) -> shapes.JobLine:
    count = sum(vertex.subtask_count(run.parallelism) for vertex in run.vertices)
    counts = {name.lower(): n for name, n in state_counts(task_state(run.state), count).items()}
    return shapes.JobLine(
        jid=job_id(run.run_id),
        name=run.pipeline,
        job_type=JOB_TYPE,
        scheduler_type=SCHEDULER,
        start_time=started_ms(run),
        end_time=epoch_ms(run.ended_at),
        duration=duration_ms(run),
        state=job_state(run.state),
        last_modification=epoch_ms(max(run.status_times.values(), default=run.created_at)),
        tasks=counts | {"total": count},
        pending_operators=0,
    )


def detail_body(run: RunFacts, subtasks: list[SubtaskView]) -> shapes.JobDetail:
    state = task_state(run.state)
    return shapes.JobDetail(
        jid=job_id(run.run_id),
        application_id=job_id(run.run_id),
        name=run.pipeline,
        is_stoppable=False,
        state=job_state(run.state),
        job_type=JOB_TYPE,
        scheduler_type=SCHEDULER,
        start_time=started_ms(run),
        end_time=epoch_ms(run.ended_at),
        duration=duration_ms(run),
        max_parallelism=MAX_PARALLELISM_UNSET,
        now=epoch_ms(run.now),
        timestamps=timestamps(run),
        vertices=[_vertex(run, vertex, subtasks) for vertex in run.vertices],
        status_counts=state_counts(state, len(run.vertices)),
        plan=plan_body(run),
        pending_operators=0,
    )


def timestamps(run: RunFacts) -> dict[str, int]:
    """Maps each state to the time it was last entered, or 0 if never."""
    entered = {"CREATED": run.created_at} | run.status_times
    return {state: epoch_ms(entered[state]) if state in entered else 0 for state in JOB_STATES}


def plan_body(run: RunFacts) -> shapes.Plan:
    by_uid = {vertex.uid: vertex for vertex in run.vertices}
    return shapes.Plan(
        jid=job_id(run.run_id),
        name=run.pipeline,
        type=JOB_TYPE,
        nodes=[_node(vertex, by_uid, run.parallelism) for vertex in run.vertices],
    )


def _node(vertex: VertexView, by_uid: dict[str, VertexView], parallelism: int) -> shapes.PlanNode:
    return shapes.PlanNode(
        id=vertex_id(vertex),
        operator="",
        parallelism=vertex.subtask_count(parallelism),
        operator_strategy="",
        description=_description(vertex),
        optimizer_properties={},
        inputs=[
            shapes.PlanInput(
                id=vertex_id(by_uid[uid]),
                num=port,
                exchange=EXCHANGE,
                ship_strategy=vertex.edges[port].upper() if vertex.edges else "",
            )
            for port, uid in enumerate(vertex.inputs)
        ]
        or msgspec.UNSET,
    )


def _description(vertex: VertexView) -> str:
    """Returns markup, as Flink's page expects. Uids contain no character to escape."""
    head, *rest = vertex_name(vertex).split(" -> ")
    return "".join([f"{head}<br/>", *(f"+- {name}<br/>" for name in rest)])


def _vertex(run: RunFacts, vertex: VertexView, subtasks: list[SubtaskView]) -> shapes.JobVertex:
    state, count = task_state(run.state), vertex.subtask_count(run.parallelism)
    return shapes.JobVertex(
        id=vertex_id(vertex),
        slot_sharing_group_id=job_id(run.run_id),
        name=vertex_name(vertex),
        max_parallelism=run.max_parallelism,
        parallelism=count,
        status=state,
        start_time=started_ms(run),
        end_time=epoch_ms(run.ended_at),
        duration=duration_ms(run),
        tasks=state_counts(state, count),
        metrics=io_metrics([each for each in subtasks if each.vertex == vertex.uid]),
    )


def io_metrics(subtasks: list[SubtaskView]) -> shapes.IoMetrics:
    """Bytes, records, and how time was spent, since the attempt began."""
    is_known = bool(subtasks)
    read_bytes = sum_known([each.bytes_in for each in subtasks])
    write_bytes = sum_known([each.bytes_out for each in subtasks])
    return shapes.IoMetrics(
        read_bytes=read_bytes or 0,
        read_bytes_complete=read_bytes is not None,
        write_bytes=write_bytes or 0,
        write_bytes_complete=write_bytes is not None,
        read_records=sum(each.records_in for each in subtasks),
        read_records_complete=is_known,
        write_records=sum(each.records_out for each in subtasks),
        write_records_complete=is_known,
        accumulated_backpressured_time=sum(each.backpressured_ms or 0 for each in subtasks),
        accumulated_idle_time=sum(each.idle_ms or 0 for each in subtasks),
        accumulated_busy_time=float(sum(each.busy_ms or 0 for each in subtasks)),
    )


def config_body(run: RunFacts) -> shapes.JobConfig:
    return shapes.JobConfig(
        jid=job_id(run.run_id),
        name=run.pipeline,
        execution_config=shapes.ExecutionConfig(
            restart_strategy=_restart_sentence(parse_settings(run.settings).restart),
            job_parallelism=run.parallelism,
            object_reuse_mode=False,
            user_config=run.parameters,
        ),
    )


def settings_body(run: RunFacts) -> list[shapes.ConfigEntry]:
    return [shapes.ConfigEntry(key=key, value=run.settings[key]) for key in sorted(run.settings)]


def _restart_sentence(restart: RestartOptions) -> str:
    def iso(ms: float) -> str:
        return f"PT{ms / 1000:g}S"

    match restart.strategy:
        case RestartStrategy.NONE:
            return "Restart deactivated."
        case RestartStrategy.FIXED_DELAY:
            fixed = restart.fixed_delay
            return (
                f"Restart with fixed delay ({iso(fixed.delay_ms)})."
                f" #{fixed.attempts} restart attempts."
            )
        case RestartStrategy.FAILURE_RATE:
            rate = restart.failure_rate
            return (
                f"Failure rate restart with maximum of {rate.max_failures} failures"
                f" within interval {iso(rate.interval_ms)} and fixed delay"
                f" {iso(rate.delay_ms)}."
            )
        case RestartStrategy.EXPONENTIAL_DELAY:
            backoff = restart.exponential_delay
            return (
                "Restart with exponential delay: starting at"
                f" {iso(backoff.initial_ms)}, increasing by {backoff.multiplier:g},"
                f" with maximum {iso(backoff.max_ms)}."
            )


def exception_history(
    run: RunFacts, failures: list[FailureView], limit: int
) -> shapes.ExceptionHistory:
    """`failures` has one more than `limit` if there are more."""
    return shapes.ExceptionHistory(
        exception_history=shapes.ExceptionEntries(
            entries=[exception(run, failure) for failure in failures[:limit]],
            truncated=len(failures) > limit,
        )
    )


def exception(run: RunFacts, failure: FailureView) -> shapes.ExceptionEntry:
    """Gives the sentence about the failure where Flink names a Java class."""
    task, slot = failure.vertex, failure.slot
    if task is not None and failure.subtask is not None:
        counts = {each.uid: each.subtask_count(run.parallelism) for each in run.vertices}
        task = f"{task} ({failure.subtask + 1}/{counts.get(task, run.parallelism)})"
    return shapes.ExceptionEntry(
        exception_name=failure.cause,
        stacktrace=f"{failure.cause}\n{failure.detail}" if failure.detail else failure.cause,
        timestamp=epoch_ms(failure.at),
        failure_labels={},
        task_name=msgspec.UNSET if task is None else task,
        endpoint=run.slots.get(slot, msgspec.UNSET) if slot is not None else msgspec.UNSET,
        task_manager_id=msgspec.UNSET if slot is None else task_manager_id(run.run_id, slot),
        concurrent_exceptions=[],
    )


EXCEPTIONS = 20
"""The default of Flink's maxExceptions."""

EXCEPTIONS_MAX = 1000
SWITCHED_OFF = "Rescaling is temporarily disabled. See FLINK-12312."
_LABEL = re.compile("[^:]*:[^:]+")
NOT_ADAPTIVE = (
    "java.lang.UnsupportedOperationException: The parallelism of a job that runs cannot change;"
    " restore it from a savepoint with another one."
)


def ids(call: FlinkCall) -> object:
    found = run_queries.runs()
    listed = [shapes.JobId(id=job_id(run.run_id), status=job_state(run.state)) for run in found]
    return shapes.JobIds(jobs=listed)


def overview(call: FlinkCall) -> object:
    return shapes.JobsOverview(jobs=[line(run) for run in run_queries.runs()])


def detail(call: FlinkCall, job: str) -> object:
    run = job_of(job)
    return detail_body(run, run_queries.newest_samples(run.run_id).subtasks)


def status(call: FlinkCall, job: str) -> object:
    return shapes.JobState(status=job_state(job_of(job).state))


def plan(call: FlinkCall, job: str) -> object:
    return shapes.PlanAnswer(plan=plan_body(job_of(job)))


def config(call: FlinkCall, job: str) -> object:
    return config_body(job_of(job))


def settings(call: FlinkCall, job: str) -> object:
    return settings_body(job_of(job))


def requirements(call: FlinkCall, job: str) -> object:
    """Refuses to read or change the requirements, as with Flink's default scheduler."""
    job_of(job)
    trace = f"<Exception on server side:\n{NOT_ADAPTIVE}\nEnd of exception on server side>"
    return Reply(shapes.Errors(errors=["Internal server error.", trace]), 500)


def rescaling(call: FlinkCall, job: str) -> object:
    """Refuses: Flink has rescaling switched off for every job."""
    check_id("jobid", job)
    raise Problem(503, SWITCHED_OFF)


def rescaling_progress(call: FlinkCall, job: str, trigger: str) -> object:
    check_id("triggerid", trigger)
    return rescaling(call, job)


def accumulators(call: FlinkCall, job: str) -> object:
    job_of(job)
    return {
        "job-accumulators": [],
        "user-task-accumulators": [],
        "serialized-user-task-accumulators": {},
    }


def exceptions(call: FlinkCall, job: str) -> object:
    run = job_of(job)
    limit = min(call.count("maxExceptions", EXCEPTIONS), EXCEPTIONS_MAX)
    if _asks_for_labels(call):
        return exception_history(run, [], limit)
    return exception_history(run, failures(run.run_id, limit + 1), limit)


def _asks_for_labels(call: FlinkCall) -> bool:
    """Returns True if the request filters by labels; no failure here has any, so none matches.

    Raises Problem unless each label is `key:value`.
    """
    given = call.values("failureLabelFilter")
    for each in given:
        if not _LABEL.fullmatch(each):
            raise Problem(
                400,
                f"Cannot resolve query parameter (failureLabelFilter) from value {each!r}: a label"
                " is key:value.",
            )
    return bool(given)


def metrics_of(call: FlinkCall, job: str) -> object:
    run = job_of(job)
    found = statistics_of(run.run_id)
    return listed(call, metrics.of_job(run, found) if found else {})


def metrics_of_all(call: FlinkCall) -> object:
    """Aggregates over the listed jobs, or over those that `jobs` names."""
    named = call.values("jobs")
    for job in named:
        check_id("jobs", job, "query")
    wanted = [run for run in run_queries.runs() if not named or job_id(run.run_id) in named]
    runs = [(run, statistics_of(run.run_id)) for run in wanted]
    return aggregated(call, [metrics.of_job(run, found) for run, found in runs if found])


def execution_result(call: FlinkCall, job: str) -> object:
    """Says only if the job is over: unlike Flink's jobs, these return no result."""
    is_over = job_of(job).state.is_terminal
    return {"status": shapes.Status(id="COMPLETED" if is_over else "IN_PROGRESS")}
