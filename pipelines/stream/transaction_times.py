"""Checks that a sink's prepared output may wait as long as a recovery can take.

A transaction is open from an interval's first record until its checkpoint has completed. If the
attempt fails before the commit, it is open until another attempt has started. Source: Flink's
advice for `KafkaSink`: the timeout exceeds the longest checkpoint and the longest restart together.
"""

from collections.abc import Mapping

from pipelines.connectors.sink import Sink
from pipelines.connectors.two_phase_commit import HoldsTransactions
from pipelines.domain.errors import Rejected
from pipelines.domain.ids import Uid
from pipelines.domain.settings import RestartStrategy, Settings


def check_transaction_times(sinks: Mapping[Uid, Sink], settings: Settings) -> None:
    """Raises Rejected naming the sink and what to change."""
    wanted_ms = longest_wait_ms(settings)
    for uid, sink in sinks.items():
        if isinstance(sink, HoldsTransactions) and sink.transaction_timeout_ms <= wanted_ms:
            kept_s, wanted_s = sink.transaction_timeout_ms / 1000, wanted_ms / 1000
            raise Rejected(
                f"The sink {uid!r} keeps a transaction for {kept_s:g} s, but with these settings"
                f" one may have to wait {wanted_s:g} s (checkpoint interval and timeout, heartbeat"
                " timeout, longest restart delay): raise its transaction timeout or lower one of"
                " them."
            )


def longest_wait_ms(settings: Settings) -> int:
    return (
        (settings.checkpoint_interval_ms or 0)
        + settings.checkpoint_timeout_ms
        + settings.heartbeat_timeout_ms
        + _longest_restart_delay_ms(settings)
    )


def _longest_restart_delay_ms(settings: Settings) -> int:
    match settings.restart_strategy:
        case RestartStrategy.FIXED_DELAY:
            return settings.fixed_delay_ms
        case RestartStrategy.FAILURE_RATE:
            return settings.failure_rate_delay_ms
        case RestartStrategy.EXPONENTIAL_DELAY:
            return settings.max_backoff_ms
        case RestartStrategy.NONE:
            return 0
