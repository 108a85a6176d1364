"""A figure of all subtasks as a heat map: a cell for each subtask, a band per operator. Pure.

A table of a thousand subtasks answers no question; a map shows at once which of them differ. A band
wraps after `CELLS_MAX` cells, so that a cell stays wide enough to point at, also on a phone.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from django.utils.text import slugify

from ftdash.formats import UNKNOWN, count, duration, percent, plural, size
from ftdash.ui.figures.style import Figure, Json, axis, escaped, layout

CELLS_MAX = 64
"""The most cells in a row; on a phone, each is five pixels wide."""

ROW_PX, LONE_ROW_PX = 15, 26
UNITS = {
    "ms": ("%{z:,.1f} ms", duration),
    "B": ("%{z:.3s}B", size),
    "%": ("%{z:.0%}", percent),
    "records": ("%{z:,} records", count),
}
"""How a cell's value is written, by the page's script and here."""

Bands = Mapping[str, Sequence[float | None]]
"""Values by subtask for each operator, in topological order. None means not known."""


@dataclass(frozen=True, slots=True)
class Measure:
    """The figure that the colour of a cell shows; `unit` is one of `UNITS`."""

    label: str
    unit: str

    @property
    def key(self) -> str:
        """Its name in addresses."""
        return slugify(self.label)


def chosen_measure(measures: Sequence[Measure], key: str | None) -> Measure:
    """Returns the measure of that name, or the first if there is none."""
    return next((each for each in measures if each.key == key), measures[0])


def heat_map(bands: Bands, measure: Measure) -> Figure | None:
    rows = [
        (uid, start, values[start : start + CELLS_MAX])
        for uid, values in bands.items()
        for start in range(0, len(values), CELLS_MAX)
    ]
    if not any(value is not None for _, _, values in rows for value in values):
        return None
    width = max(len(values) for _, _, values in rows)
    return {"data": [_cells(rows, width, measure)], "layout": _layout(rows, len(bands), width)}


Row = tuple[str, int, Sequence[float | None]]
"""An operator, the index of the first subtask, and the values from it on."""


def _cells(rows: list[Row], width: int, measure: Measure) -> Json:
    written, _ = UNITS[measure.unit]
    return {
        "type": "heatmap",
        "z": [
            [None if v is None else round(v, 3) for v in values] + [None] * (width - len(values))
            for _, _, values in rows
        ],
        "customdata": [
            [f"{escaped(uid)}[{start + at}]" for at in range(len(values))]
            for uid, start, values in rows
        ],
        "hovertemplate": f"<b>%{{customdata}}</b><br>{written}<extra></extra>",
        "hoverongaps": False,
        "xgap": 0 if width > 32 else 1,  # on a phone, gaps would take half of a narrow cell
        "ygap": 1,
        "zmin": 0,
        "colorscale": [[0, "@heat-0"], [0.5, "@heat-1"], [1, "@heat-2"]],
        "colorbar": {
            "thickness": 10,
            "outlinewidth": 0,
            "ticksuffix": " ms" if measure.unit == "ms" else "",
            "tickformat": {"%": ".0%", "B": ".2s"}.get(measure.unit, ",~r"),
        },
    }


def _layout(rows: list[Row], operators: int, width: int) -> Json:
    height = LONE_ROW_PX if len(rows) == operators else ROW_PX
    return layout(
        70 + height * len(rows),
        hovermode="closest",
        xaxis=axis(
            title={"text": f"subtask, {width} in a row", "standoff": 6}, showgrid=False, nticks=9
        ),
        yaxis=axis(
            autorange="reversed",
            showgrid=False,
            tickmode="array",
            tickvals=list(range(len(rows))),
            ticktext=[escaped(uid) if start == 0 else f"{start} on" for uid, start, _ in rows],
        ),
    )


def heat_sentence(bands: Bands, measure: Measure, of_what: str) -> str:
    """Says what the map shows, for people who cannot see it."""
    known = [
        (value, f"{uid}[{index}]")
        for uid, values in bands.items()
        for index, value in enumerate(values)
        if value is not None
    ]
    if not known:
        return f"{measure.label}: no subtask has reported it {of_what}."
    _, written = UNITS[measure.unit]
    least, most = min(known)[0], max(known)
    named = f"{measure.label} of {plural(len(known), 'subtask')} {of_what}"
    if least == most[0]:
        return f"{named}: {written(least)} in each."
    return f"{named}: from {written(least)} to {written(most[0]) or UNKNOWN}, most in {most[1]}."
