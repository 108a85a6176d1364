"""The alignment timeline: which subtask waited for which in one checkpoint."""

from collections.abc import Callable

from ftdash.checkpoints.answers import AlignmentTimeline, ChannelTimeline, SubtaskTimeline
from ftdash.formats import duration, plural, size
from ftdash.ui.figures.style import MILLISECONDS, Figure, Json, axis, escaped, layout, pattern_of

ROWS_MAX = 64
"""Beyond it, the chart draws only the slowest subtasks; a heat map and a file have all."""

CHANNELS_OF_EACH_MAX = 8
"""For a subtask with more channels, the chart draws those that show what it waited for."""

ROW_PX = 22


def alignment(timeline: AlignmentTimeline | None) -> Figure | None:
    """Draws a row per subtask with its phases, and below it a row for each input channel."""
    if timeline is None or not timeline.subtasks:
        return None
    subtasks = subtasks_to_draw(timeline.subtasks)
    channels = [(s, c) for s in subtasks for c in channels_to_draw(s)]
    rows = [row for s in subtasks for row in subtask_rows(s)]
    traces = [
        phase_bar(subtasks, "start delay", "@phase-delay", "", lambda s: (0.0, s.start_delay_ms)),
        phase_bar(subtasks, "alignment", "@phase-align", "/", aligning),
        phase_bar(subtasks, "sync", "@phase-sync", "x", cutting),
        phase_bar(subtasks, "async", "@phase-async", ".", uploading),
        travelling_bar(channels),
        held_back_bar(channels),
        acknowledged_marks(subtasks),
    ]
    return {"data": traces, "layout": alignment_layout(rows)}


def subtasks_to_draw(subtasks: list[SubtaskTimeline]) -> list[SubtaskTimeline]:
    """Returns all subtasks, or the slowest that fit, in the given order."""
    rows_left = ROWS_MAX
    drawn: set[tuple[str, int]] = set()
    for subtask in sorted(subtasks, key=lambda s: -s.acknowledged_ms):
        rows_left -= 1 + min(len(subtask.channels), CHANNELS_OF_EACH_MAX)
        if rows_left < 0 and drawn:
            break
        drawn.add((subtask.vertex, subtask.subtask))
    return [s for s in subtasks if (s.vertex, s.subtask) in drawn]


def channels_to_draw(subtask: SubtaskTimeline) -> list[ChannelTimeline]:
    """Returns all channels, or those with the last barriers and the one held back longest."""
    channels = list(subtask.channels)
    if len(channels) <= CHANNELS_OF_EACH_MAX:
        return channels
    by_arrival = sorted(channels, key=lambda each: -each.arrived_ms)
    held_longest = max(channels, key=lambda each: each.blocked_ms)
    last = [each for each in by_arrival if each is not held_longest]
    return [held_longest, *last[: CHANNELS_OF_EACH_MAX - 1]]


def subtask_rows(subtask: SubtaskTimeline) -> list[tuple[str, str]]:
    """Returns category and label of each row; a category is unique, a label need not be."""
    channels = [
        (escaped(c.channel), f"from {escaped(c.upstream)}[{c.upstream_subtask}]")
        for c in channels_to_draw(subtask)
    ]
    return [(row_of(subtask), f"<b>{row_of(subtask)}</b>"), *channels]


def row_of(subtask: SubtaskTimeline) -> str:
    return f"{escaped(subtask.vertex)}[{subtask.subtask}]"


Span = Callable[[SubtaskTimeline], tuple[float, float]]
"""Where a phase begins and how long it lasts, in milliseconds after the trigger."""


def aligning(subtask: SubtaskTimeline) -> tuple[float, float]:
    return subtask.start_delay_ms, subtask.alignment_ms


def cutting(subtask: SubtaskTimeline) -> tuple[float, float]:
    return subtask.start_delay_ms + subtask.alignment_ms, subtask.sync_ms


def uploading(subtask: SubtaskTimeline) -> tuple[float, float]:
    return sum(cutting(subtask)), subtask.async_ms


def phase_bar(
    subtasks: list[SubtaskTimeline], name: str, color: str, pattern: str, span: Span
) -> Json:
    spans = [span(subtask) for subtask in subtasks]
    return bar(
        name,
        color,
        pattern,
        rows=[row_of(subtask) for subtask in subtasks],
        bases=[base for base, _ in spans],
        lengths=[length for _, length in spans],
        hovers=[f"{name} {duration(length)}, from {duration(base)}" for base, length in spans],
    )


def travelling_bar(channels: list[tuple[SubtaskTimeline, ChannelTimeline]]) -> Json:
    return bar(
        "barrier on its way",
        "@phase-travel",
        "",
        rows=[escaped(c.channel) for _, c in channels],
        bases=[0.0 for _ in channels],
        lengths=[c.arrived_ms for _, c in channels],
        hovers=[f"barrier arrived after {duration(c.arrived_ms)}" for _, c in channels],
        width=0.22,
    )


def held_back_bar(channels: list[tuple[SubtaskTimeline, ChannelTimeline]]) -> Json:
    return bar(
        "held back",
        "@phase-held",
        "\\",
        rows=[escaped(c.channel) for _, c in channels],
        bases=[c.arrived_ms for _, c in channels],
        lengths=[c.blocked_ms for _, c in channels],
        hovers=[held_back_hover(c) for _, c in channels],
        width=0.66,
    )


def held_back_hover(channel: ChannelTimeline) -> str:
    return (
        f"barrier arrived after {duration(channel.arrived_ms)}<br>"
        f"then held back for {duration(channel.blocked_ms)}<br>"
        f"{plural(channel.buffered_records, 'record')}, {size(channel.buffered_bytes)} buffered"
    )


def bar(
    name: str,
    color: str,
    pattern: str,
    *,
    rows: list[str],
    bases: list[float],
    lengths: list[float],
    hovers: list[str],
    width: float = 0.8,
) -> Json:
    return {
        "type": "bar",
        "orientation": "h",
        "name": name,
        "y": rows,
        "base": [round(base, 3) for base in bases],
        "x": [round(length, 3) for length in lengths],
        "width": width,
        "customdata": hovers,
        "hovertemplate": "<b>%{y}</b><br>%{customdata}<extra></extra>",
        "marker": {"color": color, "pattern": pattern_of(pattern), "line": {"width": 0}},
    }


def acknowledged_marks(subtasks: list[SubtaskTimeline]) -> Json:
    return {
        "type": "scatter",
        "mode": "markers",
        "name": "acknowledged",
        "y": [row_of(subtask) for subtask in subtasks],
        "x": [round(subtask.acknowledged_ms, 3) for subtask in subtasks],
        "customdata": [duration(subtask.acknowledged_ms) for subtask in subtasks],
        "hovertemplate": "<b>%{y}</b><br>acknowledged after %{customdata}<extra></extra>",
        "marker": {"symbol": "diamond", "size": 9, "color": "@text"},
    }


def alignment_layout(rows: list[tuple[str, str]]) -> Json:
    categories = [category for category, _ in rows]
    return layout(
        86 + ROW_PX * len(rows),
        barmode="overlay",
        hovermode="closest",
        xaxis=axis(
            title={"text": "ms after the trigger", "standoff": 6},
            rangemode="tozero",
            **MILLISECONDS,
        ),
        yaxis=axis(
            type="category",
            categoryorder="array",
            categoryarray=categories,
            autorange="reversed",
            tickmode="array",
            tickvals=categories,
            ticktext=[label for _, label in rows],
            showgrid=False,
        ),
    )
