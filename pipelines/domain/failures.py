"""Why a checkpoint did not complete. Source: Flink, `CheckpointFailureReason` (names and texts)."""

from enum import StrEnum


class CheckpointFailureReason(StrEnum):
    """The value is the sentence that is shown; the name is Flink's."""

    NOT_ALL_REQUIRED_TASKS_RUNNING = "Not all required tasks are currently running."
    TOO_MANY_CHECKPOINT_REQUESTS = "The maximum number of queued checkpoint requests exceeded."
    IO_EXCEPTION = "An exception occurred while triggering the checkpoint. I/O problem detected."
    CHECKPOINT_ASYNC_EXCEPTION = "Asynchronous task checkpoint failed."
    CHECKPOINT_EXPIRED = "Checkpoint expired before completing."
    CHECKPOINT_SUBSUMED = "Checkpoint has been subsumed."
    CHECKPOINT_DECLINED = "Checkpoint was declined."
    CHECKPOINT_COORDINATOR_SHUTDOWN = "Checkpoint coordinator shut down."
    CHECKPOINT_COORDINATOR_SUSPEND = "Checkpoint coordinator is suspending."
    TASK_FAILURE = "Task has failed."
    FINALIZE_CHECKPOINT_FAILURE = "Failure to finalize checkpoint."

    @property
    def counts_against_tolerance(self) -> bool:
        return self in (
            CheckpointFailureReason.IO_EXCEPTION,
            CheckpointFailureReason.CHECKPOINT_ASYNC_EXCEPTION,
            CheckpointFailureReason.CHECKPOINT_EXPIRED,
            CheckpointFailureReason.CHECKPOINT_DECLINED,
            CheckpointFailureReason.FINALIZE_CHECKPOINT_FAILURE,
        )
