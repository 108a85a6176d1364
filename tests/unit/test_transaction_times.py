"""A sink is refused if its transactions would time out before a recovery could commit them."""

from dataclasses import dataclass

import pytest

from pipelines.connectors import BlackHole
from pipelines.connectors.contract import Sink
from pipelines.domain.errors import Rejected
from pipelines.domain.ids import Uid
from pipelines.domain.settings.parsing import parse_settings
from pipelines.stream.pipeline import check_transaction_times, longest_wait_ms

SETTINGS = {
    "execution.checkpointing.interval": "2 s",
    "execution.checkpointing.timeout": "30 s",
    "heartbeat.interval": "1 s",
    "heartbeat.timeout": "5 s",
    "restart-strategy.type": "fixed-delay",
    "restart-strategy.fixed-delay.delay": "7 s",
}


@dataclass(frozen=True)
class Holding:
    """A stand-in for a sink; the check reads only its timeout."""

    transaction_timeout_ms: int


@pytest.mark.parametrize(
    ("changed", "wanted_s"),
    [
        ({}, 44),
        ({"execution.checkpointing.interval": "off"}, 42),
        ({"restart-strategy.type": "none"}, 37),
        (
            {
                "restart-strategy.type": "exponential-delay",
                "restart-strategy.exponential-delay.max-backoff": "60 s",
            },
            97,
        ),
        (
            {
                "restart-strategy.type": "failure-rate",
                "restart-strategy.failure-rate.delay": "3 s",
            },
            40,
        ),
    ],
)
def test_a_transaction_may_wait_for_a_checkpoint_and_for_a_restart(
    changed: dict[str, str], wanted_s: int
) -> None:
    assert longest_wait_ms(parse_settings(SETTINGS | changed)) == wanted_s * 1000


def test_a_timeout_that_is_too_short_is_refused_with_the_sink_and_both_times() -> None:
    with pytest.raises(Rejected, match=r"The sink 'out' keeps a transaction for 44 s.*wait 44 s"):
        check_transaction_times(sinks(Holding(44_000)), parse_settings(SETTINGS))


@pytest.mark.parametrize("sink", [Holding(44_001), BlackHole()])
def test_a_sufficient_timeout_and_a_sink_without_one_are_accepted(sink: object) -> None:
    settings = parse_settings(SETTINGS)

    check_transaction_times(sinks(sink), settings)

    with pytest.raises(Rejected, match="The sink 'beside'"):
        check_transaction_times(sinks(sink, beside=Holding(44_000)), settings)


def sinks(sink: object, **others: object) -> dict[Uid, Sink]:
    return {Uid(uid): each for uid, each in {"out": sink, **others}.items()}  # type: ignore[misc]
