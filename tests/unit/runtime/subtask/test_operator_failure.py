"""The cause that an operator's exception points to: the world, a person, or the record."""

import pytest

from pipelines.channels.channel import ChannelClosed
from pipelines.domain.errors import CorruptSnapshot, OutputLost, Rejected, Retryable
from pipelines.domain.ids import CheckpointId, Uid
from pipelines.domain.origins import RecordOrigin
from pipelines.runtime.subtask.operator_failure import (
    OperatorFailed,
    described,
    is_fatal,
    is_of_the_world,
    located,
    lost_output_of,
)

ORIGIN = RecordOrigin(source=Uid("s"), subtask=0, split="a", first_offset=3, last_offset=9)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (Retryable("locked"), True),
        (ConnectionRefusedError("no"), True),
        (TimeoutError("late"), True),
        (OSError(28, "No space left on device"), True),
        (FileNotFoundError("rates.csv"), False),
        (PermissionError("rates.csv"), False),
        (ValueError("7 is bad"), False),
        (MemoryError(), False),
    ],
)
def test_only_errors_that_may_pass_by_themselves_are_of_the_world(
    error: Exception, expected: bool
) -> None:
    assert is_of_the_world(error) is expected
    assert described(OperatorFailed(Uid("o"), (ORIGIN,), error)).is_of_the_world is expected


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (Rejected("no"), True),
        (CorruptSnapshot("x"), True),
        (OutputLost("3 records", CheckpointId(7)), True),
        (KeyError(), False),
    ],
)
def test_errors_that_a_person_has_to_fix_are_fatal_wherever_they_are_raised(
    error: Exception, expected: bool
) -> None:
    assert is_fatal(error) is expected
    assert is_fatal(OperatorFailed(Uid("o"), (), error)) is expected


@pytest.mark.parametrize(
    ("error", "expected"), [(OutputLost("3 records", CheckpointId(7)), 7), (Rejected("no"), None)]
)
def test_lost_output_is_distinguished_from_errors_that_a_person_can_fix(
    error: Exception, expected: int | None
) -> None:
    assert lost_output_of(error) == expected
    assert lost_output_of(OperatorFailed(Uid("o"), (), error)) == expected


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (Rejected("The table orders has no column n."), "The table orders has no column n."),
        (Retryable("The database does not answer."), "The database does not answer."),
        (ValueError("7 is bad"), "ValueError: 7 is bad"),
        (KeyError(), "KeyError"),
    ],
)
def test_only_an_error_that_is_no_sentence_of_ours_shows_its_type(
    error: Exception, expected: str
) -> None:
    assert str(OperatorFailed(Uid("o"), (ORIGIN,), error)) == expected


def test_an_error_is_located_once_where_it_was_raised() -> None:
    inner = located(Uid("inner"), (ORIGIN,), ValueError("7 is bad"))

    outer = located(Uid("outer"), (), inner)

    assert isinstance(outer, OperatorFailed)
    assert (outer.operator, outer.origin, str(outer)) == ("inner", ORIGIN, "ValueError: 7 is bad")


def test_a_closed_channel_is_not_wrapped_as_an_operator_failure() -> None:
    closed = ChannelClosed("gone")

    assert located(Uid("o"), (ORIGIN,), closed) is closed
