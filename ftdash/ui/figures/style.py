"""What all figures share: layout, axes, patterns, and how moments and texts are written."""

from datetime import UTC, datetime

Json = dict[str, object]
Figure = dict[str, object]

POINTS_MAX = 2_000
"""Per trace; more than that no screen can show and every redraw pays for."""


def layout(height: int, **more: object) -> Json:
    return {
        "height": height,
        "margin": {"l": 10, "r": 16, "t": 8, "b": 8},
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


def pattern_of(shape: str) -> Json:
    return {
        "shape": shape,
        "fgcolor": "@pattern",
        "fillmode": "overlay",
        "size": 6,
        "solidity": 0.3,
    }


def moment(at: datetime | None) -> str | None:
    """Plotly draws dates as written; all of ours are written in UTC."""
    return None if at is None else f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S.%f}"[:-3]


def escaped(text: str) -> str:
    """Plotly reads a few HTML tags in texts; ours are plain."""
    return text.replace("&", "&amp;").replace("<", "&lt;")
