"""The kind of a failure: what an error and its causes mean for the operator who must act."""

import errno

import pytest

from pipelines.connectors.contract import MalformedRecord
from pipelines.domain.errors import (
    BrokenCode,
    CorruptSnapshot,
    FailureKind,
    InputLost,
    InvariantViolated,
    OutputLost,
    Rejected,
    Retryable,
    StateUnmatched,
    TargetTaken,
    kind_of,
    kind_of_text,
)
from pipelines.domain.ids import CheckpointId, Uid
from pipelines.domain.origins import Origins
from pipelines.runtime.subtask.operator_failure import OperatorFailed, failure_kind

NOWHERE: Origins = ()


def caused(error: Exception, cause: BaseException) -> Exception:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (InvariantViolated("a rule"), FailureKind.ENGINE),
        (Retryable("PostgreSQL at db:5432 does not answer."), FailureKind.SYSTEM_AWAY),
        (Rejected("not a number"), FailureKind.REFUSED),
        (MalformedRecord("line 2", row=1, offset=9, text=b"?"), FailureKind.MALFORMED_RECORD),
        (CorruptSnapshot("short"), FailureKind.POINT_DAMAGED),
        (OutputLost("gone", CheckpointId(3)), FailureKind.OUTPUT_LOST),
        (TargetTaken("run b holds it"), FailureKind.TARGET_TAKEN),
        (BrokenCode("it raised", "line 1"), FailureKind.CODE_BROKEN),
        (InputLost("trimmed"), FailureKind.INPUT_LOST),
        (StateUnmatched("no operator takes it"), FailureKind.STATE_UNMATCHED),
        (OSError(errno.ENOSPC, "no space"), FailureKind.DISK_FULL),
        (OSError(errno.EDQUOT, "quota"), FailureKind.DISK_FULL),
        (OSError(errno.EROFS, "read-only"), FailureKind.DISK_READ_ONLY),
        (ConnectionRefusedError("no"), FailureKind.SYSTEM_AWAY),
        (ValueError("what"), FailureKind.UNKNOWN),
    ],
)
def test_each_error_has_its_kind(error: Exception, kind: FailureKind) -> None:
    assert kind_of(error) is kind


def test_the_innermost_special_cause_decides_the_kind() -> None:
    upload = caused(Retryable("the upload failed"), OSError(errno.ENOSPC, "no space"))
    no_point = caused(CorruptSnapshot("No point can be used"), InputLost("trimmed"))

    assert kind_of(upload) is FailureKind.DISK_FULL
    assert kind_of(caused(RuntimeError("later"), upload)) is FailureKind.DISK_FULL
    assert kind_of(no_point) is FailureKind.INPUT_LOST


def test_among_general_kinds_the_outermost_error_decides() -> None:
    assert kind_of(caused(Rejected("no"), Retryable("away"))) is FailureKind.REFUSED
    assert kind_of(caused(Retryable("away"), Rejected("no"))) is FailureKind.SYSTEM_AWAY


def test_an_error_text_has_the_kind_of_its_disk_error_or_none() -> None:
    full, read_only = (OSError(number, "x", "/a") for number in (errno.ENOSPC, errno.EROFS))

    assert kind_of_text(f"I/O problem: {full}") is FailureKind.DISK_FULL
    assert kind_of_text(f"I/O problem: {read_only}") is FailureKind.DISK_READ_ONLY
    assert kind_of_text("[Errno 111] Connection refused") is None
    assert kind_of_text("still missing: count[0]") is None


def test_a_circle_of_causes_does_not_loop_for_ever() -> None:
    first, second = ValueError("a"), ValueError("b")
    first.__cause__, second.__cause__ = second, first

    assert kind_of(first) is FailureKind.UNKNOWN


@pytest.mark.parametrize(
    ("raised", "kind"),
    [
        (ZeroDivisionError("by zero"), FailureKind.FUNCTION),
        (ConnectionRefusedError("the service"), FailureKind.SYSTEM_AWAY),
        (Retryable("PostgreSQL is away"), FailureKind.SYSTEM_AWAY),
        (OSError(errno.ENOSPC, "no space"), FailureKind.DISK_FULL),
    ],
)
def test_an_operators_error_blames_its_function_unless_the_error_says_otherwise(
    raised: Exception, kind: FailureKind
) -> None:
    assert failure_kind(OperatorFailed(Uid("fraud"), NOWHERE, raised)) is kind
