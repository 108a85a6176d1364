"""The segments of a journal: files of bounded size that each continue the one before.

A segment is named after the place at which it begins in the whole journal. So a place is one number
for the writer and all readers, no matter how many files there are and which are gone. The writer
appends only to the newest. The first is `journal.jsonl`. Each later one appears whole with its
first line, the summary of all before it (`JournalContinued`), so the earlier ones may be deleted.

The summary keeps the lines of older segments that readers still need, as they were written: the
newest events on each matter, and everything that is under way. A driver that takes over finds in it
what earlier drivers have recorded; the projector and the audit continue from it.
"""

import os
import re
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from pipelines.disk.files import FOR_ALL, create_if_absent, make_durable
from pipelines.domain.checkpoint_failures import CheckpointFailureReason
from pipelines.domain.errors import check
from pipelines.domain.events import (
    CheckpointCommitted,
    CheckpointCompleted,
    CheckpointFailed,
    CheckpointTriggered,
    DamageRemembered,
    EngineEvent,
    Envelope,
    Event,
    JobStatusChanged,
    JournalContinued,
    LedgerAdvanced,
    LedgerBegun,
    OutputPublishedAgain,
    RecordQuarantined,
    RecordsIsolated,
    RecoveryPhaseReached,
    RequestAccepted,
    RequestEnded,
    RestartScheduled,
    RunStarted,
    RunStopping,
    SettingsChanged,
    SlotConnected,
    SlotLost,
    StartUndone,
    SubtaskAcknowledged,
)
from pipelines.domain.status import RecoveryPhase

if TYPE_CHECKING:
    from pipelines.domain.ids import CheckpointId


SEGMENT_BYTES = 16 << 20
"""Two hours of a run that writes 2 kB a second. A new driver reads at most one segment."""

APPENDING = os.O_WRONLY | os.O_APPEND


@dataclass(frozen=True, slots=True, order=True)
class Segment:
    """`base` is where the segment begins in the whole journal, in bytes."""

    base: int
    path: Path


def segments_of(journal: Path) -> list[Segment]:
    """The segments that exist, oldest first; `journal` is the path of the first."""
    try:
        names = os.listdir(journal.parent)
    except FileNotFoundError:
        return []
    pattern = re.compile(re.escape(journal.stem) + r"-(\d{18})" + re.escape(journal.suffix))
    later = [match for match in map(pattern.fullmatch, names) if match is not None]
    found = [Segment(int(match[1]), journal.parent / match[0]) for match in later]
    if journal.name in names:
        found.append(Segment(0, journal))
    return sorted(found)


def newest_segment(journal: Path) -> Segment:
    """Returns the segment to append to; without any, the first one, which does not exist yet."""
    return max(segments_of(journal), default=Segment(0, journal))


def begin_segment(journal: Path, base: int, first_line: bytes) -> tuple[Segment, int]:
    """Creates a segment, whole and durable; returns it and the file to append to.

    If it raises OSError, the segment does not exist.
    """
    segment = Segment(base, journal.with_name(f"{journal.stem}-{base:018d}{journal.suffix}"))
    is_new = create_if_absent(segment.path, first_line, FOR_ALL)
    check(is_new, "a journal has one writer", segment=str(segment.path))
    try:
        make_durable(journal.parent)
        return segment, os.open(segment.path, APPENDING)
    except OSError:
        segment.path.unlink()
        raise


@dataclass(frozen=True, slots=True)
class ClosedSegment:
    """A segment with a successor, which begins at `end`."""

    segment: Segment
    end: int
    closed_s: float  # wall clock: when its last line was written


def closed_segments(journal: Path) -> list[ClosedSegment]:
    """Returns all but the newest, oldest first."""
    found = segments_of(journal)
    return [
        ClosedSegment(segment, following.base, segment.path.stat().st_mtime)
        for segment, following in pairwise(found)
    ]


def expendable(
    closed: Sequence[ClosedSegment], read_up_to: int, closed_before_s: float
) -> list[ClosedSegment]:
    """The segments that may be deleted, oldest first: old enough, and read by every reader.

    Keeps all segments after the first that it keeps, so the rest of a journal has no hole.
    `read_up_to` is the place of the slowest reader.
    """
    going: list[ClosedSegment] = []
    for each in closed:
        if each.end > read_up_to or each.closed_s >= closed_before_s:
            break
        going.append(each)
    return going


def delete_segments(segments: Sequence[Segment]) -> None:
    """Deletes in this order, each durably before the next. You may repeat it."""
    for segment in segments:
        segment.path.unlink(missing_ok=True)
        make_durable(segment.path.parent)


REQUESTS_KEPT = 100
"""A request is marked as answered right after its answer, so keeping the newest would nearly be
enough. At most this many are under way at once."""

REPEATS_KEPT = 20
"""One for each sink. An attempt that begins where the last one began does not report it again."""

UNPUBLISHED_KEPT = 100
"""A checkpoint whose publication failed is deleted soon, unless the storage is down."""

_KEPT: dict[type[Event], int | None] = {  # how many of the newest; None: all
    RunStarted: 1,
    SettingsChanged: 1,
    RunStopping: 1,
    CheckpointTriggered: 1,
    CheckpointCompleted: 1,
    CheckpointFailed: UNPUBLISHED_KEPT,  # those whose manifest may be there all the same
    CheckpointCommitted: 1,
    DamageRemembered: 1,
    LedgerBegun: 1,
    LedgerAdvanced: 2,  # a checkpoint's share begins where the one before it ends
    RequestAccepted: REQUESTS_KEPT,
    RequestEnded: REQUESTS_KEPT,
    RestartScheduled: 1,
    OutputPublishedAgain: REPEATS_KEPT,
    StartUndone: 1,
    RecordQuarantined: None,
    RecordsIsolated: None,
}
SUMMED_UP: frozenset[type[Event]] = frozenset({*_KEPT, JobStatusChanged})
"""The kinds for which readers need only the kept events."""

_UNPUBLISHED = CheckpointFailureReason.FINALIZE_CHECKPOINT_FAILURE
_ONE_EACH = (JobStatusChanged, SlotConnected)
_UNDER_WAY = (CheckpointTriggered, SubtaskAcknowledged, RecoveryPhaseReached)
_ENDS = (SlotLost, CheckpointCompleted, CheckpointFailed)
_RELEVANT: tuple[type[Event], ...] = (*_KEPT, *_ONE_EACH, *_UNDER_WAY, *_ENDS, JournalContinued)
_RELEVANT_NAMES = {kind.__name__ for kind in _RELEVANT}


class _Tag(msgspec.Struct):
    type: str


class _Line(msgspec.Struct):
    sequence: int
    event: _Tag


_line_decoder = msgspec.json.Decoder(_Line)
_decoder = msgspec.json.Decoder(Envelope)

NumberedLine = tuple[int, bytes]  # sequence and line


class JournalSummary:
    """Takes every line of a segment, from its first one. Raises what `UNDECODABLE` names."""

    def __init__(self) -> None:
        self._kept: dict[object, deque[NumberedLine]] = {}  # by matter
        self._checkpoints: dict[CheckpointId, list[NumberedLine]] = {}  # under way
        self._recovery: list[NumberedLine] = []  # under way
        self._phases: set[RecoveryPhase] = set()

    def on_line(self, line: bytes) -> None:
        if _line_decoder.decode(line).event.type not in _RELEVANT_NAMES:
            return  # most lines are samples
        envelope = _decoder.decode(line)
        if isinstance(envelope.event, JournalContinued):
            self._go_on(envelope.event)
            return
        numbered = envelope.sequence, line.rstrip(b"\n")
        self._keep(envelope.event, numbered)
        self._follow(envelope.event, numbered)

    def continued(self) -> JournalContinued:
        """Returns the event in the first line of the next segment."""
        kept = [numbered for lines in self._kept.values() for numbered in lines]
        checkpoints = [numbered for lines in self._checkpoints.values() for numbered in lines]
        return JournalContinued(kept=_raw(kept), under_way=_raw([*checkpoints, *self._recovery]))

    def _go_on(self, before: JournalContinued) -> None:
        for line, envelope in zip(before.kept, envelopes_of(before.kept), strict=True):
            self._keep(envelope.event, (envelope.sequence, bytes(line)))
        for line, envelope in zip(before.under_way, envelopes_of(before.under_way), strict=True):
            self._follow(envelope.event, (envelope.sequence, bytes(line)))

    def _keep(self, event: EngineEvent, numbered: NumberedLine) -> None:
        match event:
            case RunStarted():
                for key in [key for key in self._kept if _is_of_slot(key)]:
                    del self._kept[key]
            case SlotLost(slot=slot):
                self._kept.pop((SlotConnected, slot), None)
            case CheckpointFailed(reason=reason) if reason is not _UNPUBLISHED:
                return
        if isinstance(event, (*_KEPT, *_ONE_EACH)):
            newest = deque[NumberedLine](maxlen=_KEPT.get(type(event), 1))
            self._kept.setdefault(_matter_of(event), newest).append(numbered)

    def _follow(self, event: EngineEvent, numbered: NumberedLine) -> None:
        match event:
            case RunStarted():
                self._checkpoints.clear()  # those of the driver before it will never complete
            case CheckpointTriggered(checkpoint_id=checkpoint_id):
                self._checkpoints[checkpoint_id] = [numbered]
            case SubtaskAcknowledged(checkpoint_id=checkpoint_id):
                self._checkpoints.get(checkpoint_id, []).append(numbered)
            case CheckpointCompleted(checkpoint_id=checkpoint_id):
                self._checkpoints.pop(checkpoint_id, None)
            case CheckpointFailed(checkpoint_id=failed_id) if failed_id is not None:
                self._checkpoints.pop(failed_id, None)
            case RecoveryPhaseReached(phase=phase):
                self._on_phase(phase, numbered)

    def _on_phase(self, phase: RecoveryPhase, numbered: NumberedLine) -> None:
        if phase is RecoveryPhase.DETECT:
            self._recovery, self._phases = [], set()
        self._recovery.append(numbered)
        self._phases.add(phase)
        if self._phases >= set(RecoveryPhase) - {RecoveryPhase.BACKOFF}:  # which comes earlier
            self._recovery, self._phases = [], set()


def envelopes_of(lines: Iterable[msgspec.Raw]) -> list[Envelope]:
    """Decodes the lines of a summary."""
    return [_decoder.decode(line) for line in lines]


def _matter_of(event: EngineEvent) -> object:
    match event:
        case JobStatusChanged(status=status):
            return JobStatusChanged, status
        case SlotConnected(slot=slot):
            return SlotConnected, slot
    return type(event)


def _is_of_slot(matter: object) -> bool:
    return isinstance(matter, tuple) and matter[0] is SlotConnected


def _raw(numbered: Iterable[NumberedLine]) -> list[msgspec.Raw]:
    return [msgspec.Raw(line) for _, line in sorted(numbered)]
