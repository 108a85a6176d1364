"""Asks an author's code: in this process if it has just begun, else in a process of its own.

A command reads the code as it is, and ends. A web server or a worker that imported the same code
would keep that version of it, so each calls `stay` when it begins. A web server does so before
Django is loaded: nothing that needs models may be imported here.
"""

from typing import TYPE_CHECKING, TypeVar

from django.conf import settings as configuration

from ftdash.jobs.author_environment import environment_of_authors

if TYPE_CHECKING:
    from pipelines.points.code_process import Question

T = TypeVar("T")

_staying: list[bool] = []


def stay() -> None:
    """Notes that this process lives on while code changes."""
    _staying.append(True)


def answer(question: "Question", kind: type[T]) -> T:
    """`kind` is the type of the answer. Raises what answering raises: Rejected or Retryable."""
    if _staying:
        from pipelines.points.code_process import answer_afresh

        return answer_afresh(question, kind, configuration.BASE_DIR, environment_of_authors())
    found: T = question.answered()  # type: ignore[assignment]
    return found
