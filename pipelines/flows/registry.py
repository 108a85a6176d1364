"""Finds the flows that ship by name, and reads their parameters strictly."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module

from pipelines.domain.errors import Rejected
from pipelines.stream import Pipeline

FLOWS = {
    "flight_delays": "pipelines.flows.flight_delays",
    "page_view_count": "pipelines.flows.page_view_count",
    "page_views": "pipelines.flows.page_views",
}


@dataclass(frozen=True, slots=True)
class Parameter:
    """`default` None: the parameter is required."""

    name: str
    default: str | None
    help: str


@dataclass(frozen=True, slots=True)
class Flow:
    name: str
    summary: str
    parameters: tuple[Parameter, ...]
    assemble: Callable[[Mapping[str, str]], Pipeline]

    def build(self, given: Mapping[str, str]) -> Pipeline:
        """Raises Rejected naming the parameter, file, column or target at fault."""
        return self.assemble(self.complete(given))

    def complete(self, given: Mapping[str, str]) -> dict[str, str]:
        """All parameters, defaults filled in. Raises Rejected for unknown or missing ones."""
        known = [parameter.name for parameter in self.parameters]
        for name in given:
            if name not in known:
                raise Rejected(_unknown("parameter", name, known, f"of {self.name}"))
        completed = {}
        for parameter in self.parameters:
            value = given.get(parameter.name, parameter.default)
            if value is None:
                raise Rejected(f"The pipeline {self.name} needs the parameter {parameter.name!r}.")
            completed[parameter.name] = value
        return completed


def flow(name: str) -> Flow:
    """Raises Rejected when there is no flow of that name."""
    if name not in FLOWS:
        raise Rejected(_unknown("pipeline", name, list(FLOWS), "here"))
    found = import_module(FLOWS[name]).FLOW
    if not isinstance(found, Flow):
        raise TypeError(f"{FLOWS[name]}.FLOW is a Flow")
    return found


def _unknown(kind: str, name: str, known: list[str], where: str) -> str:
    closest = get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f"did you mean {closest[0]!r}?" if closest else f"known are {', '.join(known)}."
    return f"There is no {kind} {name!r} {where}; {hint}"
