"""The end-to-end guarantee is never stronger than the mode of the run."""

import pytest

from pipelines.domain.guarantees import NONE, end_to_end
from pipelines.domain.settings import CheckpointingMode


@pytest.mark.parametrize(
    ("mode", "of_sinks", "expected"),
    [
        ("EXACTLY_ONCE", "exactly-once", "exactly-once"),
        ("EXACTLY_ONCE", "exactly-once (idempotent)", "exactly-once (idempotent)"),
        ("EXACTLY_ONCE", "at-least-once", "at-least-once"),
        ("AT_LEAST_ONCE", "exactly-once", "at-least-once"),
        ("AT_LEAST_ONCE", "exactly-once (idempotent)", "at-least-once"),
        ("AT_LEAST_ONCE", "whatever", "whatever"),
        ("AT_MOST_ONCE", "exactly-once", "at-most-once"),
        ("AT_MOST_ONCE", "exactly-once (idempotent)", "at-most-once"),
        ("AT_MOST_ONCE", "at-least-once", NONE),
    ],
)
def test_the_weaker_of_mode_and_sinks_is_what_is_said(
    mode: str, of_sinks: str, expected: str
) -> None:
    assert end_to_end(CheckpointingMode(mode), of_sinks) == expected
