"""The closed sets of states that engine and control plane both name."""

from enum import StrEnum


class JobStatus(StrEnum):
    """The job states of Flink that a run of ours can be in."""

    CREATED = "CREATED"
    INITIALIZING = "INITIALIZING"  # slots connect, state is restored
    RUNNING = "RUNNING"
    RESTARTING = "RESTARTING"
    FAILING = "FAILING"
    FAILED = "FAILED"
    CANCELLING = "CANCELLING"
    CANCELED = "CANCELED"
    FINISHED = "FINISHED"

    @property
    def is_terminal(self) -> bool:
        return self in (JobStatus.FAILED, JobStatus.CANCELED, JobStatus.FINISHED)


class CheckpointKind(StrEnum):
    CHECKPOINT = "CHECKPOINT"
    SAVEPOINT = "SAVEPOINT"
    FINAL = "FINAL"  # after the sources ended: commits the tail


class SavepointFormat(StrEnum):
    """Flink's `SavepointFormatType`; a savepoint of either is complete and shares no file."""

    CANONICAL = "CANONICAL"  # Parquet, the same for every backend, readable by anything
    NATIVE = "NATIVE"  # the files of the state backend: faster to write and to restore


class ClaimMode(StrEnum):
    """The owner of the point a run is restored from. Source: Flink, `RecoveryClaimMode`."""

    NO_CLAIM = "NO_CLAIM"  # it stays as it is; the run needs nothing of it after its first point
    CLAIM = "CLAIM"  # the run deletes it once newer points replace it


class RecoveryPhase(StrEnum):
    """Six steps that follow each other, then three milestones.

    A step lasts from the end of the one before it, minus the waits in between; `BACKOFF` is the sum
    of these. A milestone lasts from the end of `RESTORE`.
    """

    DETECT = "detect"  # last sign of life to failure known
    DECIDE = "decide"  # restart strategy and restore point, with verification
    STOP = "stop"  # old attempt fenced and gone
    BACKOFF = "backoff"  # waited on purpose, as the restart strategy says
    START = "start"  # all slots of the new attempt connected
    RESTORE = "restore"  # all subtasks running on restored state
    FIRST_RECORD = "first_record"
    FIRST_CHECKPOINT = "first_checkpoint"
    CAUGHT_UP = "caught_up"  # sources have re-read everything the failure cost


class RequestOutcome(StrEnum):
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    REJECTED = "REJECTED"


class DamageFinder(StrEnum):
    """The occasion on which a file of a recovery point was found damaged."""

    VERIFICATION = "verification"  # the retained points are read again on schedule
    CHECKPOINT = "checkpoint"  # one that refers to the file was about to be published
    RECOVERY = "recovery"  # the driver read a point before an attempt was to start from it
    RESTORE = "restore"  # a slot read it to load its state


class StopStage(StrEnum):
    """The stage of the point that a run ends with."""

    PUBLISHING = "PUBLISHING"  # complete if, and only if, it has a manifest
    PUBLISHED = "PUBLISHED"
    GIVEN_UP = "GIVEN_UP"  # the run continues


class KillMoment(StrEnum):
    """When a slot is killed on purpose: now, or the next time it reaches that `FaultPoint`.

    For the last three, the slot is killed now, and its replacement when that reaches the point.
    """

    NOW = "now"
    ALIGNING = "aligning"
    CUTTING = "cutting"
    UPLOADING = "uploading"
    UPLOADED = "uploaded"
    COMMITTING = "committing"
    COMMITTED = "committed"
    RESTORING = "restoring"
    OPENED = "opened"
    RESTORED = "restored"

    @property
    def is_of_replacement(self) -> bool:
        """True if a slot reaches the point only in a recovery."""
        return self in (KillMoment.RESTORING, KillMoment.OPENED, KillMoment.RESTORED)


class DriverKillMoment(StrEnum):
    """When the driver is killed on purpose: the next time it reaches that `FaultPoint`.

    The last three are within a recovery.
    """

    ACKNOWLEDGED = "acknowledged"
    PUBLISHED = "published"
    RESTARTING = "restarting"
    REWINDING = "rewinding"
    REWOUND = "rewound"
