"""Decides what a journal still needs of its older segments: the newest event of each matter, and
all that is under way.

Pure: lines in, lines out, each as it was written. A driver that takes over finds in the summary
what earlier drivers have recorded; the projector and the audit go on from it.
"""

from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

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
    RunStarted,
    RunStopping,
    SettingsChanged,
    SlotConnected,
    SlotLost,
    SubtaskAcknowledged,
)
from pipelines.domain.status import RecoveryPhase

if TYPE_CHECKING:
    from pipelines.domain.ids import CheckpointId

REQUESTS_KEPT = 100
"""A request is marked as answered right after its answer, so the newest one would nearly do. At
most this many are under way at once."""

REPEATS_KEPT = 20
"""An attempt that begins where the last one began reports none again; one for each sink."""

_KEPT: dict[type[Event], int | None] = {  # how many of the newest; None: all
    RunStarted: 1,
    SettingsChanged: 1,
    RunStopping: 1,
    CheckpointTriggered: 1,
    CheckpointCompleted: 1,
    CheckpointCommitted: 1,
    DamageRemembered: 1,
    LedgerBegun: 1,
    LedgerAdvanced: 2,  # a checkpoint's share begins where the one before it ends
    RequestAccepted: REQUESTS_KEPT,
    RequestEnded: REQUESTS_KEPT,
    OutputPublishedAgain: REPEATS_KEPT,
    RecordQuarantined: None,
    RecordsIsolated: None,
}
SUMMED_UP: frozenset[type[Event]] = frozenset({*_KEPT, JobStatusChanged})
"""Kinds of which the kept events are all that readers need."""

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

Told = tuple[int, bytes]  # sequence and line


class JournalSummary:
    """Takes every line of a segment, from its first one. Raises what `UNDECODABLE` names."""

    def __init__(self) -> None:
        self._kept: dict[object, deque[Told]] = {}  # by matter
        self._checkpoints: dict[CheckpointId, list[Told]] = {}  # under way
        self._recovery: list[Told] = []  # under way
        self._phases: set[RecoveryPhase] = set()

    def on_line(self, line: bytes) -> None:
        if _line_decoder.decode(line).event.type not in _RELEVANT_NAMES:
            return  # most lines are samples
        envelope = _decoder.decode(line)
        if isinstance(envelope.event, JournalContinued):
            self._go_on(envelope.event)
            return
        told = envelope.sequence, line.rstrip(b"\n")
        self._keep(envelope.event, told)
        self._follow(envelope.event, told)

    def continued(self) -> JournalContinued:
        """The first line of the next segment."""
        kept = [told for lines in self._kept.values() for told in lines]
        checkpoints = [told for lines in self._checkpoints.values() for told in lines]
        return JournalContinued(kept=_raw(kept), under_way=_raw([*checkpoints, *self._recovery]))

    def _go_on(self, before: JournalContinued) -> None:
        for line, envelope in zip(before.kept, envelopes_of(before.kept), strict=True):
            self._keep(envelope.event, (envelope.sequence, bytes(line)))
        for line, envelope in zip(before.under_way, envelopes_of(before.under_way), strict=True):
            self._follow(envelope.event, (envelope.sequence, bytes(line)))

    def _keep(self, event: EngineEvent, told: Told) -> None:
        match event:
            case RunStarted():
                for key in [key for key in self._kept if _is_of_slot(key)]:
                    del self._kept[key]
            case SlotLost(slot=slot):
                self._kept.pop((SlotConnected, slot), None)
        if isinstance(event, (*_KEPT, *_ONE_EACH)):
            newest = deque[Told](maxlen=_KEPT.get(type(event), 1))
            self._kept.setdefault(_matter_of(event), newest).append(told)

    def _follow(self, event: EngineEvent, told: Told) -> None:
        match event:
            case RunStarted():
                self._checkpoints.clear()  # those of the driver before it will never complete
            case CheckpointTriggered(checkpoint_id=checkpoint_id):
                self._checkpoints[checkpoint_id] = [told]
            case SubtaskAcknowledged(checkpoint_id=checkpoint_id):
                self._checkpoints.get(checkpoint_id, []).append(told)
            case CheckpointCompleted(checkpoint_id=checkpoint_id):
                self._checkpoints.pop(checkpoint_id, None)
            case CheckpointFailed(checkpoint_id=failed_id) if failed_id is not None:
                self._checkpoints.pop(failed_id, None)
            case RecoveryPhaseReached(phase=phase):
                self._on_phase(phase, told)

    def _on_phase(self, phase: RecoveryPhase, told: Told) -> None:
        if phase is RecoveryPhase.DETECT:
            self._recovery, self._phases = [], set()
        self._recovery.append(told)
        self._phases.add(phase)
        if self._phases >= set(RecoveryPhase):
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


def _raw(told: Iterable[Told]) -> list[msgspec.Raw]:
    return [msgspec.Raw(line) for _, line in sorted(told)]
