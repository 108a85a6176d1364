"""The chart of what the subtasks of one checkpoint held back while they aligned."""

from ftdash.checkpoints.answers import AlignmentTimeline, ChannelTimeline, SubtaskTimeline
from ftdash.formats import duration, plural, size
from ftdash.ui.figures.style import Figure, Json, axis, escaped, layout
from ftdash.ui.metrics.figures import SYMBOLS
from ftdash.ui.pipelines.sample_figures import DASHES, SERIES

CHANNELS_MAX = 10
"""As many as colours and dashes can distinguish; the table below the chart has all of them."""

Held = tuple[SubtaskTimeline, ChannelTimeline]


def held_back(timeline: AlignmentTimeline | None) -> Figure | None:
    """One line per channel, the fullest first: a step at each measured arrival, and no line beyond
    the last barrier, when the channel was read again."""
    fullest = sorted(
        (held for held in held_channels(timeline) if held[1].steps),
        key=lambda held: -held[1].buffered_records,
    )
    if not fullest:
        return None
    traces = [line(index, *held) for index, held in enumerate(fullest[:CHANNELS_MAX])]
    return {"data": traces, "layout": held_back_layout(len(traces))}


def held_channels(timeline: AlignmentTimeline | None) -> list[Held]:
    """The channels that made records wait, in the order of the timeline."""
    subtasks = timeline.subtasks if timeline else []
    return [(s, c) for s in subtasks for c in s.channels if c.blocked_ms > 0 and c.buffered_records]


def line(index: int, subtask: SubtaskTimeline, channel: ChannelTimeline) -> Json:
    end_ms = channel.arrived_ms + channel.blocked_ms
    color = SERIES[index % len(SERIES)]
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": escaped(name_of(subtask, channel)),
        "x": [round(step.at_ms, 3) for step in channel.steps] + [round(end_ms, 3)],
        "y": [step.records for step in channel.steps] + [channel.steps[-1].records],
        "customdata": [
            f"{plural(step.records, 'record')}, {size(step.size_bytes)}, held back"
            f" {duration(step.at_ms)} after the trigger"
            for step in channel.steps
        ]
        + [f"served again {duration(end_ms)} after the trigger"],
        "hovertemplate": "<b>%{fullData.name}</b><br>%{customdata}<extra></extra>",
        "line": {"shape": "hv", "width": 2, "color": color, "dash": DASHES[index % len(DASHES)]},
        "marker": {"size": 5, "color": color, "symbol": SYMBOLS[index // len(DASHES)]},
    }


def name_of(subtask: SubtaskTimeline, channel: ChannelTimeline) -> str:
    sender = f"{channel.upstream}[{channel.upstream_subtask}]"
    return f"{sender} to {subtask.vertex}[{subtask.subtask}]"


def held_back_layout(lines: int) -> Json:
    return layout(
        210 + 22 * lines,
        showlegend=True,
        hovermode="closest",
        xaxis=axis(
            title={"text": "ms after the trigger", "standoff": 6},
            rangemode="tozero",
            ticksuffix=" ms",
        ),
        yaxis=axis(rangemode="tozero", title={"text": "records held back", "standoff": 4}),
    )
