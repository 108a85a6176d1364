"""The dataflow of a run as a drawing: a box for each operator, an arrow for each edge. Pure.

The template draws it in SVG attributes, because the pages allow no inline styles.
"""

from dataclasses import dataclass
from datetime import datetime

from ftdash.jobs.answers import RunView, VertexView
from ftdash.metrics.queries.loads import RunLoads
from ftdash.ui.metrics.bottleneck import BACKPRESSURED_FROM, bottleneck, sentence
from ftdash.ui.metrics.operator_rows import OperatorRow, is_past, operator_rows
from ftdash.ui.pipelines.layers import Layers, Stop, layers

BOX_WIDTH, BOX_HEIGHT = 216, 122
GAP_X, GAP_Y = 84, 22
MARGIN = 8
PADDING = 12


@dataclass(frozen=True, slots=True)
class Box:
    """`row` None: none of its subtasks has reported."""

    vertex: VertexView
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
    def bar_width(self) -> int:
        return BOX_WIDTH - 2 * PADDING

    def _bar(self, ratio: float) -> float:
        return round(self.bar_width * ratio, 1)


@dataclass(frozen=True, slots=True)
class Arrow:
    source: str
    target: str
    kinds: str  # "hash"; if several edges connect the two, all their kinds
    path: str  # SVG
    label_x: float
    label_y: float
    is_held_up: bool  # its source waits for its receivers


@dataclass(frozen=True, slots=True)
class Dataflow:
    sentence: str
    at: datetime | None  # when the loads were reported
    is_past: bool  # they are former loads; the present ones are unknown, or nothing runs
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
        boxes=_boxes(vertices, rows, corners),
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
    vertices: list[VertexView], rows: list[OperatorRow], corners: dict[Stop, tuple[float, float]]
) -> list[Box]:
    found = bottleneck(rows, vertices)
    named = found.row.uid if found and found.is_busy else None
    by_uid = {row.uid: row for row in rows}
    return [
        Box(vertex, by_uid.get(vertex.uid), vertex.uid == named, *corners[(vertex.uid,)])
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
    """A curve across each gap, and a straight line past each column."""
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
        *edge,
        kinds=kinds,
        path=" ".join(path[:-1]),
        label_x=x + GAP_X / 2,
        label_y=label_y - 6,
        is_held_up=edge[0] in held_up,
    )
