"""Addresses that read the checkpoints of a job."""

from ftdash.api.flink import checkpoint_config, checkpoint_tasks, checkpoints
from ftdash.api.flink.http import Asked, Problem, check_id, job_of
from ftdash.api.flink.names import vertex_id
from ftdash.checkpoints.queries.detail import (
    CHECKPOINT_ID_MAX,
    CheckpointDetail,
    checkpoint_detail,
)
from ftdash.checkpoints.queries.statistics import statistics_of


def statistics(asked: Asked, job: str) -> object:
    found = statistics_of(job_of(job).run_id)
    if found is None:
        raise Problem(404, f"Job {job} not found")
    return checkpoints.statistics(found)


def config(asked: Asked, job: str) -> object:
    return checkpoint_config.config(job_of(job))


def details(asked: Asked, job: str, checkpoint: str) -> object:
    detail = _checkpoint(job, checkpoint)
    return checkpoints.checkpoint(detail.found, checkpoint_tasks.tasks(detail.found, detail.parts))


def subtasks(asked: Asked, job: str, checkpoint: str, vertex: str) -> object:
    check_id("vertexid", vertex)
    detail = _checkpoint(job, checkpoint)
    named = next((part for part in detail.parts if vertex_id(part.vertex) == vertex), None)
    if named is None:
        raise Problem(404, f"There is no vertex {vertex} in job {job}.")
    return checkpoint_tasks.with_subtasks(detail.found, named)


def _checkpoint(job: str, text: str) -> CheckpointDetail:
    """Raises Problem if there is none with that id, or if its subtasks' part is no longer kept."""
    run = job_of(job)
    if not text.isascii() or not text.isdigit() or int(text) > CHECKPOINT_ID_MAX:
        raise Problem(
            400,
            f"Cannot resolve path parameter (checkpointid) from value {text!r}: give its number.",
        )
    number = int(text)
    found = checkpoint_detail(run.run_id, number)
    if found is None:
        raise Problem(404, f"Could not find checkpointing statistics for checkpoint {number}.")
    if found.is_forgotten:
        raise Problem(
            404,
            f"Could not find checkpointing statistics for checkpoint {number}: what its subtasks"
            " did is kept of the newest checkpoints only.",
        )
    return found
