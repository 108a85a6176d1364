"""Flink's addresses that read one vertex of a job, or one subtask of it, with their bodies.

A slot hosts at most one subtask of each vertex: subtask n runs in slot n for as long as its run
lasts. The figures are those of the run's newest sample, so only the current attempt is known.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from ftdash.api.flink import metrics, shapes
from ftdash.api.flink.http import FlinkCall, Problem, check_id, job_of
from ftdash.api.flink.jobs import io_metrics
from ftdash.api.flink.metrics import aggregated, listed, spread, within
from ftdash.api.flink.names import (
    EXECUTION_STATES,
    duration_ms,
    epoch_ms,
    started_ms,
    state_counts,
    task_manager_id,
    task_state,
    vertex_id,
    vertex_name,
)
from ftdash.jobs.answers import SubtaskView, VertexView
from ftdash.runs.queries import runs as run_queries
from ftdash.runs.queries.runs import RunFacts, SubtaskSamples
from pipelines.domain.status import JobStatus

UNASSIGNED = "(unassigned)"
LOW_ABOVE, HIGH_ABOVE = 0.10, 0.5
"""Backpressure is "low" and "high" above these ratios. Source: Flink, JobVertexBackPressureHandler.
"""

_LEVELS = ("ok", "low", "high")
_JOB_STATES_OF_TASKS = {JobStatus.CANCELLING.value: "CANCELING"}
_NEVER_OF_TASKS = ("RESTARTING", "FAILING")


@dataclass(frozen=True, slots=True)
class Seen:
    """One vertex of a run, with the newest sample of each of its subtasks."""

    run: RunFacts
    vertex: VertexView
    samples: SubtaskSamples

    @property
    def subtasks(self) -> dict[int, SubtaskView]:
        own = [each for each in self.samples.subtasks if each.vertex == self.vertex.uid]
        return {each.subtask: each for each in own}

    @property
    def indices(self) -> range:
        """The indices of its subtasks, including those that have not reported yet."""
        return range(self.vertex.subtask_count(self.run.parallelism))

    def of(self, index: int) -> list[SubtaskView]:
        found = self.subtasks.get(index)
        return [] if found is None else [found]


def detail_body(seen: Seen) -> shapes.VertexDetail:
    run = seen.run
    attempts = [attempt_body(seen, index) for index in seen.indices]
    return shapes.VertexDetail(
        id=vertex_id(seen.vertex),
        name=vertex_name(seen.vertex),
        parallelism=len(attempts),
        max_parallelism=run.max_parallelism,
        now=epoch_ms(run.now),
        subtasks=attempts,
        aggregated=aggregated_body(seen, list(seen.indices)),
    )


def attempt_body(seen: Seen, index: int) -> shapes.SubtaskAttempt:
    run = seen.run
    return shapes.SubtaskAttempt(
        subtask=index,
        status=task_state(run.state),
        attempt=max(0, run.attempt - 1),
        endpoint=run.slots.get(index, UNASSIGNED),
        start_time=started_ms(run),
        end_time=epoch_ms(run.ended_at),
        duration=duration_ms(run),
        metrics=io_metrics(seen.of(index)),
        taskmanager_id=_task_manager(run, index),
        status_duration=status_durations(run),
        start_time_again=started_ms(run),
    )


def aggregated_body(seen: Seen, indices: list[int]) -> shapes.Aggregated:
    """Aggregates these subtasks. All subtasks of a run have spent the same time in each state."""
    found = [io_metrics(seen.of(index)) for index in indices]
    columns = {
        "read-bytes": [each.read_bytes for each in found],
        "write-bytes": [each.write_bytes for each in found],
        "read-records": [each.read_records for each in found],
        "write-records": [each.write_records for each in found],
        "accumulated-backpressured-time": [each.accumulated_backpressured_time for each in found],
        "accumulated-idle-time": [each.accumulated_idle_time for each in found],
        "accumulated-busy-time": [round(each.accumulated_busy_time) for each in found],
    }
    durations = status_durations(seen.run)
    return shapes.Aggregated(
        metrics={name: spread(values) for name, values in columns.items()},
        status_duration={name: spread([ms] * len(indices)) for name, ms in durations.items()},
    )


def status_durations(run: RunFacts) -> dict[str, int]:
    """Milliseconds in earlier states, and so far in the present one.

    Spark places slots before they report anything, so no subtask ever shows as scheduled or
    deploying, but Flink's web page reads both.
    """
    entered = run.status_times
    initialized, running = entered.get("INITIALIZING"), entered.get("RUNNING")
    end = run.ended_at or run.now
    starting = (running or end) - initialized if initialized else timedelta(0)
    return {
        "CREATED": max(0, ((initialized or end) - run.created_at) // timedelta(milliseconds=1)),
        "SCHEDULED": 0,
        "DEPLOYING": 0,
        "INITIALIZING": max(0, starting // timedelta(milliseconds=1)),
        "RUNNING": max(0, (end - running) // timedelta(milliseconds=1)) if running else 0,
    }


def times_body(seen: Seen) -> shapes.SubtaskTimes:
    run = seen.run
    stamps = task_timestamps(run)
    return shapes.SubtaskTimes(
        id=vertex_id(seen.vertex),
        name=vertex_name(seen.vertex),
        now=epoch_ms(run.now),
        subtasks=[
            shapes.SubtaskTime(
                subtask=index,
                endpoint=run.slots.get(index, UNASSIGNED),
                duration=duration_ms(run),
                timestamps=stamps,
            )
            for index in seen.indices
        ],
    )


def task_timestamps(run: RunFacts) -> dict[str, int]:
    """Maps each state to the time the subtasks last entered it, or 0 if never."""
    entered = {
        _JOB_STATES_OF_TASKS.get(state, state): at
        for state, at in run.status_times.items()
        if state not in _NEVER_OF_TASKS
    }
    entered.setdefault("CREATED", run.created_at)
    return {
        state: epoch_ms(entered[state]) if state in entered else 0 for state in EXECUTION_STATES
    }


def task_managers_body(seen: Seen) -> shapes.VertexTaskManagers:
    run, state = seen.run, task_state(seen.run.state)
    return shapes.VertexTaskManagers(
        id=vertex_id(seen.vertex),
        name=vertex_name(seen.vertex),
        now=epoch_ms(run.now),
        taskmanagers=[
            shapes.VertexTaskManager(
                endpoint=run.slots.get(index, UNASSIGNED),
                status=state,
                start_time=started_ms(run),
                end_time=epoch_ms(run.ended_at),
                duration=duration_ms(run),
                metrics=io_metrics(seen.of(index)),
                status_counts=state_counts(state, 1),
                taskmanager_id=_task_manager(run, index),
                aggregated=aggregated_body(seen, [index]),
            )
            for index in seen.indices
        ],
    )


def _task_manager(run: RunFacts, index: int) -> str:
    return task_manager_id(run.run_id, index) if index in run.slots else UNASSIGNED


def backpressure_body(seen: Seen) -> shapes.BackPressure | shapes.BackPressureUnknown:
    subtasks, at = seen.subtasks, seen.samples.at
    if not subtasks or at is None:
        return shapes.BackPressureUnknown(status="deprecated")
    found = [subtasks[index] for index in sorted(subtasks)]
    worst = level(max(each.backpressured_ratio for each in found))
    return shapes.BackPressure(
        status="ok",
        level=worst,
        backpressure_level=worst,
        end_timestamp=epoch_ms(at),
        subtasks=[
            shapes.SubtaskBackpressure(
                subtask=each.subtask,
                level=level(each.backpressured_ratio),
                backpressure_level=level(each.backpressured_ratio),
                ratio=float(each.backpressured_ratio),
                idle_ratio=float(each.idle_ratio),
                busy_ratio=float(each.busy_ratio),
            )
            for each in found
        ],
    )


def level(ratio: float) -> str:
    return _LEVELS[(ratio > LOW_ABOVE) + (ratio > HIGH_ABOVE)]


def find(run: RunFacts, vertex: str, samples: Callable[[str], SubtaskSamples]) -> Seen | None:
    """Finds the vertex with that id, or returns None if the run has none."""
    named = next((each for each in run.vertices if vertex_id(each) == vertex), None)
    return None if named is None else Seen(run, named, samples(run.run_id))


def detail(call: FlinkCall, job: str, vertex: str) -> object:
    return detail_body(seen(job, vertex))


def backpressure(call: FlinkCall, job: str, vertex: str) -> object:
    return backpressure_body(seen(job, vertex))


def times(call: FlinkCall, job: str, vertex: str) -> object:
    return times_body(seen(job, vertex))


def task_managers(call: FlinkCall, job: str, vertex: str) -> object:
    return task_managers_body(seen(job, vertex))


def accumulators(call: FlinkCall, job: str, vertex: str) -> object:
    seen(job, vertex)
    return shapes.VertexAccumulators(id=vertex, user_accumulators=[])


def watermarks(call: FlinkCall, job: str, vertex: str) -> object:
    """Empty for sources: they receive no watermarks."""
    found = seen(job, vertex)
    if found.vertex.is_source:
        return []
    return [
        shapes.MetricValue(
            id=f"{index}.{metrics.WATERMARK}",
            value=str(metrics.of_subtask(view)[metrics.WATERMARK]),
        )
        for index, view in sorted(found.subtasks.items())
    ]


def all_metrics(call: FlinkCall, job: str, vertex: str) -> object:
    return listed(
        call,
        {
            f"{index}.{name}": value
            for index, view in sorted(seen(job, vertex).subtasks.items())
            for name, value in metrics.of_subtask(view).items()
        },
    )


def subtask_metrics(call: FlinkCall, job: str, vertex: str) -> object:
    found = seen(job, vertex).subtasks
    selected = within(call.values("subtasks"), found)
    return aggregated(call, [metrics.of_subtask(found[index]) for index in selected])


def operator_metrics(call: FlinkCall, job: str, vertex: str) -> object:
    """Empty: these are metrics of Flink's operator coordinators, which we do not have."""
    seen(job, vertex)
    return []


def seen(job: str, vertex: str) -> Seen:
    check_id("vertexid", vertex)
    found = find(job_of(job), vertex, run_queries.newest_samples)
    if found is None:
        raise Problem(404, f"There is no vertex {vertex} in job {job}.")
    return found


_NUMBER = re.compile(r"[0-9]{1,9}")


def current(call: FlinkCall, job: str, vertex: str, index: str) -> object:
    return _attempt(seen(job, vertex), index)


def attempt(call: FlinkCall, job: str, vertex: str, index: str, attempt: str) -> object:
    number, found = _number("attempt", attempt), _attempt(seen(job, vertex), index)
    if found.attempt != number:
        raise Problem(404, f"Attempt {number} of subtask {index} is not known; {found.attempt} is.")
    return found


def all_metrics_of_subtask(call: FlinkCall, job: str, vertex: str, index: str) -> object:
    """Empty before the first sample."""
    found = seen(job, vertex)
    sampled = found.of(_attempt(found, index).subtask)
    return listed(call, metrics.of_subtask(sampled[0]) if sampled else {})


def accumulators_of_subtask(call: FlinkCall, job: str, vertex: str) -> object:
    """Empty: user functions have no accumulators here."""
    found = seen(job, vertex)
    attempts = detail_body(found).subtasks
    return shapes.SubtasksAccumulators(
        id=vertex,
        parallelism=len(attempts),
        subtasks=[
            shapes.SubtaskAccumulators(
                subtask=each.subtask,
                attempt=each.attempt,
                endpoint=each.endpoint,
                user_accumulators=[],
            )
            for each in attempts
        ],
    )


def _attempt(found: Seen, index: str) -> shapes.SubtaskAttempt:
    number = _number("subtaskindex", index)
    if number not in found.indices:
        raise Problem(404, f"There is no subtask {number}; there are {len(found.indices)}.")
    return attempt_body(found, number)


def _number(parameter: str, value: str) -> int:
    """Raises Problem unless it is a whole number, 0 or above."""
    if not _NUMBER.fullmatch(value):
        raise Problem(400, f"Cannot resolve path parameter ({parameter}) from value {value!r}.")
    return int(value)
