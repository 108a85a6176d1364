"""Asks an author's code: in this process if it has just begun, else in a process of its own.

A command reads the code as it is, and ends. A web server or a worker that imported the same code
would keep that version of it, so each calls `stay` when it begins. A web server does so before
Django is loaded: nothing that needs models may be imported here.
"""

import os
from typing import TYPE_CHECKING, TypeVar

from django.conf import settings as configuration

if TYPE_CHECKING:
    from pipelines.points.code_process import Question

T = TypeVar("T")

SECRETS = frozenset(name + end for name in configuration.SECRET_VARIABLES for end in ("", "_FILE"))
"""Variables with which the control plane signs, or opens its own servers."""

_staying: list[bool] = []


def environment_of_authors() -> dict[str, str]:
    """Returns this process's environment without its secrets, for one that runs authors' code."""
    return {name: value for name, value in os.environ.items() if name not in SECRETS}


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
