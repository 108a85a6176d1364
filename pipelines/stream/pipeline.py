"""A checked pipeline: everything that the runtime needs from an author's declarations.

The check includes that a sink's prepared output may wait as long as a recovery can take. A
transaction is open from an interval's first record until its checkpoint has completed. If the
attempt fails before the commit, the transaction stays open until another attempt has started.
Source: Flink's advice for `KafkaSink`: the timeout exceeds the longest checkpoint and the longest
restart together.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa

from pipelines.connectors.sink import Sink
from pipelines.connectors.sink_bases import HoldsTransactions
from pipelines.connectors.source import AnySource, MalformedRecord, ReadOnce
from pipelines.connectors.watermark_strategy import WatermarkStrategy
from pipelines.domain.errors import Rejected
from pipelines.domain.graph import Connection, JobGraph
from pipelines.domain.guarantees import Ends
from pipelines.domain.ids import Uid
from pipelines.domain.poison import PoisonPolicy
from pipelines.domain.settings import RestartOptions, RestartStrategy, Settings
from pipelines.operators.operator import Operator, SideOutput


@contextmanager
def naming(uid: str) -> Iterator[None]:
    """Puts the author's uid in front of a refusal by an operator or a sink.

    These know their columns, but not the name that the author gave them.
    """
    try:
        yield
    except Rejected as refusal:
        raise Rejected(f"{uid!r} cannot be built: {refusal}") from refusal


def check_transaction_times(sinks: Mapping[Uid, Sink], settings: Settings) -> None:
    """Raises Rejected, naming the sink and the settings, if a transaction could time out."""
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
        (settings.checkpointing.interval_ms or 0)
        + settings.checkpointing.timeout_ms
        + settings.heartbeat.timeout_ms
        + _longest_delay_ms(settings.restart)
    )


def _longest_delay_ms(restart: RestartOptions) -> int:
    match restart.strategy:
        case RestartStrategy.FIXED_DELAY:
            return restart.fixed_delay.delay_ms
        case RestartStrategy.FAILURE_RATE:
            return restart.failure_rate.delay_ms
        case RestartStrategy.EXPONENTIAL_DELAY:
            return restart.exponential_delay.max_ms
        case RestartStrategy.NONE:
            return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """`schemas` maps each node to the schema that it emits, and a sink to the one that it takes."""

    graph: JobGraph
    sources: Mapping[Uid, AnySource]
    operators: Mapping[Uid, Callable[[], Operator]]
    sinks: Mapping[Uid, Sink]
    schemas: Mapping[Uid, pa.Schema]
    side_outputs: Mapping[tuple[Uid, str], SideOutput]
    watermarks: Mapping[Uid, WatermarkStrategy]  # of sources; the others use the source's own
    pace: float | None  # event-hours per second; None: as fast as possible

    @property
    def ends(self) -> Ends:
        read_once = tuple(
            uid
            for uid, source in self.sources.items()
            if isinstance(source, ReadOnce) and source.reads_once
        )
        return Ends(read_once, {uid: sink.guarantee for uid, sink in self.sinks.items()})

    def input_schemas(self, uid: Uid) -> list[pa.Schema]:
        """Returns the schema that each port of a node takes."""
        return [self._schema_into(connection) for connection in self.graph.node(uid).inputs]

    def validate_sources(self, settings: Settings) -> None:
        """Raises Rejected naming the file, column or record at fault.

        Passes over malformed records if the settings set them aside.
        """
        for source in self.sources.values():
            try:
                source.validate()
            except MalformedRecord:
                if settings.poison.policy is PoisonPolicy.FAIL:
                    raise

    def validate_sinks(self) -> None:
        """Asks every target. Raises Rejected naming the sink whose target refuses."""
        for uid, sink in self.sinks.items():
            (schema,) = self.input_schemas(uid)
            with naming(uid):
                sink.validate(schema)

    def check_fits(self, settings: Settings) -> None:
        """Raises Rejected naming a sink that could lose output with these settings."""
        check_transaction_times(self.sinks, settings)

    def _schema_into(self, connection: Connection) -> pa.Schema:
        if connection.side is None:
            return self.schemas[connection.upstream]
        return self.side_outputs[connection.upstream, connection.side].schema
