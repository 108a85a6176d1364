"""Sink: counts what arrives and keeps nothing, to measure everything in front of it."""

from dataclasses import dataclass

import pyarrow as pa

from pipelines.connectors.sink import SinkContext, Superseded
from pipelines.domain.ids import CheckpointId, RunId
from pipelines.domain.snapshots import Json


class BlackHoleWriter:
    def __init__(self) -> None:
        self.records = 0
        self.batches = 0

    def write(self, batch: pa.RecordBatch) -> None:
        self.records += batch.num_rows
        self.batches += 1

    def prepare(self, checkpoint_id: CheckpointId) -> list[Json]:
        return []

    def commit(self, checkpoint_id: CheckpointId, committables: list[Json]) -> None:
        pass

    def close(self) -> None:
        pass


@dataclass(frozen=True, slots=True)
class BlackHole:
    """No output leaves the engine, so the engine's own guarantee is all there is."""

    @property
    def guarantee(self) -> str:
        return "exactly-once"

    def validate(self, schema: pa.Schema) -> None:
        pass

    def open(self, context: SinkContext, schema: pa.Schema) -> BlackHoleWriter:
        return BlackHoleWriter()

    def rewind(
        self, ancestors: list[tuple[RunId, CheckpointId]], run_id: RunId
    ) -> Superseded | None:
        return None
