"""An exception that left an operator, with its place and the records in work.

It is wrapped once, with the operator that raised it; the other operators of the chain pass it on.
"""

import pyarrow as pa

from pipelines.channels.channel import ChannelClosed
from pipelines.domain.errors import (
    CorruptSnapshot,
    DamagedFile,
    FailureKind,
    OutputLost,
    Rejected,
    Retryable,
    kind_of,
)
from pipelines.domain.ids import CheckpointId, Uid
from pipelines.domain.origins import Firing, Origins, RecordOrigin
from pipelines.domain.texts import masked, message_of
from pipelines.protocol.repeated_failures import OperatorError

LASTING = (FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError)
"""System errors with a wrong name or a missing permission as their cause; waiting cannot help."""


class OperatorFailed(Exception):
    """An operator failed. `origins` is empty if no record was in work or its origin is not known.

    `is_of_record` and `firing` are as in `OperatorError`.
    """

    def __init__(
        self,
        operator: Uid,
        origins: Origins,
        error: Exception,
        *,
        is_of_record: bool = False,
        firing: Firing | None = None,
        record: pa.RecordBatch | None = None,
    ) -> None:
        super().__init__(_sentence(error))
        self.operator = operator
        self.origins = origins
        self.error = error
        self.is_of_record = is_of_record
        self.firing = firing
        self.record = record  # one row, as the operator got it; None if not known

    @property
    def origin(self) -> RecordOrigin | None:
        """None also if batches of several origins were joined, because it may be any of them."""
        return self.origins[0] if len(self.origins) == 1 else None


def _sentence(error: Exception) -> str:
    """Returns the sentence of a refusal or an outage as it is, and other messages with the name of
    their error."""
    if isinstance(error, Rejected | Retryable):
        return str(error)
    message = message_of(error)
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def is_located(error: Exception) -> bool:
    """Returns True if a node further down the chain has wrapped it, or if it only says that the
    attempt is over."""
    return isinstance(error, OperatorFailed | ChannelClosed)


def located(
    operator: Uid,
    origins: Origins,
    error: Exception,
    *,
    is_of_record: bool = False,
    record: pa.RecordBatch | None = None,
) -> Exception:
    """Returns the exception to raise: `error` itself if it `is_located`, else `error` wrapped."""
    if is_located(error):
        return error
    return OperatorFailed(operator, origins, error, is_of_record=is_of_record, record=record)


def located_firing(operator: Uid, origins: Origins, error: Exception, firing: Firing) -> Exception:
    """Like `located`, for a failure when a time was due. `origins` are those of the newest batch,
    whose records have advanced event time: they give the time, unless one timer is known."""
    if is_located(error):
        return error
    when = () if firing.is_one_timer else tuple(origin.as_moment() for origin in origins)
    return OperatorFailed(operator, when, error, firing=firing)


def described(failure: OperatorFailed) -> OperatorError:
    """Describes the failure so that the job master can decide whether it is deterministic."""
    kind = type(failure.error)
    return OperatorError(
        operator=failure.operator,
        error_type=f"{kind.__module__}.{kind.__qualname__}",
        message=masked(message_of(failure.error)),
        origin=failure.origin,
        is_of_the_world=is_of_the_world(failure.error),
        is_of_record=failure.is_of_record,
        is_refused=is_fatal(failure),
        firing=failure.firing,
        candidates=failure.origins if failure.origin is None else (),
    )


def is_of_the_world(error: BaseException) -> bool:
    """Returns True for an outage (disk, network, a locked database): a retry may succeed with the
    same records."""
    return isinstance(error, Retryable | OSError) and not isinstance(error, LASTING)


def is_fatal(error: BaseException) -> bool:
    """Returns True if trying again cannot help, because the cause is bad input or a setting."""
    return isinstance(_cause_of(error), Rejected)


def failure_kind(error: BaseException) -> FailureKind:
    return kind_of(_cause_of(error), is_of_function=isinstance(error, OperatorFailed))


def lost_output_of(error: BaseException) -> CheckpointId | None:
    """Returns the checkpoint whose prepared output is lost, or None. A run that starts from that
    checkpoint fails in the same way."""
    cause = _cause_of(error)
    return cause.checkpoint_id if isinstance(cause, OutputLost) else None


def damaged_file_of(error: BaseException) -> str | None:
    """Returns the file of the recovery point that could not be read, or None for other failures."""
    cause = _cause_of(error)
    return cause.name if isinstance(cause, DamagedFile) else None


def is_damage(error: BaseException) -> bool:
    """Returns True if the stored point is damaged, whether or not one file is at fault."""
    return isinstance(_cause_of(error), CorruptSnapshot)


def _cause_of(error: BaseException) -> BaseException:
    return error.error if isinstance(error, OperatorFailed) else error
