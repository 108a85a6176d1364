"""The results of the queries of checkpoints and savepoints: frozen values, with distributions.

They include the alignment of a checkpoint: which subtask was slowest, and what it waited for.

A distribution is the minimum, maximum, mean and quantiles of measured values. Source: Flink,
`StatsSummarySnapshot`. Its quantiles are those of Commons Math (`LEGACY`): the value at position p
(n + 1) of the sorted ones, interpolated between its neighbours, within the ends.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from math import floor
from typing import Any, overload

import msgspec

from ftdash.checkpoints.models import CheckpointStatus
from pipelines.domain.status import SavepointFormat


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRow:
    """One line of the checkpoint history. None means "not known (yet)"."""

    run_id: str
    checkpoint_id: int | None  # None: refused before it got an id
    attempt: int
    kind: str  # CHECKPOINT, SAVEPOINT, FINAL
    status: CheckpointStatus
    trigger_at: datetime
    completed_at: datetime | None
    failed_at: datetime | None
    committed_at: datetime | None
    end_to_end_ms: float | None
    state_bytes: int | None
    uploaded_bytes: int | None
    buffered_records: int | None
    buffered_bytes: int | None
    persisted_bytes: int | None  # records in flight that it contains
    alignment_ms: float | None  # of the acknowledged subtask that aligned longest
    source_records: int | None
    acknowledged_count: int
    subtask_count: int
    reason_name: str  # Flink's name, empty unless failed
    reason_text: str  # Flink's sentence
    message: str  # what more is known of this case
    path: str | None
    watermark_at: datetime | None
    counters: dict[str, int]
    request_id: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSummary:
    """Counts cover all checkpoints of the run; durations cover its newest 500 completed ones."""

    triggered_count: int
    completed_count: int
    failed_count: int
    in_progress_count: int
    end_to_end_p50_ms: float | None
    end_to_end_p99_ms: float | None
    state_bytes_latest: int | None


@dataclass(frozen=True, slots=True)
class CheckpointHistory:
    """One page of the history, newest first."""

    run_id: str
    rows: list[CheckpointRow]
    page: int
    page_count: int
    total_count: int
    summary: CheckpointSummary


@dataclass(frozen=True, slots=True)
class HeldBackStep:
    """How much a channel held back at one moment, `at_ms` after the trigger."""

    at_ms: float
    records: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelTimeline:
    """One input channel while its subtask aligned; times in ms after the trigger."""

    channel: str
    upstream: str
    upstream_subtask: int
    port: int
    arrived_ms: float
    blocked_ms: float
    buffered_records: int
    buffered_bytes: int
    persisted_records: int = 0  # overtaken by the barrier, stored in the checkpoint
    persisted_bytes: int = 0
    is_over_cap: bool = False
    steps: tuple[HeldBackStep, ...] = ()  # empty: only the total was measured


class Buffered(msgspec.Struct, frozen=True):
    """The fields of a stored channel that sums over all channels need."""

    blocked_ms: float
    buffered_records: int
    buffered_bytes: int


class StoredChannels(Sequence[ChannelTimeline]):
    """The channels of one subtask as JSON, decoded when a page looks at one of them.

    A checkpoint of 256 subtasks behind three shuffles has 12,288 channels. A page shows a few dozen
    of them, and the sums of all.
    """

    def __init__(self, text: str) -> None:
        self._text = text

    @cached_property
    def buffered(self) -> list[Buffered]:
        return msgspec.json.decode(self._text, type=list[Buffered])

    @cached_property
    def _all(self) -> list[ChannelTimeline]:
        return [channel_timeline(each) for each in msgspec.json.decode(self._text)]

    def __len__(self) -> int:
        return len(self.buffered)

    @overload
    def __getitem__(self, at: int) -> ChannelTimeline: ...
    @overload
    def __getitem__(self, at: slice) -> list[ChannelTimeline]: ...
    def __getitem__(self, at: int | slice) -> ChannelTimeline | list[ChannelTimeline]:
        return self._all[at]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and self._all == list(other)

    __hash__ = None  # type: ignore[assignment]


@dataclass(frozen=True, slots=True, kw_only=True)
class SubtaskTimeline:
    vertex: str
    subtask: int
    start_delay_ms: float
    alignment_ms: float
    sync_ms: float
    async_ms: float
    acknowledged_ms: float
    state_bytes: int
    uploaded_bytes: int
    channels: Sequence[ChannelTimeline]
    persisted_bytes: int = 0  # records in flight on its channels, stored in the checkpoint
    is_unaligned: bool = False

    @property
    def buffered_bytes(self) -> int:
        return sum(channel.buffered_bytes for channel in self.held_back)

    @property
    def buffered_records(self) -> int:
        return sum(channel.buffered_records for channel in self.held_back)

    @property
    def fullest(self) -> int:
        """The number of records in the channel that held back most."""
        return max((channel.buffered_records for channel in self.held_back), default=0)

    @property
    def held_back(self) -> "Sequence[ChannelTimeline | Buffered]":
        """The amounts that each channel held back, without decoding the rest of a channel."""
        found = self.channels
        return found.buffered if isinstance(found, StoredChannels) else found


@dataclass(frozen=True, slots=True, kw_only=True)
class Slowest:
    """The longest stretch on the way to the last acknowledgement, and its subtask.

    `phase` is "start delay", "travel" (of the barrier to this subtask), "alignment", "sync" or
    "async". If channels were held back, `held_back` is the one held longest and `waited_for` the
    one whose barrier came last.
    """

    vertex: str
    subtask: int
    acknowledged_ms: float
    phase: str
    phase_ms: float
    phase_ratio: float  # of the last acknowledgement, 0 to 1
    held_back: ChannelTimeline | None
    waited_for: ChannelTimeline | None
    queued_ms: float = 0.0
    """How long the awaited barrier waited in this subtask's queue before the subtask read it."""

    @property
    def stood_in_own_queue(self) -> bool:
        """True if the barrier waited there most of the time: the subtask was slow to reach it."""
        return self.queued_ms >= self.phase_ms / 2


@dataclass(frozen=True, slots=True)
class AlignmentTimeline:
    """`subtasks` is in topological order of the vertices, or empty if phases are no longer kept."""

    checkpoint: CheckpointRow
    subtasks: list[SubtaskTimeline]
    slowest: Slowest | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryPoint:
    """A retained checkpoint or savepoint from which a run can be restored."""

    path: str
    pipeline: str
    run_id: str
    run_number: int
    checkpoint_id: int
    kind: str
    completed_at: datetime
    state_bytes: int
    source_records: int
    parallelism: int
    watermark_at: datetime | None
    label: str  # a person's name for it; empty: none
    requester: str | None  # the person who asked for the savepoint
    reason: str
    is_newest: bool
    is_present: bool  # its manifest is readable; the restore verifies everything
    verified_at: datetime | None  # when all its files were read again, and were as written
    problem: str  # why it was refused at the last check; empty if it was not


@dataclass(frozen=True, slots=True)
class RestoredRun:
    run_id: str
    pipeline: str
    number: int
    created_at: datetime
    is_claimed: bool  # the run owns the savepoint, and deletes it when newer points replace it


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """How far a worker has read all bytes of a point again, and the result."""

    files_read: int
    files: int | None  # None: not known yet
    bytes_read: int
    bytes: int
    moved_at: datetime
    ended_at: datetime | None
    problem: str  # empty: none so far
    waiting_for: str = ""  # why it cannot continue now; it is tried again while a person watches


@dataclass(frozen=True, slots=True, kw_only=True)
class Savepoint:
    key: str  # used in addresses
    pipeline: str
    run_id: str
    run_number: int
    checkpoint_id: int
    label: str  # empty: none
    labelled_by: str
    labelled_at: datetime | None
    savepoint_format: SavepointFormat
    path: str
    completed_at: datetime
    committed_at: datetime | None
    state_bytes: int
    source_records: int
    parallelism: int
    max_parallelism: int
    watermark_at: datetime | None
    request_label: str  # "stop with savepoint"; empty: no person asked for it
    requester: str
    reason: str
    is_disposed: bool
    is_present: bool  # its manifest is there to be read
    verified_at: datetime | None  # when all its files were last read again, and were as written
    problem: str  # why it was refused at the last check
    reading: Reading | None
    restored_by: list[RestoredRun]  # oldest first

    @property
    def directory(self) -> str:
        return self.path.rstrip("/").rpartition("/")[2]

    @property
    def is_claimed(self) -> bool:
        return any(run.is_claimed for run in self.restored_by)

    @property
    def is_being_read(self) -> bool:
        reading = self.reading
        return self.is_present and reading is not None and reading.ended_at is None


@dataclass(frozen=True, slots=True)
class SavepointPage:
    rows: list[Savepoint]  # newest first
    page: int
    page_count: int
    total_count: int
    kept_bytes: int  # of all savepoints that were not disposed of


@dataclass(frozen=True, slots=True)
class OtherPoints:
    """The other points from which a pipeline could be restored if it did not have the savepoint."""

    count: int
    newest_older_id: int | None  # the nearest one that completed before it
    newest_older_kind: str
    records_between: int | None  # read after that one and before the savepoint


QUANTILES = (0.5, 0.9, 0.95, 0.99, 0.999)


@dataclass(frozen=True, slots=True)
class Distribution:
    """If nothing was measured, the figures are 0 and there are no quantiles."""

    minimum: float
    maximum: float
    average: float
    quantiles: tuple[float, ...]  # as in QUANTILES; empty: not known


def distribution(values: Iterable[float]) -> Distribution:
    ordered = sorted(values)
    if not ordered:
        return Distribution(0, 0, 0, ())
    quantiles = tuple(quantile(ordered, share) for share in QUANTILES)
    return Distribution(ordered[0], ordered[-1], sum(ordered) / len(ordered), quantiles)


def quantile(ordered: Sequence[float], share: float) -> float:
    """Needs at least one sorted value; `share` is from 0 to 1."""
    position = share * (len(ordered) + 1)
    if position < 1:
        return ordered[0]
    if position >= len(ordered):
        return ordered[-1]
    below = floor(position)
    lower, upper = ordered[below - 1], ordered[below]
    return lower + (position - below) * (upper - lower)


_CHANNEL = re.compile(r"(?P<upstream>.+)\[(?P<source>\d+)\]>.+\.(?P<port>\d+)\[\d+\]")
"""Matches the channel names that `domain.ids.channel_id` makes."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """A part of the time that one subtask spent on a checkpoint; `phase` is as in `Slowest`."""

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
    """Returns the longest stretch on the way to the last acknowledgement; None without subtasks."""
    stretches = stretches_to_last(subtasks)
    if not stretches:
        return None
    longest = max(stretches, key=lambda stretch: stretch.ms)
    last_ms = max(subtask.acknowledged_ms for subtask in subtasks)
    by_name = {(each.vertex, each.subtask): each for each in subtasks}
    sender = by_name.get(_sender_of_last_barrier(longest.subtask))
    return _slowest(longest, sender, last_ms)


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
    sent_ms = _sent_ms(upstream)
    # The time during which the others already waited for it is alignment, not travel.
    return [*own, Stretch(subtask, "travel", subtask.start_delay_ms - sent_ms)]


def _sent_ms(upstream: SubtaskTimeline) -> float:
    """Returns when its barriers left it, in ms after the trigger."""
    return upstream.start_delay_ms + upstream.alignment_ms + upstream.sync_ms


def _slowest(longest: Stretch, sender: SubtaskTimeline | None, total_ms: float) -> Slowest:
    subtask, phase, phase_ms = longest.subtask, longest.phase, longest.ms
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
        queued_ms=_queued_ms(subtask, waited_for, sender),
    )


def _queued_ms(
    subtask: SubtaskTimeline, awaited: ChannelTimeline | None, sender: SubtaskTimeline | None
) -> float:
    """Returns how long the barrier waited in the reader's queue after it had left its sender.

    It waits there behind records that the reader has not processed. Channels are in memory and take
    no time themselves.
    """
    if awaited is None or sender is None:
        return 0.0
    return max(0.0, awaited.arrived_ms - max(_sent_ms(sender), subtask.start_delay_ms))
