"""What all figures share: layout, axes, patterns, and how moments and texts are written."""

from datetime import datetime

from ftdash.times import epoch_ms

Json = dict[str, object]
Figure = dict[str, object]

POINTS_MAX = 2_000
"""Per trace; more than that no screen can show and every redraw pays for."""


def layout(height: int, **more: object) -> Json:
    return {
        "height": height,
        "margin": {"l": 10, "r": 30, "t": 8, "b": 8},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": "inherit", "size": 12, "color": "@text"},
        "hoverlabel": {"bgcolor": "@raised", "bordercolor": "@line", "font": {"color": "@text"}},
        "legend": legend(),
        **more,
    }


def legend() -> Json:
    return {"orientation": "h", "traceorder": "normal", "y": 1.0, "yanchor": "bottom", "x": 0}


def short_legend(entry_px: int) -> Json:
    """For short names: several fit in a row, also on a phone."""
    return {**legend(), "entrywidth": entry_px, "entrywidthmode": "pixels"}


def axis(**more: object) -> Json:
    return {
        "automargin": True,
        "gridcolor": "@grid",
        "zerolinecolor": "@grid",
        "linecolor": "@line",
        "tickfont": {"color": "@muted"},
        **more,
    }


def time_axis(**more: object) -> Json:
    """Its ticks and its title are filled in by the page's script, which knows the viewer's zone.

    They make no room for themselves at the sides: a range with marks in it follows from the width.
    """
    return axis(
        type="date",
        title={"standoff": 6},
        tickangle=0,
        ticklabeloverflow="allow",
        automargin="height",
        **more,
    )


def pattern_of(shape: str) -> Json:
    return {
        "shape": shape,
        "fgcolor": "@pattern",
        "fillmode": "overlay",
        "size": 6,
        "solidity": 0.3,
    }


def moment(at: datetime | None) -> int | None:
    """The page's script has Plotly draw it, and fills in what the viewer's clock showed."""
    return None if at is None else epoch_ms(at)


def in_both_zones(written: str) -> str:
    """Of a hover template: when it was, in the viewer's zone with UTC beside it."""
    return f"%{{text|{written}}} (%{{x|{written}}} UTC)"


def escaped(text: str) -> str:
    """Plotly reads a few HTML tags in texts; ours are plain."""
    return text.replace("&", "&amp;").replace("<", "&lt;")
