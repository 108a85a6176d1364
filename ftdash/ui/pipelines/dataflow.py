"""The dataflow of a run as a drawing: a box for each operator, an arrow for each edge. Pure.

The vertices are in columns that begin with the sources, with few crossings. An edge across several
columns gets a free place in each, so that no edge goes through a vertex. The template draws them in
SVG attributes, because the pages allow no inline styles.

Source: Sugiyama, Tagawa and Toda 1981, with the barycenter rule.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby, pairwise

from ftdash.jobs.answers import RunView, VertexView
from ftdash.metrics.queries.loads import RunLoads
from ftdash.ui.metrics.operators import (
    BACKPRESSURED_FROM,
    OperatorRow,
    bottleneck,
    is_past,
    operator_rows,
    sentence,
)

Stop = tuple[str, ...]
"""`(uid,)` is a vertex; `(source, target, column)` is the place where an edge passes a column."""

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


BOX_WIDTH, BOX_HEIGHT = 216, 152
GAP_X, GAP_Y = 84, 22
MARGIN = 8
PADDING = 12


HEAT_CELLS_MAX = 48
"""The most cells in a box; with more subtasks, a cell shows the busiest of some neighbours."""

HEAT_LEVELS = 5


@dataclass(frozen=True, slots=True)
class HeatCell:
    """Neighbours that are equally busy are one cell. `level` is from 0 to `HEAT_LEVELS` - 1."""

    x: float
    width: float
    level: int


def heat_cells(busy: Sequence[float], width: float) -> list[HeatCell]:
    """Draws one operator's subtasks by index; `width` is that of all cells, in pixels."""
    if not busy:
        return []
    each = -(-len(busy) // HEAT_CELLS_MAX)
    groups = [max(busy[start : start + each]) for start in range(0, len(busy), each)]
    levels = [min(HEAT_LEVELS - 1, int(HEAT_LEVELS * share)) for share in groups]
    found: list[HeatCell] = []
    at, step = 0, width / len(levels)
    for level, run in groupby(levels):
        count = len(list(run))
        found.append(HeatCell(round(at * step, 1), round(count * step, 1), level))
        at += count
    return found


@dataclass(frozen=True, slots=True)
class Box:
    """`row` None means that none of its subtasks has reported."""

    vertex: VertexView
    subtask_count: int
    row: OperatorRow | None
    is_bottleneck: bool
    x: float
    y: float

    @property
    def bar_busy(self) -> float:
        return self._bar(self.row.busy_ratio if self.row else 0.0)

    @property
    def bar_backpressured(self) -> float:
        return self._bar(self.row.backpressured_ratio if self.row else 0.0)

    @property
    def heat(self) -> list[HeatCell]:
        """How busy each subtask is; empty where the bar shows it already."""
        busy = [each.load.busy_ratio for each in self.row.subtasks] if self.row else []
        return heat_cells(busy, self.bar_width) if len(busy) > 1 else []

    @property
    def bar_width(self) -> int:
        return BOX_WIDTH - 2 * PADDING

    def _bar(self, ratio: float) -> float:
        return round(self.bar_width * ratio, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrow:
    source: str
    target: str
    kinds: str  # "hash"; if several edges connect the two, all their kinds
    path: str  # SVG
    label_x: float
    label_y: float
    is_held_up: bool  # its source waits for its receivers


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataflow:
    sentence: str
    at: datetime | None  # when the loads were reported
    is_past: bool  # the loads are old: the current ones are unknown, or nothing runs
    width: int
    height: int
    boxes: list[Box]  # in topological order
    arrows: list[Arrow]

    box_width, box_height, padding = BOX_WIDTH, BOX_HEIGHT, PADDING


def dataflow(run: RunView | None, loads: RunLoads | None) -> Dataflow:
    """`loads` are of `run`, from its newest sample."""
    vertices = run.vertices if run else []
    rows = operator_rows(vertices, loads)
    placed = layers({vertex.uid: vertex.inputs for vertex in vertices})
    corners = _corners(placed)
    return Dataflow(
        sentence=sentence(rows, vertices),
        at=loads.at if loads else None,
        is_past=is_past(run, loads),
        width=_extent(len(placed.columns), BOX_WIDTH, GAP_X),
        height=_extent(max(map(len, placed.columns), default=0), BOX_HEIGHT, GAP_Y),
        boxes=_boxes(vertices, run.parallelism if run else 1, rows, corners),
        arrows=_arrows(vertices, rows, placed, corners),
    )


def _corners(placed: Layers) -> dict[Stop, tuple[float, float]]:
    """The upper left corner of each stop; every column is centred."""
    tallest = max(map(len, placed.columns), default=0)
    return {
        stop: (
            MARGIN + index * (BOX_WIDTH + GAP_X),
            MARGIN + (row + (tallest - len(column)) / 2) * (BOX_HEIGHT + GAP_Y),
        )
        for index, column in enumerate(placed.columns)
        for row, stop in enumerate(column)
    }


def _extent(count: int, size: int, gap: int) -> int:
    return 2 * MARGIN + count * size + max(0, count - 1) * gap


def _boxes(
    vertices: list[VertexView],
    parallelism: int,
    rows: list[OperatorRow],
    corners: dict[Stop, tuple[float, float]],
) -> list[Box]:
    found = bottleneck(rows, vertices)
    named = found.row.uid if found and found.is_busy else None
    by_uid = {row.uid: row for row in rows}
    return [
        Box(
            vertex,
            vertex.subtask_count(parallelism),
            by_uid.get(vertex.uid),
            vertex.uid == named,
            *corners[(vertex.uid,)],
        )
        for vertex in vertices
    ]


def _arrows(
    vertices: list[VertexView],
    rows: list[OperatorRow],
    placed: Layers,
    corners: dict[Stop, tuple[float, float]],
) -> list[Arrow]:
    held_up = {row.uid for row in rows if row.backpressured_ratio >= BACKPRESSURED_FROM}
    kinds: dict[tuple[str, str], list[str]] = {}
    for vertex in vertices:
        edges = vertex.edges or [""] * len(vertex.inputs)  # empty in old journals
        for source, kind in zip(vertex.inputs, edges, strict=True):
            kinds.setdefault((source, vertex.uid), []).append(kind)
    return [
        _arrow(edge, ", ".join(filter(None, dict.fromkeys(kinds[edge]))), route, corners, held_up)
        for edge, route in placed.routes.items()
    ]


def _arrow(
    edge: tuple[str, str],
    kinds: str,
    route: list[Stop],
    corners: dict[Stop, tuple[float, float]],
    held_up: set[str],
) -> Arrow:
    """Draws a curve across each gap, and a straight line past each column."""
    middles = [(corners[stop][0], corners[stop][1] + BOX_HEIGHT / 2) for stop in route]
    x, y = middles[0][0] + BOX_WIDTH, middles[0][1]
    path = [f"M{x:g} {y:g}"]
    for next_x, next_y in middles[1:]:
        bend = next_x - GAP_X / 2
        path.append(f"C{bend:g} {y:g} {bend:g} {next_y:g} {next_x:g} {next_y:g}")
        path.append(f"H{next_x + BOX_WIDTH:g}")
        y = next_y
    label_y = (middles[0][1] + middles[1][1]) / 2
    return Arrow(
        source=edge[0],
        target=edge[1],
        kinds=kinds,
        path=" ".join(path[:-1]),
        label_x=x + GAP_X / 2,
        label_y=label_y - 6,
        is_held_up=edge[0] in held_up,
    )
