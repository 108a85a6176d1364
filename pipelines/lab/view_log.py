"""The sink of the lab: one row per view, with the time at which a reader could first see it.

Both kinds write the same bytes. One shows its rows as soon as they are written, like a sink without
transactions. The other shows them with their checkpoint, through the base for two-phase sinks. Both
are only for the lab: it owns `directory`, and restores only the newest point of its own run.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipelines.connectors.sink import SinkContext, SinkWriter, Superseded
from pipelines.connectors.two_phase_commit import TransactionLost, TwoPhaseCommitWriter
from pipelines.domain.guarantees import AT_LEAST_ONCE, EXACTLY_ONCE
from pipelines.domain.ids import CheckpointId, RunId
from pipelines.domain.snapshots import Json
from pipelines.lab.view_input import wall_ms

COLUMNS = ("view", "app", "views", "happened_ms")
ROW = np.dtype([(name, np.int64) for name in (*COLUMNS, "visible_ms")])
"""`views`: the count of the row's application so far."""

Rows = npt.NDArray[np.void]

_VISIBLE, _PENDING = "rows-", ".pending-"
_AT_COMMIT = 0
"""In place of a time: rows of a transaction are visible from when their file got its name."""


@dataclass(frozen=True, slots=True)
class ViewLog:
    directory: Path
    is_transactional: bool

    @property
    def guarantee(self) -> str:
        return EXACTLY_ONCE if self.is_transactional else AT_LEAST_ONCE

    def validate(self, schema: pa.Schema) -> None:
        pass

    def open(self, context: SinkContext, schema: pa.Schema) -> SinkWriter:
        if self.is_transactional:
            return TwoPhaseCommitWriter(_Transactions(self.directory), context, schema)
        return _PlainWriter(self.directory, context)

    def rewind(
        self, ancestors: list[tuple[RunId, CheckpointId]], run_id: RunId
    ) -> Superseded | None:
        """Nothing was committed behind the newest point."""
        return None


def visible_rows(directory: Path) -> Rows:
    """Each subtask's rows in the order of writing. Leaves out a row that a dying slot cut off."""
    parts = [_read(path) for path in sorted(directory.glob(f"{_VISIBLE}*"))]
    return np.concatenate(parts) if parts else np.zeros(0, ROW)


class _PlainWriter:
    """Hands each row to the kernel at once, so the row survives the death of its process."""

    def __init__(self, directory: Path, context: SinkContext) -> None:
        name = f"{_VISIBLE}{context.attempt:06d}-{0:09d}-{context.subtask}"
        self._file = open(directory / name, "ab", buffering=0)  # noqa: SIM115 - closed by close

    def write(self, batch: pa.RecordBatch) -> None:
        self._file.write(_bytes_of(batch, wall_ms()))

    def prepare(self, checkpoint_id: CheckpointId) -> list[Json]:
        os.fsync(self._file.fileno())
        return []

    def commit(self, checkpoint_id: CheckpointId, committables: list[Json]) -> None:
        pass

    def close(self) -> None:
        self._file.close()


class _Handle(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    pending: str
    visible: str


class _Transaction:
    """A file that gets a visible name when it is committed."""

    def __init__(self, directory: Path, context: SinkContext, after: CheckpointId) -> None:
        self._directory = directory
        self._context = context
        name = f"{_PENDING}{context.attempt:06d}-{after:09d}-{context.subtask}"
        self._path = directory / name
        self._file = open(self._path, "wb", buffering=0)  # noqa: SIM115 - closed by both ends

    def write(self, batch: pa.RecordBatch) -> None:
        self._file.write(_bytes_of(batch, _AT_COMMIT))

    def prepare(self, checkpoint_id: CheckpointId) -> Json:
        os.fsync(self._file.fileno())
        self._file.close()
        context = self._context
        name = f"{_VISIBLE}{context.attempt:06d}-{checkpoint_id:09d}-{context.subtask}"
        prepared: Json = msgspec.to_builtins(_Handle(self._path.name, name))
        return prepared

    def abandon(self) -> None:
        self._file.close()
        self._path.unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class _Transactions:
    """Implements `TwoPhaseCommitTarget`."""

    directory: Path

    def begin(self, context: SinkContext, schema: pa.Schema, after: CheckpointId) -> _Transaction:
        return _Transaction(self.directory, context, after)

    def commit(self, handle: Json) -> None:
        names = msgspec.convert(handle, _Handle)
        pending, visible = self.directory / names.pending, self.directory / names.visible
        if visible.exists():
            return
        try:
            os.utime(pending)  # from now on it is visible
        except FileNotFoundError as gone:
            raise TransactionLost(f"{pending} is gone") from gone
        pending.rename(visible)

    def end_orphans(self, context: SinkContext, keep: list[Json]) -> None:
        kept = {msgspec.convert(handle, _Handle).pending for handle in keep}
        for path in self._pending():
            attempt, _, subtask = path.name.removeprefix(_PENDING).split("-")
            is_older = int(attempt) < context.attempt
            if is_older and context.inherits(int(subtask)) and path.name not in kept:
                path.unlink(missing_ok=True)

    def close(self) -> None:
        pass

    def _pending(self) -> Iterator[Path]:
        return self.directory.glob(f"{_PENDING}*")


def _bytes_of(batch: pa.RecordBatch, visible_ms: int) -> bytes:
    rows = np.zeros(batch.num_rows, ROW)
    for name in COLUMNS:
        rows[name] = batch.column(name).to_numpy()
    rows["visible_ms"] = visible_ms
    return rows.tobytes()


def _read(path: Path) -> Rows:
    written = path.read_bytes()
    rows = np.frombuffer(written, ROW, count=len(written) // ROW.itemsize).copy()
    is_committed = rows["visible_ms"] == _AT_COMMIT
    rows["visible_ms"][is_committed] = path.stat().st_mtime_ns // 1_000_000
    return rows
