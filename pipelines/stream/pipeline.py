"""A checked pipeline: all that the runtime needs to know of an author's declarations."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import pyarrow as pa

from pipelines.connectors.sink import Sink
from pipelines.connectors.source import AnySource, MalformedRecord, ReadOnce
from pipelines.connectors.watermark_strategy import WatermarkStrategy
from pipelines.domain.graph import Connection, JobGraph
from pipelines.domain.guarantees import Ends
from pipelines.domain.ids import Uid
from pipelines.domain.poison import PoisonPolicy
from pipelines.domain.settings import Settings
from pipelines.operators.operator import Operator, SideOutput
from pipelines.stream.transaction_times import check_transaction_times


@dataclass(frozen=True, slots=True)
class Pipeline:
    """`schemas` holds what each node emits; for a sink, what it takes."""

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
        """The schemas that each port of a node takes."""
        return [self._schema_into(connection) for connection in self.graph.node(uid).inputs]

    def validate_sources(self, settings: Settings) -> None:
        """Raises Rejected naming the file or column; or the record, unless such are set aside."""
        for source in self.sources.values():
            try:
                source.validate()
            except MalformedRecord:
                if settings.poison_policy is PoisonPolicy.FAIL:
                    raise

    def check_fits(self, settings: Settings) -> None:
        """Raises Rejected naming the sink that these settings might let lose output."""
        check_transaction_times(self.sinks, settings)

    def _schema_into(self, connection: Connection) -> pa.Schema:
        if connection.side is None:
            return self.schemas[connection.upstream]
        return self.side_outputs[connection.upstream, connection.side].schema
