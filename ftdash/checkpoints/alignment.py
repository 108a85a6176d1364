"""Reads the alignment of a checkpoint: which subtask was slowest, and what it waited for."""

import re
from dataclasses import dataclass
from typing import Any

from ftdash.checkpoints.answers import ChannelTimeline, HeldBackStep, Slowest, SubtaskTimeline

_CHANNEL = re.compile(r"(?P<upstream>.+)\[(?P<source>\d+)\]>.+\.(?P<port>\d+)\[\d+\]")
"""The form that `domain.ids.channel_id` gives to the names of channels."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """A part of the time that one subtask spent on a checkpoint; `phase` as of `Slowest`."""

    subtask: SubtaskTimeline
    phase: str
    ms: float


def channel_timeline(channel: dict[str, Any]) -> ChannelTimeline:
    match = _CHANNEL.fullmatch(channel["channel"])
    return ChannelTimeline(
        upstream=match["upstream"] if match else channel["channel"],
        upstream_subtask=int(match["source"]) if match else 0,
        port=int(match["port"]) if match else 0,
        **{**channel, "steps": tuple(HeldBackStep(*step) for step in channel.get("steps", ()))},
    )


def slowest_of(subtasks: list[SubtaskTimeline]) -> Slowest | None:
    """The longest stretch on the way to the last acknowledgement; None without subtasks."""
    stretches = stretches_to_last(subtasks)
    if not stretches:
        return None
    longest = max(stretches, key=lambda stretch: stretch.ms)
    last_ms = max(subtask.acknowledged_ms for subtask in subtasks)
    return _slowest(longest.subtask, longest.phase, longest.ms, last_ms)


def stretches_to_last(subtasks: list[SubtaskTimeline]) -> list[Stretch]:
    """The stretches that the last acknowledgement waited for, in order.

    1. From the subtask that acknowledged last, go back to the sender of its last barrier, and so on
       to a source. The time on this path is the time of the checkpoint.
    2. For each subtask on it, take the duration of alignment and cut, and the barrier's travel to
       it; for a source its start delay; for the last subtask its upload.
    """
    if not subtasks:
        return []
    by_name = {(subtask.vertex, subtask.subtask): subtask for subtask in subtasks}
    subtask: SubtaskTimeline | None = max(subtasks, key=lambda each: each.acknowledged_ms)
    stretches: list[Stretch] = []
    while subtask is not None:
        upstream = by_name.get(_sender_of_last_barrier(subtask))
        found = _stretches(subtask, upstream)
        stretches += [each for each in found if each.phase != "async" or not stretches]
        subtask = upstream
    return stretches


def stretches_of(subtask: SubtaskTimeline, among: list[SubtaskTimeline]) -> dict[str, float]:
    """Milliseconds of one subtask by phase; `among` are all subtasks of its checkpoint."""
    by_name = {(each.vertex, each.subtask): each for each in among}
    found = _stretches(subtask, by_name.get(_sender_of_last_barrier(subtask)))
    return {stretch.phase: stretch.ms for stretch in found}


def _sender_of_last_barrier(subtask: SubtaskTimeline) -> tuple[str, int]:
    channel = max(subtask.channels, key=lambda each: each.arrived_ms, default=None)
    return (channel.upstream, channel.upstream_subtask) if channel else ("", 0)


def _stretches(subtask: SubtaskTimeline, upstream: SubtaskTimeline | None) -> list[Stretch]:
    own = [
        Stretch(subtask, "async", subtask.async_ms),
        Stretch(subtask, "alignment", subtask.alignment_ms),
        Stretch(subtask, "sync", subtask.sync_ms),
    ]
    if upstream is None:
        return [*own, Stretch(subtask, "start delay", subtask.start_delay_ms)]
    sent_ms = upstream.start_delay_ms + upstream.alignment_ms + upstream.sync_ms
    # The time during which the others already waited for it is alignment, not travel.
    return [*own, Stretch(subtask, "travel", subtask.start_delay_ms - sent_ms)]


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
