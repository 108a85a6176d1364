"""Addresses that read one vertex of a job."""

from ftdash.api.flink import metrics, shapes_vertices, vertices
from ftdash.api.flink.http import Asked, Problem, check_id, job_of
from ftdash.api.flink.metrics import aggregated, listed, within
from ftdash.api.flink.vertices import Seen
from ftdash.runs.queries import runs as run_queries


def detail(asked: Asked, job: str, vertex: str) -> object:
    return vertices.detail(seen(job, vertex))


def backpressure(asked: Asked, job: str, vertex: str) -> object:
    return vertices.backpressure(seen(job, vertex))


def times(asked: Asked, job: str, vertex: str) -> object:
    return vertices.times(seen(job, vertex))


def task_managers(asked: Asked, job: str, vertex: str) -> object:
    return vertices.task_managers(seen(job, vertex))


def accumulators(asked: Asked, job: str, vertex: str) -> object:
    seen(job, vertex)
    return shapes_vertices.VertexAccumulators(id=vertex, user_accumulators=[])


def watermarks(asked: Asked, job: str, vertex: str) -> object:
    """Empty for sources: they receive no watermarks."""
    found = seen(job, vertex)
    if found.vertex.is_source:
        return []
    return [
        shapes_vertices.MetricValue(
            id=f"{index}.{metrics.WATERMARK}",
            value=str(metrics.of_subtask(view)[metrics.WATERMARK]),
        )
        for index, view in sorted(found.subtasks.items())
    ]


def all_metrics(asked: Asked, job: str, vertex: str) -> object:
    return listed(
        asked,
        {
            f"{index}.{name}": value
            for index, view in sorted(seen(job, vertex).subtasks.items())
            for name, value in metrics.of_subtask(view).items()
        },
    )


def subtask_metrics(asked: Asked, job: str, vertex: str) -> object:
    found = seen(job, vertex).subtasks
    selected = within(asked.values("subtasks"), found)
    return aggregated(asked, [metrics.of_subtask(found[index]) for index in selected])


def operator_metrics(asked: Asked, job: str, vertex: str) -> object:
    """Empty: these are metrics of Flink's operator coordinators, which we do not have."""
    seen(job, vertex)
    return []


def seen(job: str, vertex: str) -> Seen:
    check_id("vertexid", vertex)
    found = vertices.find(job_of(job), vertex, run_queries.newest_samples)
    if found is None:
        raise Problem(404, f"There is no vertex {vertex} in job {job}.")
    return found
