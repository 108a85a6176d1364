"""What all figures share: layout, axes, patterns, and the form of times and texts."""

from datetime import datetime

from ftdash.times import epoch_ms

Json = dict[str, object]
Figure = dict[str, object]

POINTS_MAX = 2_000
"""Per trace; no screen can show more, and every redraw costs time."""


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
    """For short names: several fit in a row, even on a phone."""
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
    """The page's script fills in its ticks and title, because it knows the viewer's zone.

    They reserve no space at the sides: a range with marks in it follows from the width.
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
    """The page's script passes it to Plotly, and converts it to the viewer's clock."""
    return None if at is None else epoch_ms(at)


def in_both_zones(written: str) -> str:
    """For a hover template: the time in the viewer's zone, followed by UTC."""
    return f"%{{text|{written}}} (%{{x|{written}}} UTC)"


def escaped(text: str) -> str:
    """Plotly reads a few HTML tags in texts; ours are plain."""
    return text.replace("&", "&amp;").replace("<", "&lt;")
