"""Places the vertices of a dataflow: columns from the sources on, few crossings. Pure.

An edge across several columns gets a free place in each, so that no edge goes through a vertex.
Source: Sugiyama, Tagawa and Toda 1981, with the barycenter rule.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

Stop = tuple[str, ...]
"""`(uid,)`: a vertex. `(source, target, column)`: where an edge passes a column."""

SWEEPS = 3


@dataclass(frozen=True, slots=True)
class Layers:
    """`columns` each go from top to bottom. `routes` are the stops of each edge, with both ends."""

    columns: list[list[Stop]]
    routes: dict[tuple[str, str], list[Stop]]


def layers(inputs: Mapping[str, Sequence[str]]) -> Layers:
    """Takes `{vertex: its inputs}`, in topological order.

    1. A vertex is right of all its inputs; a source is just left of its first receiver.
    2. An edge across several columns gets a stop in each of them.
    3. A few sweeps back and forth order each column by the mean row of the neighbours.
    """
    column = _columns(inputs)
    edges = dict.fromkeys((source, uid) for uid, sources in inputs.items() for source in sources)
    routes = {edge: _route(edge, column) for edge in edges}
    columns: list[list[Stop]] = [[] for _ in range(max(column.values(), default=-1) + 1)]
    for uid in inputs:
        columns[column[uid]].append((uid,))
    for route in routes.values():
        for stop in route[1:-1]:
            columns[int(stop[2])].append(stop)
    _sort(columns, routes)
    return Layers(columns, routes)


def _columns(inputs: Mapping[str, Sequence[str]]) -> dict[str, int]:
    column: dict[str, int] = {}
    for uid, sources in inputs.items():
        column[uid] = 1 + max((column[source] for source in sources), default=-1)
    for uid, sources in inputs.items():
        fed = [column[other] for other, theirs in inputs.items() if uid in theirs]
        if not sources and fed:
            column[uid] = min(fed) - 1
    return column


def _route(edge: tuple[str, str], column: Mapping[str, int]) -> list[Stop]:
    source, target = edge
    passed = range(column[source] + 1, column[target])
    return [(source,), *((source, target, str(each)) for each in passed), (target,)]


def _sort(columns: list[list[Stop]], routes: Mapping[tuple[str, str], list[Stop]]) -> None:
    left: dict[Stop, list[Stop]] = {}
    right: dict[Stop, list[Stop]] = {}
    for route in routes.values():
        for one, next_one in pairwise(route):
            left.setdefault(next_one, []).append(one)
            right.setdefault(one, []).append(next_one)
    for _ in range(SWEEPS):
        for before, stops in pairwise(columns):
            _sort_column(stops, before, left)
        for stops, after in reversed(list(pairwise(columns))):
            _sort_column(stops, after, right)


def _sort_column(
    stops: list[Stop], beside: list[Stop], neighbours: Mapping[Stop, list[Stop]]
) -> None:
    """Stable: a stop without a neighbour there keeps its row as far as the others allow."""
    row = {stop: index for index, stop in enumerate(beside)}

    def mean_row(place: tuple[int, Stop]) -> float:
        index, stop = place
        rows = [row[each] for each in neighbours.get(stop, ())]
        return sum(rows) / len(rows) if rows else index

    stops[:] = [stop for _, stop in sorted(enumerate(stops), key=mean_row)]
