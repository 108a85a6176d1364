"""Reads the alignment of a checkpoint: which subtask was slowest, and what it waited for."""

import re
from typing import Any

from ftdash.checkpoints.answers import ChannelTimeline, Slowest, SubtaskTimeline

_CHANNEL = re.compile(r"(?P<upstream>.+)\[(?P<source>\d+)\]>.+\.(?P<port>\d+)\[\d+\]")
"""The form that `domain.ids.channel_id` gives to the names of channels."""


def channel_timeline(channel: dict[str, Any]) -> ChannelTimeline:
    match = _CHANNEL.fullmatch(channel["channel"])
    return ChannelTimeline(
        upstream=match["upstream"] if match else channel["channel"],
        upstream_subtask=int(match["source"]) if match else 0,
        port=int(match["port"]) if match else 0,
        **channel,
    )


def slowest_of(subtasks: list[SubtaskTimeline]) -> Slowest | None:
    """The longest stretch on the way to the last acknowledgement; None without subtasks.

    1. From the subtask that acknowledged last, go back to whoever sent it its last barrier, and
       so on to a source: what lies on this path is what the checkpoint took, and nothing else is.
    2. Of each subtask on it, take how long it aligned, cut its state, and how long the barrier
       was under way to it; of a source its start delay; of the last one its upload.
    3. The longest of these is named.
    """
    if not subtasks:
        return None
    by_name = {(subtask.vertex, subtask.subtask): subtask for subtask in subtasks}
    last = max(subtasks, key=lambda subtask: subtask.acknowledged_ms)
    stretches = [("async", last.async_ms, last)]
    subtask: SubtaskTimeline | None = last
    while subtask is not None:
        upstream = by_name.get(_sender_of_last_barrier(subtask))
        stretches += [(name, ms, subtask) for name, ms in _stretches(subtask, upstream)]
        subtask = upstream
    phase, phase_ms, slow = max(stretches, key=lambda stretch: stretch[1])
    return _slowest(slow, phase, phase_ms, last.acknowledged_ms)


def _sender_of_last_barrier(subtask: SubtaskTimeline) -> tuple[str, int]:
    channel = max(subtask.channels, key=lambda each: each.arrived_ms, default=None)
    return (channel.upstream, channel.upstream_subtask) if channel else ("", 0)


def _stretches(
    subtask: SubtaskTimeline, upstream: SubtaskTimeline | None
) -> list[tuple[str, float]]:
    own = [("alignment", subtask.alignment_ms), ("sync", subtask.sync_ms)]
    if upstream is None:
        return [*own, ("start delay", subtask.start_delay_ms)]
    sent_ms = upstream.start_delay_ms + upstream.alignment_ms + upstream.sync_ms
    # The time in which the others already waited for it is alignment, not travel.
    return [*own, ("travel", subtask.start_delay_ms - sent_ms)]


def _slowest(subtask: SubtaskTimeline, phase: str, phase_ms: float, total_ms: float) -> Slowest:
    held_back = max(subtask.channels, key=lambda each: each.blocked_ms, default=None)
    waited_for = max(subtask.channels, key=lambda each: each.arrived_ms, default=None)
    was_held_back = held_back is not None and held_back.blocked_ms > 0
    return Slowest(
        vertex=subtask.vertex,
        subtask=subtask.subtask,
        acknowledged_ms=subtask.acknowledged_ms,
        phase=phase,
        phase_ms=phase_ms,
        phase_ratio=phase_ms / total_ms if total_ms else 0.0,
        held_back=held_back if was_held_back else None,
        waited_for=waited_for if was_held_back or phase == "travel" else None,
    )
