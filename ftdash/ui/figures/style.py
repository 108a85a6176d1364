"""The parts that all figures share, and the small charts of a run: throughput and memory.

Figures share layout, axes, patterns, and the form of times and texts. The small charts have one
value per second.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from statistics import median_low

import msgspec

from ftdash.formats import rate, size
from ftdash.metrics.queries.loads import SamplePoint
from ftdash.times import epoch_ms

Json = dict[str, object]
Figure = dict[str, object]


@dataclass(frozen=True, slots=True)
class Chart:
    """One figure and the sentence above it; None if there is nothing to draw."""

    name: str
    sentence: str
    figure: Figure | None

    @property
    def element_id(self) -> str:
        return f"values-{self.name}"

    @property
    def json(self) -> str:
        return msgspec.json.encode(self.figure).decode()


POINTS_MAX = 2_000
"""Per trace; no screen can show more, and every redraw costs time."""


WHOLE_NUMBERS: Json = {"exponentformat": "none", "separatethousands": True}
"""Otherwise 45,000 ms would read "45k ms"."""


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
    """A legend for short names: several fit in a row, even on a phone."""
    return {**legend(), "entrywidth": entry_px, "entrywidthmode": "pixels"}


def axis(**more: object) -> Json:
    return {
        "automargin": True,
        "gridcolor": "@grid",
        "zerolinecolor": "@grid",
        "linecolor": "@line",
        "tickfont": {"color": "@muted"},
        **WHOLE_NUMBERS,
        **more,
    }


def time_axis(**more: object) -> Json:
    """The page's script fills in its ticks and title, because it knows the viewer's zone.

    The ticks reserve no space at the sides: a range with marks in it depends on the width.
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
    """Milliseconds since 1970, which the page's script passes to Plotly in the viewer's clock."""
    return None if at is None else epoch_ms(at)


def in_both_zones(written: str) -> str:
    """Writes the time for a hover template: in the viewer's zone, followed by UTC."""
    return f"%{{text|{written}}} (%{{x|{written}}} UTC)"


def escaped(text: str) -> str:
    """Plotly reads a few HTML tags in texts; ours are plain."""
    return text.replace("&", "&amp;").replace("<", "&lt;")


LINE_POINTS_MIN = 2
DASHES = ("solid", "dash", "dot", "dashdot", "longdash")
SERIES = ("@series-1", "@series-2", "@series-3", "@series-4", "@series-5")
"""They repeat after five slots; hovering still distinguishes neighbours."""
SILENCE = timedelta(seconds=3)
"""A run reports once a second: after a longer silence, the time in between is unknown."""
SAMPLES_MAX = POINTS_MAX // 2
"""Each sample may be followed by a gap, which is a point too."""


MILLISECONDS: Json = {"ticksuffix": " ms", **WHOLE_NUMBERS}


def throughput(samples: list[SamplePoint]) -> Figure | None:
    if len(samples) < LINE_POINTS_MIN:
        return None
    kept = samples[-SAMPLES_MAX:]
    rates = means_of(kept)
    trace = line("records/s", "@series-1", "solid", kept, rates, [rate(r) for r in rates])
    filled = {**trace, "fill": "tozeroy", "fillcolor": "@series-1-soft"}
    return {"data": [filled], "layout": sample_layout("records/s", showlegend=False)}


MEAN_OVER = timedelta(seconds=10)


def means_of(samples: list[SamplePoint]) -> list[float]:
    """Returns the mean rate of the last ten seconds at each sample.

    The rate of one second alone jumps between nothing and a whole batch.
    """
    means, first = [], 0
    for index, sample in enumerate(samples):
        while samples[first].at <= sample.at - MEAN_OVER:
            first += 1
        rates = [each.records_per_s for each in samples[first : index + 1]]
        means.append(sum(rates) / len(rates))
    return means


def memory(samples: list[SamplePoint]) -> Figure | None:
    kept = [sample for sample in samples[-SAMPLES_MAX:] if sample.resident_bytes]
    if len(kept) < LINE_POINTS_MIN:
        return None
    slots = sorted({slot for sample in kept for slot in sample.resident_bytes})
    if len(slots) > SLOTS_DRAWN_MAX:
        traces = [memory_spread_line(index, kept) for index in range(len(SPREAD))]
        return {"data": traces, "layout": sample_layout("MB", showlegend=True)}
    traces = [memory_line(slot, kept) for slot in slots]
    return {"data": traces, "layout": sample_layout("MB", showlegend=len(slots) > 1)}


SLOTS_DRAWN_MAX = 8
"""With more lines than that, the legend takes the place of the drawing."""

SPREAD = (("greatest slot", max), ("median slot", median_low), ("least slot", min))


def memory_spread_line(index: int, samples: list[SamplePoint]) -> Json:
    name, of = SPREAD[index]
    sizes = [of(sample.resident_bytes.values()) for sample in samples]
    megabytes = [round(each / 1e6, 1) for each in sizes]
    written = [size(each) for each in sizes]
    return line(name, SERIES[index], DASHES[index], samples, megabytes, written)


def memory_line(slot: int, samples: list[SamplePoint]) -> Json:
    reporting = [sample for sample in samples if slot in sample.resident_bytes]
    sizes = [sample.resident_bytes[slot] for sample in reporting]
    return line(
        f"slot {slot}",
        SERIES[slot % len(SERIES)],
        DASHES[slot % len(DASHES)],
        reporting,
        [round(byte_count / 1e6, 1) for byte_count in sizes],
        [size(byte_count) for byte_count in sizes],
    )


def line(
    name: str,
    color: str,
    dash: str,
    samples: list[SamplePoint],
    values: list[float],
    hovers: list[str],
) -> Json:
    """Breaks the line wherever the run was silent, because it would claim unmeasured values."""
    points: list[tuple[int | None, float | None, str]] = [
        (moment(s.at), v, h) for s, v, h in zip(samples, values, hovers, strict=True)
    ]
    for index in reversed(range(1, len(samples))):
        before, after = samples[index - 1].at, samples[index].at
        if after - before > SILENCE:
            points.insert(index, (moment(before + SILENCE), None, ""))
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "x": [x for x, _, _ in points],
        "y": [y for _, y, _ in points],
        "customdata": [hover for _, _, hover in points],
        "hovertemplate": f"{name}: %{{customdata}}<br>{in_both_zones('%H:%M:%S')}<extra></extra>",
        "line": {"color": color, "dash": dash, "width": 2},
    }


def sample_layout(title: str, *, showlegend: bool) -> Json:
    return layout(
        200,
        showlegend=showlegend,
        hovermode="closest",
        xaxis=time_axis(),
        yaxis=axis(rangemode="tozero", title={"text": title, "standoff": 4}, nticks=5),
    )
