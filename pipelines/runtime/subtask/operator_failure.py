"""An exception that left an operator, with its place and the records in work.

The operator that raised wraps it, once; the operators around it in the chain pass it on.
"""

import pyarrow as pa

from pipelines.channels.channel import ChannelClosed
from pipelines.domain.elements import Firing, Origins, RecordOrigin
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
from pipelines.domain.texts import masked
from pipelines.protocol.repeated_failures import OperatorError

LASTING = (FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError)
"""Errors of the system that a wrong name or a missing permission causes, and no wait repairs."""


class OperatorFailed(Exception):
    """`origins` empty: no record was in work, or its origin is not known.
    `is_of_record` and `firing`: as in `OperatorError`."""

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
        self.record = record  # one row, as the operator was given it; None: not known

    @property
    def origin(self) -> RecordOrigin | None:
        """None also where batches of several origins were joined: it may be any of them."""
        return self.origins[0] if len(self.origins) == 1 else None


def _sentence(error: Exception) -> str:
    """A refusal is worded as it is; other messages need the name of their error."""
    if isinstance(error, Rejected):
        return str(error)
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def is_located(error: Exception) -> bool:
    """True if it was raised further down the chain, or is no failure: the attempt is over."""
    return isinstance(error, OperatorFailed | ChannelClosed)


def located(
    operator: Uid,
    origins: Origins,
    error: Exception,
    *,
    is_of_record: bool = False,
    record: pa.RecordBatch | None = None,
) -> Exception:
    """What to raise instead of `error`: `error` itself if it is located or is no failure."""
    if is_located(error):
        return error
    return OperatorFailed(operator, origins, error, is_of_record=is_of_record, record=record)


def located_firing(operator: Uid, origins: Origins, error: Exception, firing: Firing) -> Exception:
    """Like `located`, if a time was due. `origins` are those of the newest batch, whose records
    have moved event time on: they give the time, unless one timer is known."""
    if is_located(error):
        return error
    when = () if firing.is_one_timer else tuple(origin.as_moment() for origin in origins)
    return OperatorFailed(operator, when, error, firing=firing)


def described(failure: OperatorFailed) -> OperatorError:
    """What the job master needs to decide whether a failure is deterministic."""
    kind = type(failure.error)
    return OperatorError(
        operator=failure.operator,
        error_type=f"{kind.__module__}.{kind.__qualname__}",
        message=masked(str(failure.error)),
        origin=failure.origin,
        is_of_the_world=is_of_the_world(failure.error),
        is_of_record=failure.is_of_record,
        is_refused=is_fatal(failure),
        firing=failure.firing,
        candidates=failure.origins if failure.origin is None else (),
    )


def is_of_the_world(error: BaseException) -> bool:
    """Disk, network, a locked database: may work in a moment, whatever the records are."""
    return isinstance(error, Retryable | OSError) and not isinstance(error, LASTING)


def is_fatal(error: BaseException) -> bool:
    """True if trying again cannot help: bad input or a setting."""
    return isinstance(_cause_of(error), Rejected)


def failure_kind(error: BaseException) -> FailureKind:
    return kind_of(_cause_of(error), is_of_function=isinstance(error, OperatorFailed))


def lost_output_of(error: BaseException) -> CheckpointId | None:
    """A run that starts where the output was prepared ends in the same way. None: none is lost."""
    cause = _cause_of(error)
    return cause.checkpoint_id if isinstance(cause, OutputLost) else None


def damaged_file_of(error: BaseException) -> str | None:
    """The file of the recovery point that could not be read. None: it is another failure."""
    cause = _cause_of(error)
    return cause.name if isinstance(cause, DamagedFile) else None


def is_damage(error: BaseException) -> bool:
    """True if what is stored makes no sense, whether that is one file's fault or not."""
    return isinstance(_cause_of(error), CorruptSnapshot)


def _cause_of(error: BaseException) -> BaseException:
    return error.error if isinstance(error, OperatorFailed) else error
