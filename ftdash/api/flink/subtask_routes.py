"""Addresses that read one subtask of a vertex. Only the present attempt is known."""

import re

from ftdash.api.flink import metrics, shapes_vertices, vertices
from ftdash.api.flink.http import Asked, Problem
from ftdash.api.flink.metrics import listed
from ftdash.api.flink.vertex_routes import seen
from ftdash.api.flink.vertices import Seen

_NUMBER = re.compile(r"[0-9]{1,9}")


def current(asked: Asked, job: str, vertex: str, index: str) -> object:
    return _attempt(seen(job, vertex), index)


def attempt(asked: Asked, job: str, vertex: str, index: str, attempt: str) -> object:
    number, found = _number("attempt", attempt), _attempt(seen(job, vertex), index)
    if found.attempt != number:
        raise Problem(404, f"Attempt {number} of subtask {index} is not known; {found.attempt} is.")
    return found


def all_metrics(asked: Asked, job: str, vertex: str, index: str) -> object:
    """Empty before the first sample."""
    found = seen(job, vertex)
    sampled = found.of(_attempt(found, index).subtask)
    return listed(asked, metrics.of_subtask(sampled[0]) if sampled else {})


def accumulators(asked: Asked, job: str, vertex: str) -> object:
    """Empty: user functions have no accumulators here."""
    found = seen(job, vertex)
    attempts = vertices.detail(found).subtasks
    return shapes_vertices.SubtasksAccumulators(
        id=vertex,
        parallelism=len(attempts),
        subtasks=[
            shapes_vertices.SubtaskAccumulators(
                subtask=each.subtask,
                attempt=each.attempt,
                endpoint=each.endpoint,
                user_accumulators=[],
            )
            for each in attempts
        ],
    )


def _attempt(found: Seen, index: str) -> shapes_vertices.SubtaskAttempt:
    number = _number("subtaskindex", index)
    if number >= found.run.parallelism:
        raise Problem(404, f"There is no subtask {number}; there are {found.run.parallelism}.")
    return vertices.attempt(found, number)


def _number(parameter: str, value: str) -> int:
    """Raises Problem unless it is a whole number, 0 or above."""
    if not _NUMBER.fullmatch(value):
        raise Problem(400, f"Cannot resolve path parameter ({parameter}) from value {value!r}.")
    return int(value)
