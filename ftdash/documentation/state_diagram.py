"""Draws a table of allowed moves between states as SVG, so that a diagram cannot go stale.

States stand in columns by their longest path from the first state; moves back go beside them.
"""

from collections.abc import Mapping, Set
from graphlib import TopologicalSorter
from itertools import groupby
from xml.etree import ElementTree

Moves = Mapping[str, Set[str]]

BOX = (132, 34)  # width and height of a state, in pixels
GAP = (46, 60)
MARGIN = 14


def state_diagram(moves: Moves, title: str) -> str:
    """The SVG element as text. A life begins in the first state of the table."""
    places = _places(moves)
    width = MARGIN + max(x for x, _ in places.values()) + BOX[0] + MARGIN
    height = MARGIN + max(y for _, y in places.values()) + BOX[1] + MARGIN
    svg = ElementTree.Element(
        "svg",
        {"viewBox": f"0 0 {width} {height}", "role": "img", "class": "state-diagram"},
    )
    ElementTree.SubElement(svg, "title").text = title
    _add_arrow_head(svg)
    for state, successors in moves.items():
        for successor in sorted(successors):
            _add_move(svg, state, successor, places)
    for state, (x, y) in places.items():
        _add_state(svg, state, x, y)
    return ElementTree.tostring(svg, encoding="unicode")


def _places(moves: Moves) -> dict[str, tuple[int, int]]:
    """The upper left corner of each state."""
    layers = _layers(moves)
    places = {}
    for layer, states in groupby(sorted(moves, key=layers.__getitem__), key=layers.__getitem__):
        for row, state in enumerate(states):
            x = MARGIN + layer * (BOX[0] + GAP[0])
            y = MARGIN + row * (BOX[1] + GAP[1]) + (layer % 2) * (BOX[1] + GAP[1]) // 2
            places[state] = (x, y)
    return places


def _layers(moves: Moves) -> dict[str, int]:
    """The longest path to each state, over moves to states later in the table."""
    order = {state: index for index, state in enumerate(moves)}
    before: dict[str, set[str]] = {state: set() for state in moves}
    for state, successors in moves.items():
        for successor in successors:
            if order[successor] > order[state]:
                before[successor].add(state)
    layers: dict[str, int] = {}
    for state in TopologicalSorter(before).static_order():
        layers[state] = max((layers[each] + 1 for each in before[state]), default=0)
    return layers


def _add_arrow_head(svg: ElementTree.Element) -> None:
    marker = ElementTree.SubElement(
        ElementTree.SubElement(svg, "defs"),
        "marker",
        {"id": "arrow", "viewBox": "0 0 8 8", "refX": "8", "refY": "4", "orient": "auto"}
        | {"markerWidth": "8", "markerHeight": "8"},
    )
    ElementTree.SubElement(marker, "path", {"d": "M0,0 L8,4 L0,8 z", "fill": "currentColor"})


def _add_move(
    svg: ElementTree.Element, state: str, successor: str, places: dict[str, tuple[int, int]]
) -> None:
    (x1, y1), (x2, y2) = places[state], places[successor]
    if x2 > x1:
        start, end = (x1 + BOX[0], y1 + BOX[1] // 2), (x2, y2 + BOX[1] // 2)
        middle = (start[0] + end[0]) // 2
        bends = f"C{middle},{start[1]} {middle},{end[1]}"
    else:  # back: below the boxes
        start, end = (x1 + BOX[0] // 2, y1 + BOX[1]), (x2 + BOX[0] // 2, y2 + BOX[1])
        depth = max(start[1], end[1]) + GAP[1]
        bends = f"C{start[0]},{depth} {end[0]},{depth}"
    path = f"M{start[0]},{start[1]} {bends} {end[0]},{end[1]}"
    ElementTree.SubElement(
        svg,
        "path",
        {"d": path, "fill": "none", "stroke": "currentColor", "marker-end": "url(#arrow)"}
        | {"data-from": state, "data-to": successor},
    )


def _add_state(svg: ElementTree.Element, state: str, x: int, y: int) -> None:
    box = {"x": str(x), "y": str(y), "width": str(BOX[0]), "height": str(BOX[1]), "rx": "8"}
    colours = {"fill": "var(--md-code-bg-color)", "stroke": "currentColor"}
    ElementTree.SubElement(svg, "rect", box | colours)
    text = ElementTree.SubElement(
        svg,
        "text",
        {"x": str(x + BOX[0] // 2), "y": str(y + BOX[1] // 2 + 5), "text-anchor": "middle"}
        | {"font-size": "13", "fill": "currentColor"},
    )
    text.text = state
