"""The events that the engine reports: one frozen type each, JSON on the wire.

The journal holds `Envelope`s, one JSON object per line; the projector folds them into rows. A
reader that meets an event it does not know must stop, not skip. All times are wall-clock
milliseconds since the epoch (UTC); all durations are milliseconds and were measured on a monotonic
clock.
"""

from typing import Annotated

import msgspec

from pipelines.domain.events.checkpoints import (
    CheckpointCommitted,
    CheckpointCompleted,
    CheckpointDiscarded,
    CheckpointFailed,
    CheckpointTriggered,
    ClaimedPointDiscarded,
    DamageRemembered,
    HotKeys,
    LedgerAdvanced,
    LedgerBegun,
    MetricKind,
    MetricSample,
    MetricSpread,
    MetricsSampled,
    PointsVerified,
    RestorePointRefused,
    RestoreProgress,
    SlotSample,
    SubtaskAcknowledged,
    SubtaskSample,
)
from pipelines.domain.events.runs import (
    DriverReplaced,
    Event,
    FailureOccurred,
    JobStatusChanged,
    JournalContinued,
    LeftoversDiscarded,
    LeftoversKept,
    OutputPublishedAgain,
    OutputSuperseded,
    RecordQuarantined,
    RecordsIsolated,
    RecoveryPhaseReached,
    RequestAccepted,
    RequestEnded,
    RestartScheduled,
    RunEnded,
    RunStarted,
    RunStopping,
    SettingsChanged,
    SlotConnected,
    SlotLost,
    StartUndone,
    TargetTakenOver,
    VertexShape,
    ZombieRefused,
)
from pipelines.domain.ids import Attempt, RunId

__all__ = [
    "CheckpointCommitted",
    "CheckpointCompleted",
    "CheckpointDiscarded",
    "CheckpointFailed",
    "CheckpointTriggered",
    "ClaimedPointDiscarded",
    "DamageRemembered",
    "DriverReplaced",
    "EngineEvent",
    "Envelope",
    "Event",
    "FailureOccurred",
    "HotKeys",
    "JobStatusChanged",
    "JournalContinued",
    "LedgerAdvanced",
    "LedgerBegun",
    "LeftoversDiscarded",
    "LeftoversKept",
    "MetricKind",
    "MetricSample",
    "MetricSpread",
    "MetricsSampled",
    "OutputPublishedAgain",
    "OutputSuperseded",
    "PointsVerified",
    "RecordQuarantined",
    "RecordsIsolated",
    "RecoveryPhaseReached",
    "RequestAccepted",
    "RequestEnded",
    "RestartScheduled",
    "RestorePointRefused",
    "RestoreProgress",
    "RunEnded",
    "RunStarted",
    "RunStopping",
    "SettingsChanged",
    "SlotConnected",
    "SlotLost",
    "SlotSample",
    "StartUndone",
    "SubtaskAcknowledged",
    "SubtaskSample",
    "TargetTakenOver",
    "VertexShape",
    "ZombieRefused",
]

EngineEvent = (
    RunStarted
    | JobStatusChanged
    | SlotConnected
    | SlotLost
    | CheckpointTriggered
    | SubtaskAcknowledged
    | CheckpointCompleted
    | CheckpointFailed
    | CheckpointCommitted
    | CheckpointDiscarded
    | ClaimedPointDiscarded
    | DamageRemembered
    | FailureOccurred
    | RecordsIsolated
    | RecordQuarantined
    | RecoveryPhaseReached
    | RestartScheduled
    | RestorePointRefused
    | PointsVerified
    | ZombieRefused
    | OutputPublishedAgain
    | OutputSuperseded
    | StartUndone
    | LeftoversDiscarded
    | LeftoversKept
    | TargetTakenOver
    | DriverReplaced
    | LedgerBegun
    | LedgerAdvanced
    | RequestAccepted
    | RequestEnded
    | MetricsSampled
    | SettingsChanged
    | RunStopping
    | RunEnded
    | JournalContinued
)


class Envelope(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a journal. `sequence` starts at 1 and has no gaps within a run."""

    sequence: Annotated[int, msgspec.Meta(ge=0)]
    at_ms: int
    run_id: RunId
    attempt: Attempt
    event: EngineEvent
