"""An exception that left an operator, with the place it happened at and the records in work.

Wrapped once, at the operator that raised; the operators around it in the chain pass it on.
"""

from pipelines.channels.channel import ChannelClosed
from pipelines.domain.errors import OutputLost, Rejected, Retryable
from pipelines.domain.ids import CheckpointId, Uid
from pipelines.domain.origin import RecordOrigin
from pipelines.protocol.repeated_failures import OperatorError

LASTING = (FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError)
"""Errors of the system that a wrong name or right causes, and no wait repairs."""


class OperatorFailed(Exception):
    """`origin` None: no record was in work, or it is not known where it came from.
    `is_of_record`: as in `OperatorError`."""

    def __init__(
        self,
        operator: Uid,
        origin: RecordOrigin | None,
        error: Exception,
        *,
        is_of_record: bool = False,
    ) -> None:
        super().__init__(_sentence(error))
        self.operator = operator
        self.origin = origin
        self.error = error
        self.is_of_record = is_of_record


def _sentence(error: Exception) -> str:
    """What is refused is said as it is; other messages need the name of their error."""
    if isinstance(error, Rejected):
        return str(error)
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def is_located(error: Exception) -> bool:
    """Raised further down the chain, or no failure: the attempt is over."""
    return isinstance(error, OperatorFailed | ChannelClosed)


def located(
    operator: Uid, origin: RecordOrigin | None, error: Exception, *, is_of_record: bool = False
) -> Exception:
    """What to raise instead of `error`: itself when it is located or is no failure."""
    if is_located(error):
        return error
    return OperatorFailed(operator, origin, error, is_of_record=is_of_record)


def described(failure: OperatorFailed) -> OperatorError:
    """What the job master needs to tell a failure that only comes back."""
    kind = type(failure.error)
    return OperatorError(
        operator=failure.operator,
        error_type=f"{kind.__module__}.{kind.__qualname__}",
        message=str(failure.error),
        origin=failure.origin,
        is_of_the_world=is_of_the_world(failure.error),
        is_of_record=failure.is_of_record,
    )


def is_of_the_world(error: BaseException) -> bool:
    """Disk, network, a locked database: may be better in a moment, whatever the records are."""
    return isinstance(error, Retryable | OSError) and not isinstance(error, LASTING)


def is_fatal(error: BaseException) -> bool:
    """Trying again cannot help: bad input or a setting."""
    return isinstance(_cause_of(error), Rejected)


def lost_output_of(error: BaseException) -> CheckpointId | None:
    """Whoever starts where the output was prepared comes to the same end. None: none is lost."""
    cause = _cause_of(error)
    return cause.checkpoint_id if isinstance(cause, OutputLost) else None


def _cause_of(error: BaseException) -> BaseException:
    return error.error if isinstance(error, OperatorFailed) else error
