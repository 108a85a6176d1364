"""Arrow batches into a PostgreSQL table by COPY, within a transaction of somebody else's.

Decides how a value is spelled: as CSV, in which a null is empty and an empty text is quoted.
Numbers keep their value to the last bit, since a column of 32-bit floats is widened first.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.csv
from psycopg import sql

from pipelines.connectors.sql.tables import CHECKPOINT, RUN
from pipelines.domain.ids import CheckpointId, RunId

PIECE_ROWS = 65_536
"""What is spelled at once: bounds the memory of a COPY, not its size."""

_WITHOUT_HEADER = pyarrow.csv.WriteOptions(include_header=False)


def copy_statement(table: str, schema: pa.Schema) -> sql.Composed:
    """For batches of `schema`, tagged. Names are quoted here, whatever they contain."""
    columns = [sql.Identifier(name) for name in (*schema.names, RUN, CHECKPOINT)]
    return sql.SQL("COPY {} ({}) FROM STDIN (FORMAT csv)").format(
        sql.Identifier(table), sql.SQL(", ").join(columns)
    )


def copy_batches(
    cursor: "psycopg.Cursor[Any]",
    table: str,
    batches: Iterable[pa.RecordBatch],
    run_id: RunId,
    checkpoint_id: CheckpointId,
) -> None:
    """Raises psycopg.Error. All batches have the schema of the first; none is no COPY."""
    pending = iter(batches)
    first = next(pending, None)
    if first is None:
        return
    with cursor.copy(copy_statement(table, first.schema)) as copy:
        for batch in (first, *pending):
            for text in csv_of(batch, run_id, checkpoint_id):
                copy.write(text)


def csv_of(batch: pa.RecordBatch, run_id: RunId, checkpoint_id: CheckpointId) -> Iterator[bytes]:
    for start in range(0, batch.num_rows, PIECE_ROWS):
        piece = batch.slice(start, PIECE_ROWS)
        tags = [
            pa.repeat(pa.scalar(str(run_id)), piece.num_rows),
            pa.repeat(pa.scalar(int(checkpoint_id), pa.int64()), piece.num_rows),
        ]
        columns = [*(_exact(column) for column in piece.columns), *tags]
        names = [*piece.schema.names, RUN, CHECKPOINT]
        output = pa.BufferOutputStream()
        pyarrow.csv.write_csv(pa.table(columns, names=names), output, _WITHOUT_HEADER)
        yield output.getvalue().to_pybytes()


def _exact(column: pa.Array) -> pa.Array:
    is_short = pa.types.is_float16(column.type) or pa.types.is_float32(column.type)
    return column.cast(pa.float64()) if is_short else column
