"""The quarantine of one source subtask: prepares and commits its records with the cuts.

`protocol.poison_records` decides which records go here, `connectors.files.quarantine` where they
are kept.
"""

import pyarrow as pa

from pipelines.connectors.files.quarantine import quarantined
from pipelines.connectors.json_rows import record_text
from pipelines.connectors.sink import SinkWriter
from pipelines.domain.ids import CheckpointId
from pipelines.domain.poison import PoisonRecord
from pipelines.operators.operator import OperatorContext
from pipelines.protocol.commit import CommitLog, Prepared

QUARANTINED_COUNT = "records_quarantined"


class Quarantine:
    """Guarantee: a record given to `add` becomes visible once, with the checkpoint whose cut has
    the source's position behind it. Needs a caller that moves the position in the same turn.
    """

    def __init__(
        self, writer: SinkWriter, restored: tuple[Prepared, ...], context: OperatorContext
    ) -> None:
        """Commits what the restored point had prepared."""
        self._writer = writer
        self._log = CommitLog(restored)
        self._context = context
        self._commit(self._log.take_restored())

    def add_row(self, poison: PoisonRecord, row: pa.RecordBatch) -> None:
        self._add(poison, record_text(row))

    def add_text(self, poison: PoisonRecord, text: str) -> None:
        """Adds a record that the source cannot read."""
        self._add(poison, text)

    def prepare(self, checkpoint_id: CheckpointId) -> tuple[Prepared, ...]:
        """Raises Retryable."""
        return self._log.on_prepared(checkpoint_id, self._writer.prepare(checkpoint_id))

    def commit(self, checkpoint_id: CheckpointId) -> None:
        self._commit(self._log.on_completed(checkpoint_id))

    def close(self) -> None:
        self._writer.close()

    def _add(self, poison: PoisonRecord, record: str) -> None:
        self._writer.write(quarantined(poison, record))
        self._context.count("records_replayed" if poison.is_replayed else "records_read", 1)
        self._context.count(QUARANTINED_COUNT, 1)

    def _commit(self, due: tuple[Prepared, ...]) -> None:
        for prepared in due:
            self._writer.commit(prepared.checkpoint_id, list(prepared.committables))
