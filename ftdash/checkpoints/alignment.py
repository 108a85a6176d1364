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
    """The subtask that acknowledged last; None when there are none."""
    if not subtasks:
        return None
    last = max(subtasks, key=lambda subtask: subtask.acknowledged_ms)
    phases = {
        "start delay": last.start_delay_ms,
        "alignment": last.alignment_ms,
        "sync": last.sync_ms,
        "async": last.async_ms,
    }
    phase = max(phases, key=lambda name: phases[name])
    held_back = max(last.channels, key=lambda each: each.blocked_ms, default=None)
    waited_for = max(last.channels, key=lambda each: each.arrived_ms, default=None)
    was_held_back = held_back is not None and held_back.blocked_ms > 0
    return Slowest(
        vertex=last.vertex,
        subtask=last.subtask,
        acknowledged_ms=last.acknowledged_ms,
        phase=phase,
        phase_ms=phases[phase],
        phase_ratio=phases[phase] / last.acknowledged_ms if last.acknowledged_ms else 0.0,
        held_back=held_back if was_held_back else None,
        waited_for=waited_for if was_held_back else None,
    )
