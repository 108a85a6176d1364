"""Sink: files of Parquet or JSON lines that become visible exactly once, with their checkpoint.

Two-phase: the writer writes and digests a file under a hidden name, closes it and makes it durable
at the barrier, and renames it when the checkpoint completes. Readers ignore names that start with a
dot or an underscore. `files.target` decides which files belong to a starting point, and which
writers may write.

Source: Flink's FileSink (in progress, pending, finished).
"""

import os
from collections.abc import Collection
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Protocol

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.connectors.files.target import (
    FINAL,
    PREPARED,
    SUPERSEDED,
    FileTarget,
    writing,
)
from pipelines.connectors.json_rows import has_json, json_lines_of
from pipelines.connectors.sink import SinkContext, Superseded, Unfinished
from pipelines.disk.files import RunningDigest, blocks_of, make_durable
from pipelines.domain.errors import OutputLost, ProtocolError, Rejected, TargetTaken, check
from pipelines.domain.ids import CheckpointId, RunId
from pipelines.domain.ownership import Claim, Holder
from pipelines.domain.snapshots import Json


class DigestedFile:
    """A file-like object that digests what is written to it. Every call may raise OSError."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.digest = RunningDigest()
        self._file = path.open("wb")

    @property
    def closed(self) -> bool:
        return self._file.closed

    def write(self, piece: bytes | memoryview) -> int:
        view = memoryview(piece).cast("B")
        self.digest.update(view)
        return self._file.write(view)

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.close()

    def close_durably(self) -> None:
        """Also raises OSError if the disk has stored less than it reported."""
        self._file.flush()
        os.fsync(self._file.fileno())
        found_bytes = os.fstat(self._file.fileno()).st_size
        self._file.close()
        if found_bytes != self.digest.length:
            raise OSError(f"{self.path} has {found_bytes} bytes instead of {self.digest.length}")


class TableWriter(Protocol):
    """Writes tables into a file; the caller closes the file."""

    def write_table(self, table: pa.Table) -> None:
        """Raises OSError."""
        ...

    def close(self) -> None:
        """Hands everything that is left to the file."""
        ...


class FileFormat(Protocol):
    """Immutable; safe to build in every process."""

    @property
    def suffix(self) -> str:
        """The suffix with its dot; one of `target.SUFFIXES`."""
        ...

    def check_storable(self, column: pa.Field) -> None:
        """Raises Rejected naming the column that the format cannot hold."""
        ...

    def open(self, file: DigestedFile, schema: pa.Schema) -> TableWriter: ...


class Parquet:
    """Writes each table as a row group."""

    suffix = ".parquet"

    def check_storable(self, column: pa.Field) -> None:
        try:
            pq.ParquetWriter(pa.BufferOutputStream(), pa.schema([column])).close()
        except pa.ArrowException as error:
            raise Rejected(
                f"Column {column.name} of type {column.type} cannot be stored as Parquet."
            ) from error

    def open(self, file: DigestedFile, schema: pa.Schema) -> TableWriter:
        writer: TableWriter = pq.ParquetWriter(pa.PythonFile(file, mode="w"), schema)
        return writer


class JsonLines:
    """Writes each row as an object on its own line, with every column, null or not."""

    suffix = ".jsonl"

    def check_storable(self, column: pa.Field) -> None:
        if not has_json(column.type):
            raise Rejected(
                f"Column {column.name} of type {column.type} cannot be stored as JSON lines."
            )

    def open(self, file: DigestedFile, schema: pa.Schema) -> TableWriter:
        return _JsonLinesWriter(file)


PARQUET = Parquet()
JSON_LINES = JsonLines()


class _JsonLinesWriter:
    def __init__(self, file: DigestedFile) -> None:
        self._file = file

    def write_table(self, table: pa.Table) -> None:
        self._file.write(json_lines_of(table))

    def close(self) -> None:
        """Does nothing: each table is written at once."""


ROW_GROUP_ROWS = 65_536
ROW_GROUP_BYTES = 32 * 1024 * 1024
"""The writer keeps rows in memory up to the first of these limits, then writes them to its file."""


@dataclass(frozen=True, slots=True)
class ExactlyOnceFiles:
    """Files that appear whole, when their checkpoint has completed.

    Args:
        directory: where the files appear. It belongs to the pipeline alone.
        pipeline: the name of the pipeline.
        format: `PARQUET` or `JSON_LINES`.

    Building the pipeline raises Rejected for a column that the format cannot hold. A start raises
    it if the directory belongs to another pipeline.
    """

    directory: Path | str
    _: KW_ONLY
    pipeline: str
    format: FileFormat = PARQUET

    @property
    def guarantee(self) -> str:
        return "exactly-once"

    @property
    def place(self) -> str:
        """See `OwnsPlace`: a file's name contains run, checkpoint and subtask, but no uid."""
        return f"the directory {Path(self.directory).resolve()}"

    def check_columns(self, schema: pa.Schema) -> None:
        """See `ChecksColumns`."""
        for column in schema:
            self.format.check_storable(column)

    def validate(self, schema: pa.Schema) -> None:
        self.check_columns(schema)
        self._files.validate()

    def open(self, context: SinkContext, schema: pa.Schema) -> "FilesWriter":
        target = self._files
        with writing(target.directory):
            target.enter(context.run_id, context.attempt)
            target.remove_left_over(context.run_id, context.attempt, context.subtask)
        return FilesWriter(target, self.format, context, schema)

    @property
    def target(self) -> str:
        """See `HoldsTarget`."""
        return self._files.description

    def holder(self) -> Holder | None:
        with writing(self._files.directory):
            return self._files.holder()

    def hold(self, claim: Claim) -> None:
        with writing(self._files.directory):
            self._files.hold(claim)

    def rewind(
        self, ancestors: list[tuple[RunId, CheckpointId]], run_id: RunId
    ) -> Superseded | None:
        target = self._files
        with writing(target.directory):
            items = target.rewind(ancestors, run_id)
        return Superseded(items, str(target.directory / SUPERSEDED / run_id)) if items else None

    def unfinished(self) -> list[Unfinished]:
        """See `LeavesUnfinished`."""
        with writing(self._files.directory):
            return self._files.unfinished()

    def discard(self, names: Collection[str], run_id: RunId) -> int:
        with writing(self._files.directory):
            return self._files.discard(names, run_id)

    @property
    def _files(self) -> FileTarget:
        return FileTarget(Path(self.directory).absolute(), self.pipeline)


class Committable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A prepared file and the name under which it becomes visible; names within the directory.

    `directory` is where it was prepared. A point may be restored into a pipeline that writes to
    another directory. The file is then left alone: it belongs to a run that restores the point into
    `directory`.
    """

    temporary: str
    final: str
    directory: str | None = None
    length: int  # bytes
    digest: str  # of the content, see `RunningDigest`


class FilesWriter:
    """One subtask's files. Guarantee: a name `part-...` only ever shows a whole, durable file."""

    def __init__(
        self, target: FileTarget, format: FileFormat, context: SinkContext, schema: pa.Schema
    ) -> None:
        self._target = target
        self._format = format
        self._context = context
        self._schema = schema
        self._buffer: list[pa.RecordBatch] = []
        self._buffered_rows = 0
        self._buffered_bytes = 0
        self._in_progress: DigestedFile | None = None
        self._tables: TableWriter | None = None
        self._file_count = 0
        self._has_tidied = False

    def write(self, batch: pa.RecordBatch) -> None:
        self._buffer.append(batch)
        self._buffered_rows += batch.num_rows
        self._buffered_bytes += batch.nbytes
        if self._buffered_rows >= ROW_GROUP_ROWS or self._buffered_bytes >= ROW_GROUP_BYTES:
            self._flush()

    def prepare(self, checkpoint_id: CheckpointId) -> list[Json]:
        self._target.check_current(self._context.run_id, self._context.attempt)
        self._flush()
        if self._in_progress is None:
            return []
        with writing(self._target.directory):
            return [msgspec.to_builtins(self._prepare_file(self._in_progress, checkpoint_id))]

    def commit(self, checkpoint_id: CheckpointId, committables: list[Json]) -> None:
        self._target.check_current(self._context.run_id, self._context.attempt)
        files = msgspec.convert(committables, list[Committable])
        with writing(self._target.directory):
            for file in files:
                if not self._belongs_elsewhere(file):
                    self._make_visible(file, checkpoint_id)
            if files:
                make_durable(self._target.directory)
            if not self._has_tidied and any(self._is_own(file) for file in files):
                self._tidy()

    def token(self, committable: Json) -> str:
        return msgspec.convert(committable, Committable).final

    def close(self) -> None:
        self._buffer = []
        context = self._context
        with writing(self._target.directory):
            if self._tables is not None:
                self._tables.close()
            if self._in_progress is not None:
                self._in_progress.close()
                self._in_progress.path.unlink(missing_ok=True)
            self._target.remove_left_over(context.run_id, context.attempt, context.subtask)
        self._tables = self._in_progress = None

    def _flush(self) -> None:
        """Writes the buffered records as one table."""
        table = pa.Table.from_batches(self._buffer, self._schema)
        self._buffer, self._buffered_rows, self._buffered_bytes = [], 0, 0
        if table.num_rows == 0:
            return
        if self._tables is None:
            self._target.check_current(self._context.run_id, self._context.attempt)
        with writing(self._target.directory):
            if self._tables is None:
                path = self._target.directory / self._name(".in-progress")
                self._in_progress = DigestedFile(path)
                self._tables = self._format.open(self._in_progress, self._schema)
            self._tables.write_table(table)

    def _prepare_file(self, in_progress: DigestedFile, checkpoint_id: CheckpointId) -> Committable:
        if self._tables is not None:
            self._tables.close()
        place = (
            f"{checkpoint_id:08}-{self._context.subtask}-{self._file_count}{self._format.suffix}"
        )
        run_id, attempt = self._context.run_id, self._context.attempt
        in_progress.close_durably()
        prepared = in_progress.path.with_name(f".prepared-{run_id}-a{attempt}-{place}")
        in_progress.path.rename(prepared)
        make_durable(self._target.directory)
        self._tables = self._in_progress = None
        self._file_count += 1
        self._check_still_current(prepared)
        return Committable(
            temporary=prepared.name,
            final=f"part-{run_id}-{place}",
            directory=str(self._target.directory),
            length=in_progress.digest.length,
            digest=in_progress.digest.hexdigest(),
        )

    def _check_still_current(self, prepared: Path) -> None:
        """Removes the file if this writer was replaced while it prepared.

        Its successors may have looked for such files already. Raises ProtocolError, TargetTaken.
        """
        try:
            self._target.check_current(self._context.run_id, self._context.attempt)
        except (ProtocolError, TargetTaken):
            prepared.unlink(missing_ok=True)
            raise

    def _is_own(self, file: Committable) -> bool:
        name, context = PREPARED.fullmatch(file.temporary), self._context
        mine = (context.run_id, context.attempt)
        return name is not None and (name["run"], int(name["attempt"])) == mine

    def _tidy(self) -> None:
        """Removes what older attempts left, which no run needs any more.

        A checkpoint of this attempt has completed, so every subtask has committed what it restored.
        """
        self._target.remove_older(self._context.run_id, self._context.attempt)
        self._has_tidied = True

    def _belongs_elsewhere(self, file: Committable) -> bool:
        """Returns False if the directory has only been moved: then the files are here."""
        here = self._target.directory
        if file.directory is None or Path(file.directory) == here:
            return False
        return not (here / file.temporary).exists() and not (here / file.final).exists()

    def _make_visible(self, file: Committable, checkpoint_id: CheckpointId) -> None:
        """Idempotent: a final file with the same content proves an earlier commit."""
        check(bool(PREPARED.fullmatch(file.temporary)), "a prepared file has its name", file=file)
        check(bool(FINAL.fullmatch(file.final)), "an output file has its name", file=file)
        temporary = self._target.directory / file.temporary
        final = self._target.directory / file.final
        if final.exists():
            if not _holds(final, file):
                raise _lost(checkpoint_id, f"the output file {final} is not what was prepared")
            temporary.unlink(missing_ok=True)
            return
        if not temporary.exists():
            raise _lost(checkpoint_id, f"the prepared file {temporary} is gone")
        if not _holds(temporary, file):
            raise _lost(checkpoint_id, f"the prepared file {temporary} has changed")
        temporary.rename(final)

    def _name(self, stage: str) -> str:
        context = self._context
        attempt = f"{context.run_id}-a{context.attempt}"
        return f"{stage}-{attempt}-{context.subtask}-{self._file_count}{self._format.suffix}"


def _lost(checkpoint_id: CheckpointId, why: str) -> OutputLost:
    return OutputLost(
        f"Output of checkpoint {checkpoint_id} is lost: {why}. Restore a point of before checkpoint"
        f" {checkpoint_id}, or start from the beginning: files that came after it are moved to"
        f" {SUPERSEDED} and written again.",
        checkpoint_id,
    )


def _holds(path: Path, file: Committable) -> bool:
    """Uses the hash function of the given digest: older savepoints used another one."""
    if path.stat().st_size != file.length:
        return False
    digest = RunningDigest(like=file.digest)
    for block in blocks_of(path):
        digest.update(block)
    return digest.hexdigest() == file.digest
