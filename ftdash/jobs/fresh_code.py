"""Asks an author's code: in this process if it has just begun, else in a process of its own.

A command reads the code as it is, and ends. A web server or a worker that imported the same code
would know it as it was at that time, so each calls `stay` when it begins.
"""

from typing import TYPE_CHECKING, TypeVar

from django.conf import settings as configuration

if TYPE_CHECKING:
    from pipelines.points.code_process import Question

T = TypeVar("T")

_staying: list[bool] = []


def stay() -> None:
    """This process lives on, while code changes."""
    _staying.append(True)


def answer(question: "Question", kind: type[T]) -> T:
    """`kind` is the type of the answer. Raises what answering raises: Rejected or Retryable."""
    if _staying:
        from pipelines.points.code_process import answer_afresh

        return answer_afresh(question, kind, configuration.BASE_DIR)
    found: T = question.answered()  # type: ignore[assignment]
    return found
