"""A checked pipeline: all that the runtime needs to know of what an author has declared."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import pyarrow as pa

from pipelines.connectors.sink import Sink
from pipelines.connectors.source import Source
from pipelines.domain.graph import Connection, JobGraph
from pipelines.domain.ids import Uid
from pipelines.operators.operator import Operator
from pipelines.operators.side_output import SideOutput

GUARANTEES = ("exactly-once", "exactly-once (idempotent)", "at-least-once")
"""From the strongest to the weakest; a pipeline has that of its weakest sink."""


@dataclass(frozen=True, slots=True)
class Pipeline:
    """`schemas` holds what each node emits; for a sink, what it takes."""

    graph: JobGraph
    sources: Mapping[Uid, Source]
    operators: Mapping[Uid, Callable[[], Operator]]
    sinks: Mapping[Uid, Sink]
    schemas: Mapping[Uid, pa.Schema]
    side_outputs: Mapping[tuple[Uid, str], SideOutput]
    guarantee: str
    pace: float | None  # event-hours per second; None: as fast as possible

    def input_schemas(self, uid: Uid) -> list[pa.Schema]:
        """What each port of a node takes."""
        return [self._schema_into(connection) for connection in self.graph.node(uid).inputs]

    def _schema_into(self, connection: Connection) -> pa.Schema:
        if connection.side is None:
            return self.schemas[connection.upstream]
        return self.side_outputs[connection.upstream, connection.side].schema


def weakest(guarantees: list[str]) -> str:
    """An unknown guarantee is weaker than any known one, and is shown as it is."""
    ranked = {guarantee: rank for rank, guarantee in enumerate(GUARANTEES)}
    found, worst = GUARANTEES[0], -1
    for guarantee in guarantees:
        rank = ranked.get(guarantee, len(GUARANTEES))
        if rank > worst:
            found, worst = guarantee, rank
    return found
