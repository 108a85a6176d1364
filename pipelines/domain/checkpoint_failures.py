"""Why a checkpoint did not complete, and how long each subtask took for its steps.

The list has all reasons that Flink knows, with text and flag. Some never occur here, because what
they name does not exist. Each of these says why, and stays in the list so that a person finds every
name. `docs/reference/checkpoints.md` says where the others come from.

Source: Flink 2.3, `CheckpointFailureReason`, and `CheckpointFailureManager` for what counts.
"""

from enum import StrEnum

import msgspec

from pipelines.domain.ids import ChannelId, Uid


class CheckpointFailureReason(StrEnum):
    """The value is the sentence that is shown; the name is Flink's."""

    # Never: the schedule has no timer of its own, so nothing fires once it has stopped.
    PERIODIC_SCHEDULER_SHUTDOWN = "Periodic checkpoint scheduler is shut down."
    TOO_MANY_CHECKPOINT_REQUESTS = "The maximum number of queued checkpoint requests exceeded."
    # Never: a checkpoint that is due too early waits and does not fail.
    MINIMUM_TIME_BETWEEN_CHECKPOINTS = "The minimum time between checkpoints is still pending."
    NOT_ALL_REQUIRED_TASKS_RUNNING = "Not all required tasks are currently running."
    IO_EXCEPTION = "An exception occurred while triggering the checkpoint. I/O problem detected."
    # Never: every exchange is pipelined.
    BLOCKING_OUTPUT_EXIST = "Blocking output edge exists in running tasks."
    CHECKPOINT_ASYNC_EXCEPTION = "Asynchronous task checkpoint failed."
    # Never: each subtask writes a file of its own for what was in flight.
    CHANNEL_STATE_SHARED_STREAM_EXCEPTION = (
        "The checkpoint was aborted due to exception of other subtasks sharing the channel state"
        " file."
    )
    CHECKPOINT_EXPIRED = "Checkpoint expired before completing."
    CHECKPOINT_SUBSUMED = "Checkpoint has been subsumed."
    CHECKPOINT_DECLINED = "Checkpoint was declined."
    # Never: slots get checkpoints only after all have reported that their subtasks run.
    CHECKPOINT_DECLINED_TASK_NOT_READY = "Checkpoint was declined (tasks not ready)."
    # Never: subtasks stay until the final checkpoint has completed, and none starts after it.
    CHECKPOINT_DECLINED_TASK_CLOSING = "Checkpoint was declined (task is closing)."
    CHECKPOINT_DECLINED_SUBSUMED = (
        "Checkpoint was canceled because a barrier from newer checkpoint was received."
    )
    CHECKPOINT_DECLINED_ON_CANCELLATION_BARRIER = (
        "Task received cancellation from one of its inputs."
    )
    # Never: channels end only after the final checkpoint.
    CHECKPOINT_DECLINED_INPUT_END_OF_STREAM = (
        "Checkpoint was declined because one input stream is finished."
    )
    CHECKPOINT_COORDINATOR_SHUTDOWN = "Checkpoint coordinator shut down."
    CHECKPOINT_COORDINATOR_SUSPEND = "Checkpoint coordinator is suspending."
    # Never: a run is one region, and its failover suspends the coordinator.
    JOB_FAILOVER_REGION = "Failover region is restarting."
    TASK_FAILURE = "Task has failed."
    # Never: no slot is asked for a checkpoint of a task that it does not host; a failed cut fails
    # its task, as in Flink.
    TASK_CHECKPOINT_FAILURE = "Task local checkpoint failure."
    # Never: the same is true of notifications.
    UNKNOWN_TASK_CHECKPOINT_NOTIFICATION_FAILURE = "Unknown task for the checkpoint to notify."
    FINALIZE_CHECKPOINT_FAILURE = "Failure to finalize checkpoint."
    TRIGGER_CHECKPOINT_FAILURE = "Trigger checkpoint failure."
    # Ours: Flink does not look at a file of an earlier checkpoint before it restores it.
    DAMAGED_FILE = "A file of an earlier checkpoint is damaged."

    @property
    def counts_against_tolerance(self) -> bool:
        return self in _COUNTED

    @property
    def follows_another_decline(self) -> bool:
        """True if a subtask declines because another has, or because the coordinator gave up."""
        return self in _FOLLOWS


_COUNTED = frozenset(
    {
        CheckpointFailureReason.IO_EXCEPTION,
        CheckpointFailureReason.CHECKPOINT_ASYNC_EXCEPTION,
        CheckpointFailureReason.CHECKPOINT_EXPIRED,
        CheckpointFailureReason.CHECKPOINT_DECLINED,
        CheckpointFailureReason.FINALIZE_CHECKPOINT_FAILURE,
    }
)
_FOLLOWS = frozenset(
    {
        CheckpointFailureReason.CHECKPOINT_DECLINED_SUBSUMED,
        CheckpointFailureReason.CHECKPOINT_DECLINED_ON_CANCELLATION_BARRIER,
    }
)


class HeldBack(msgspec.Struct, frozen=True, array_like=True):
    """How much one channel held back at one moment."""

    at_ms: float  # after the trigger
    records: int
    size_bytes: int


class ChannelAlignment(msgspec.Struct, frozen=True, kw_only=True):
    """One input channel while its subtask aligned."""

    channel: ChannelId
    arrived_ms: float  # barrier arrival, after the trigger
    blocked_ms: float  # how long the channel was held back after that
    buffered_records: int  # queued behind the barrier during that time
    buffered_bytes: int
    persisted_records: int = 0  # in flight, overtaken by the barrier, stored in the snapshot
    persisted_bytes: int = 0
    is_over_cap: bool = False  # it held back more than the setting allows
    steps: tuple[HeldBack, ...] = ()  # as its barrier arrived, then after each arrival


class SubtaskPhases(msgspec.Struct, frozen=True, kw_only=True):
    """Start delay, alignment, synchronous cut, asynchronous upload; all after the trigger."""

    vertex: Uid
    subtask: int
    start_delay_ms: float  # trigger to first barrier (for a source: to the injected barrier)
    alignment_ms: float  # first to last barrier
    sync_ms: float  # how long the subtask stood still
    async_ms: float  # upload, while processing continues
    acknowledged_ms: float  # after the trigger, as the coordinator saw it
    state_bytes: int
    uploaded_bytes: int
    is_unaligned: bool = False  # the barrier overtook records: no input was held back
    persisted_bytes: int = 0  # records in flight on its inputs and outputs, in the snapshot
    channels: list[ChannelAlignment]
