"""Addresses that read the checkpoints of a job."""

from ftdash.api.flink import checkpoint_config, checkpoint_tasks, checkpoints
from ftdash.api.flink.http import Asked, Problem, check_id, job_of
from ftdash.api.flink.names import vertex_id
from ftdash.checkpoints.answers import SubtaskTimeline
from ftdash.checkpoints.queries import alignment
from ftdash.checkpoints.statistics import MeasuredCheckpoint, measured_checkpoint, statistics_of
from ftdash.jobs.run_queries import RunFacts

CHECKPOINT_ID_MAX = 2**63 - 1


def statistics(asked: Asked, job: str) -> object:
    found = statistics_of(job_of(job).run_id)
    if found is None:
        raise Problem(404, f"Job {job} not found")
    return checkpoints.statistics(found)


def config(asked: Asked, job: str) -> object:
    return checkpoint_config.config(job_of(job))


def details(asked: Asked, job: str, checkpoint: str) -> object:
    run = job_of(job)
    found, subtasks = _checkpoint(run, checkpoint)
    return checkpoints.checkpoint(found, checkpoint_tasks.tasks(run, found, subtasks))


def subtasks(asked: Asked, job: str, checkpoint: str, vertex: str) -> object:
    check_id("vertexid", vertex)
    run = job_of(job)
    found, subtasks = _checkpoint(run, checkpoint)
    named = next((each for each in run.vertices if vertex_id(each) == vertex), None)
    if named is None:
        raise Problem(404, f"There is no vertex {vertex} in job {job}.")
    return checkpoint_tasks.with_subtasks(run, found, checkpoint_tasks.parts_of(named, subtasks))


def _checkpoint(run: RunFacts, text: str) -> tuple[MeasuredCheckpoint, list[SubtaskTimeline]]:
    """Raises Problem when there is none of that id, or what its subtasks did is forgotten."""
    if not text.isascii() or not text.isdigit() or int(text) > CHECKPOINT_ID_MAX:
        raise Problem(
            400,
            f"Cannot resolve path parameter (checkpointid) from value {text!r}: give its number.",
        )
    number = int(text)
    found, timeline = measured_checkpoint(run.run_id, number), alignment(run.run_id, number)
    if found is None or timeline is None:
        raise Problem(404, f"Could not find checkpointing statistics for checkpoint {number}.")
    is_forgotten = found.row.acknowledged_count > 0 and not timeline.subtasks
    if is_forgotten:
        raise Problem(
            404,
            f"Could not find checkpointing statistics for checkpoint {number}: what its subtasks"
            " did is kept of the newest checkpoints only.",
        )
    return found, timeline.subtasks
