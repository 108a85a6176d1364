"""A pipeline as its author declares it: its name, its summary, its parameters and its function.

    @flow
    def shop(env: Environment, parameters: Parameters) -> None:
        "Counts orders per product and minute."

A declaration builds nothing. Every process that needs the pipeline builds it from the declaration
and the text of the parameters, so no code object travels.
"""

import inspect
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from types import TracebackType
from typing import Any, get_type_hints

from pipelines.domain.errors import BrokenCode, InvariantViolated, Rejected, Retryable
from pipelines.domain.run import Parameter
from pipelines.domain.texts import masked
from pipelines.stream.environment import Environment
from pipelines.stream.parameters import declared_parameters, read_parameters
from pipelines.stream.pipeline import Pipeline


@dataclass(frozen=True, slots=True)
class Flow:
    """A pipeline that can be built, as often as needed. Authors make one with `flow`.

    `assemble` takes the text of every parameter.
    """

    name: str
    summary: str
    parameters: tuple[Parameter, ...]
    assemble: Callable[[Mapping[str, str]], Pipeline]

    def build(self, given: Mapping[str, str]) -> Pipeline:
        """`given` is {parameter: text}; parameters that are left out keep their defaults.

        Raises Rejected naming the parameter, file, column or target at fault, and BrokenCode, with
        the traceback, if the author's code raises anything else.
        """
        completed = self.complete(given)
        try:
            return self.assemble(completed)
        except (Rejected, Retryable, InvariantViolated):
            raise
        except Exception as error:
            raise BrokenCode(
                masked(f"The pipeline {self.name} cannot be built: {described(error)}."),
                masked(traceback_of(error, below=__file__)),
            ) from error

    def complete(self, given: Mapping[str, str]) -> dict[str, str]:
        """Returns all parameters, with defaults. Raises Rejected for unknown or missing ones."""
        known = [parameter.name for parameter in self.parameters]
        for name in given:
            if name not in known:
                raise Rejected(unknown("parameter", name, known, f"of {self.name}"))
        completed = {}
        for parameter in self.parameters:
            value = given.get(parameter.name, parameter.default)
            if value is None:
                raise Rejected(f"The pipeline {self.name} needs the parameter {parameter.name!r}.")
            completed[parameter.name] = value
        return completed


Describe = Callable[..., None]
"""An author's function: (env) or (env, parameters); adds sources, operators and sinks to `env`."""


def flow(describe: Describe) -> Flow:
    """Declares the pipeline that a function describes, under the function's name.

    The first line of its docstring says what the pipeline does. The annotation of its second
    argument, if it has one, is the class of its parameters (`pipelines.stream.parameters`).

    Raises TypeError if the function takes other arguments.
    """
    declaration = _declaration(describe)

    def assemble(texts: Mapping[str, str]) -> Pipeline:
        environment = Environment()
        if declaration is None:
            describe(environment)
        else:
            describe(environment, read_parameters(declaration, texts))
        return environment.build()

    summary = (inspect.getdoc(describe) or "").partition("\n")[0]
    parameters = () if declaration is None else declared_parameters(declaration)
    return Flow(describe.__name__, summary, parameters, assemble)


def _declaration(describe: Describe) -> type | None:
    """Returns the class of the parameters, or None if the flow has no parameters."""
    names = list(inspect.signature(describe).parameters)
    if len(names) == 1:
        return None
    hints: Mapping[str, Any] = get_type_hints(describe)
    if len(names) != 2 or not isinstance(hints.get(names[1]), type):
        raise TypeError(
            f"{describe.__name__} takes an Environment and, if it has parameters, a second argument"
            " annotated with their dataclass"
        )
    return hints[names[1]]  # type: ignore[no-any-return]


def unknown(kind: str, name: str, known: list[str], where: str) -> str:
    """Returns a sentence about an unknown name, with the closest known one as a hint."""
    closest = get_close_matches(name, known, n=1, cutoff=0.5)
    if closest:
        hint = f"did you mean {closest[0]!r}?"
    else:
        hint = f"known are {', '.join(known)}." if known else "there are none."
    return f"There is no {kind} {name!r} {where}; {hint}"


def described(error: BaseException) -> str:
    """Returns the type and text of an exception: the text of a KeyError alone does not name it."""
    text = str(error).rstrip(".")
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def traceback_of(error: BaseException, *, below: str) -> str:
    """Returns the author's part of a traceback: the frames below the last one in `below`."""
    begin, each = error.__traceback__, error.__traceback__
    while each is not None:
        if _is_ours(each, below):
            begin = each.tb_next
        each = each.tb_next
    return "".join(traceback.format_exception(type(error), error, begin, chain=False))


def _is_ours(frame: TracebackType, below: str) -> bool:
    file = frame.tb_frame.f_code.co_filename
    return file == below or file.startswith("<frozen importlib")
