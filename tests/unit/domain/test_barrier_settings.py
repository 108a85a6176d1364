"""The settings of barriers: contradictions are refused, and the values reach the slots."""

import pytest

from pipelines.domain.errors import Rejected
from pipelines.domain.settings import CapAction
from pipelines.domain.settings.parsing import parse_settings


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            {"unaligned.enabled": "true", "max-concurrent-checkpoints": "2"},
            "unaligned.enabled needs .*max-concurrent-checkpoints 1",
        ),
        ({"unaligned.enabled": "true", "mode": "AT_LEAST_ONCE"}, "needs .*mode EXACTLY_ONCE"),
        ({"aligned-checkpoint-timeout": "1 s"}, "no effect without .*unaligned.enabled"),
        ({"alignment-buffer.when-exceeded": "abort"}, "no cap is set"),
        (
            {"alignment-buffer.max-size-per-channel": "1 mb", "mode": "AT_LEAST_ONCE"},
            "holds nothing back",
        ),
        (
            {
                "alignment-buffer.max-size-per-subtask": "1 mb",
                "alignment-buffer.when-exceeded": "unaligned",
                "max-concurrent-checkpoints": "2",
            },
            "max-concurrent-checkpoints 1",
        ),
        (
            {
                "unaligned.enabled": "true",
                "aligned-checkpoint-timeout": "1 min",
                "timeout": "1 min",
            },
            "would expire before its barriers overtake",
        ),
        ({"mode": "AT_MOST_ONCE", "interval": "off"}, "AT_MOST_ONCE needs periodic checkpoints"),
        (
            {"mode": "AT_MOST_ONCE", "checkpoints-after-tasks-finish": "false"},
            "AT_MOST_ONCE needs .*checkpoints-after-tasks-finish true",
        ),
        ({"at-most-once.read-ahead": "1 mb"}, "no effect with .*mode EXACTLY_ONCE"),
        ({"alignment-buffer.max-size-per-channel": "1"}, "expected a size"),
        ({"unaligned.enabled": "maybe"}, "expected true or false"),
    ],
)
def test_contradictory_overtaking_settings_are_refused(given: dict[str, str], said: str) -> None:
    with pytest.raises(Rejected, match=said):
        parse_settings({f"execution.checkpointing.{key}": text for key, text in given.items()})


def test_the_barrier_treatment_is_parsed() -> None:
    settings = parse_settings(
        {
            "execution.checkpointing.unaligned.enabled": "true",
            "execution.checkpointing.aligned-checkpoint-timeout": "30 s",
        }
    )

    assert settings.barriers.unaligned
    assert settings.barriers.aligned_timeout_ms == 30_000


def test_the_read_ahead_limit_is_parsed() -> None:
    settings = parse_settings(
        {
            "execution.checkpointing.mode": "AT_MOST_ONCE",
            "execution.checkpointing.at-most-once.read-ahead": "3 mb",
        }
    )

    assert settings.barriers.read_ahead_bytes == 3 << 20


def test_the_limits_of_held_back_data_are_parsed() -> None:
    settings = parse_settings(
        {
            "execution.checkpointing.alignment-buffer.max-size-per-channel": "1 mb",
            "execution.checkpointing.alignment-buffer.max-size-per-subtask": "3 mb",
            "execution.checkpointing.alignment-buffer.when-exceeded": "abort",
        }
    )

    barriers = settings.barriers
    assert barriers.channel_cap_bytes * 3 == barriers.subtask_cap_bytes == 3 << 20
    assert barriers.cap_action is CapAction.ABORT


@pytest.mark.parametrize(
    ("given", "may_fall_back"),
    [
        ({}, True),
        ({"execution.checkpointing.mode": "AT_LEAST_ONCE"}, True),
        ({"execution.checkpointing.mode": "AT_MOST_ONCE"}, False),
        ({"execution.state-recovery.on-damaged-point": "fail"}, False),
    ],
)
def test_at_most_once_forbids_falling_back_to_an_older_point(
    given: dict[str, str], may_fall_back: bool
) -> None:
    """After a return to an older point, the sinks would write the later output again."""
    assert parse_settings(given).may_fall_back is may_fall_back
