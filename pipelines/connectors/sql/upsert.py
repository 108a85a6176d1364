"""Sink: rows of an SQL table, one per key, which may be written again without harm.

Idempotent: a replay overwrites the rows that it wrote before. Rows are visible before their
checkpoint completes, and exact once the checkpoint after a replay has completed. `sql.tables`
decides how a rewind fits the table to a starting point, and how older writers are fenced.

With a changelog, the sink deletes the row of a key when it is taken back. A rewind does not bring
it back, just as it does not restore an overwritten value; the replay takes the row back again.
"""

from dataclasses import KW_ONLY, dataclass, field, replace

import pyarrow as pa
import sqlalchemy as sa

from pipelines.connectors.sink import SinkContext, Superseded, last_changes, newest_of, without_kind
from pipelines.connectors.sql import tables as sql_tables
from pipelines.connectors.sql.database import SqlDatabase, place_of
from pipelines.connectors.sql.tables import ORIGIN, early_origin_of, number_of, origin_of
from pipelines.domain.errors import Rejected
from pipelines.domain.ids import CheckpointId, RunId
from pipelines.domain.ownership import Claim, Holder
from pipelines.domain.snapshots import Json

BUFFER_ROWS = 50_000


@dataclass(frozen=True, slots=True)
class SqlUpsert:
    """Writes rows under a key.

    The rows are visible at once; a replay overwrites them with the same values.

    Args:
        url: the address as SQLAlchemy takes it, of PostgreSQL or SQLite. It is a secret.
        table: the table to write to. It is created if it is absent.
        keys: the key columns, at least one. The newest row of each key stays.
        pipeline: the name of the pipeline. The target belongs to it alone.
        buffer_rows: how many rows are sent at once.

    Building the pipeline raises Rejected if a key column is not in the results. A start raises it
    if the table does not fit.
    """

    url: str = field(repr=False)
    table: str
    keys: tuple[str, ...]
    _: KW_ONLY
    pipeline: str
    buffer_rows: int = BUFFER_ROWS
    applies_changes: bool = field(default=False, repr=False)  # set for a changelog, not by authors

    def applying_changes(self) -> "SqlUpsert":
        """See `AppliesChanges`."""
        return replace(self, applies_changes=True)

    @property
    def guarantee(self) -> str:
        return "exactly-once (idempotent)"

    @property
    def place(self) -> str:
        """See `OwnsPlace`: if two sinks wrote the same row, a rewind could keep only the newer
        one's row, and neither sink could tell its early rows from the other's."""
        database = place_of(self.url)
        is_sqlite = database.startswith("sqlite")
        return f"table {self.table.lower() if is_sqlite else self.table} of {database}"

    def check_columns(self, schema: pa.Schema) -> None:
        """See `ChecksColumns`."""
        self._output(schema)

    def validate(self, schema: pa.Schema) -> None:
        wanted = self._output(schema)
        database = SqlDatabase(self.url)
        try:
            if database.check_reachable():
                database.examine(lambda connection: self._check(connection, database, wanted))
        finally:
            database.close()

    def open(self, context: SinkContext, schema: pa.Schema) -> "SqlWriter":
        output = self._output(schema)
        database = SqlDatabase(self.url)
        number = database.transaction(
            lambda connection: self._enter(connection, database, output, context)
        )
        return SqlWriter(
            database,
            output,
            context,
            number,
            self.buffer_rows,
            applies_changes=self.applies_changes,
        )

    @property
    def target(self) -> str:
        """See `HoldsTarget`."""
        return f"table {self.table}"

    def holder(self) -> Holder | None:
        with SqlDatabase.opened(self.url) as database:
            if not database.is_there():
                return None
            return database.transaction(
                lambda connection: sql_tables.holder_of(connection, self.table)
            )

    def hold(self, claim: Claim) -> None:
        with SqlDatabase.opened(self.url) as database:
            database.transaction(
                lambda connection: sql_tables.hold(connection, self.table, self.pipeline, claim)
            )

    def rewind(
        self, ancestors: list[tuple[RunId, CheckpointId]], run_id: RunId
    ) -> Superseded | None:
        database = SqlDatabase(self.url)
        try:
            items = database.transaction(
                lambda connection: self._rewind(connection, database, ancestors, run_id)
            )
        finally:
            database.close()
        return Superseded(items, f"table {self.table}_superseded") if items else None

    def _output(self, schema: pa.Schema) -> sa.Table:
        if self.applies_changes:
            schema = without_kind(schema)
        missing = next((key for key in self.keys if key not in schema.names), None)
        if missing is not None:
            raise Rejected(f"The key column {missing} of table {self.table} is not in the results.")
        if not self.keys:
            raise Rejected(
                f"Table {self.table} needs key columns to be written again without harm."
            )
        return sql_tables.output_table(self.table, schema, self.keys)

    def _check(self, connection: sa.Connection, database: SqlDatabase, output: sa.Table) -> None:
        sql_tables.check_owner(connection, self.table, self.pipeline)
        sql_tables.check_fits(connection, output, database.name)

    def _enter(
        self,
        connection: sa.Connection,
        database: SqlDatabase,
        output: sa.Table,
        context: SinkContext,
    ) -> int:
        """Returns the number of the run."""
        sql_tables.claim_if_absent(
            connection, database.dialect, self.table, self.pipeline, context.run_id
        )
        sql_tables.pass_fence(connection, self.table, context.run_id, context.attempt)
        self._check(connection, database, output)
        sql_tables.create_if_absent(connection, output, sql_tables.superseded_table(output))
        return number_of(connection, self.table, context.run_id)

    def _rewind(
        self,
        connection: sa.Connection,
        database: SqlDatabase,
        ancestors: list[tuple[RunId, CheckpointId]],
        run_id: RunId,
    ) -> int:
        sql_tables.close_attempts(connection, database.dialect, self.table, self.pipeline, run_id)
        return sql_tables.rewind(
            connection, database.dialect, self.table, newest_of(ancestors), run_id
        )


class SqlWriter:
    """One subtask's rows.

    Guarantee: after `prepare(n)`, every row written is in the table, with n or an earlier
    checkpoint as its origin; a fenced writer changes nothing.

    Rows that are written before their checkpoint is known, because too many are buffered, carry an
    early origin until then.
    """

    def __init__(
        self,
        database: SqlDatabase,
        output: sa.Table,
        context: SinkContext,
        number: int,  # the run's
        buffer_rows: int,
        *,
        applies_changes: bool = False,
    ) -> None:
        self._database = database
        self._output = output
        self._context = context
        self._number = number
        self._upsert = sql_tables.upsert(database.dialect, output)
        self._delete = sql_tables.delete_by_key(output)
        self._applies_changes = applies_changes
        self._buffer: list[pa.RecordBatch] = []
        self._buffered_rows = 0
        self._buffer_rows = buffer_rows
        self._early = early_origin_of(number, (context.attempt << 16) + context.subtask)
        self._has_early_rows = False

    def write(self, batch: pa.RecordBatch) -> None:
        for key in self._output.primary_key:
            if batch.column(key.name).null_count:
                raise Rejected(f"Key column {key.name} of table {self._output.name} is null.")
        self._buffer.append(batch)
        self._buffered_rows += batch.num_rows
        if self._buffered_rows >= self._buffer_rows:
            changes = self._buffered(self._early)
            self._database.transaction(lambda connection: self._write(connection, changes))
            self._forget_buffer()
            self._has_early_rows = True

    def prepare(self, checkpoint_id: CheckpointId) -> list[Json]:
        origin = origin_of(self._number, checkpoint_id)
        changes = self._buffered(origin)
        if self._buffer or self._has_early_rows:
            self._database.transaction(lambda connection: self._settle(connection, changes, origin))
        self._forget_buffer()
        self._has_early_rows = False
        return []

    def commit(self, checkpoint_id: CheckpointId, committables: list[Json]) -> None:
        """Does nothing: the rows are there."""

    def close(self) -> None:
        self._forget_buffer()
        self._database.close()

    def _settle(self, connection: sa.Connection, changes: "_Changes", origin: int) -> None:
        self._write(connection, changes)
        if self._has_early_rows:
            column = self._output.c[ORIGIN]
            mine = sa.update(self._output).where(column == self._early)
            connection.execute(mine.values({column: origin}))

    def _write(self, connection: sa.Connection, changes: "_Changes") -> None:
        context = self._context
        sql_tables.pass_fence(connection, self._output.name, context.run_id, context.attempt)
        if changes.rows:
            connection.execute(self._upsert, changes.rows)
        if changes.gone:
            connection.execute(self._delete, changes.gone)

    def _buffered(self, origin: int) -> "_Changes":
        """The buffered changes. A key is among the rows to write or among those to delete."""
        if not self._buffer:
            return _Changes([], [])
        if not self._applies_changes:
            return _Changes(_rows_of(pa.Table.from_batches(self._buffer), origin), [])
        keys = [key.name for key in self._output.primary_key]
        last = last_changes(self._buffer, keys)
        gone = [
            {sql_tables.KEY_PARAMETER + name: value for name, value in row.items()}
            for row in _in_utc(last.gone).to_pylist()
        ]
        return _Changes(_rows_of(last.kept, origin), gone)

    def _forget_buffer(self) -> None:
        self._buffer, self._buffered_rows = [], 0


@dataclass(frozen=True, slots=True)
class _Changes:
    """Rows to write, and the keys of rows to delete, as parameters of the two statements."""

    rows: list[dict[str, object]]
    gone: list[dict[str, object]]


def _rows_of(table: pa.Table, origin: int) -> list[dict[str, object]]:
    return [row | {ORIGIN: origin} for row in _in_utc(table).to_pylist()]


def _in_utc(table: pa.Table) -> pa.Table:
    """Converts times to UTC, because SQLite does not keep a zone."""
    for index, column in enumerate(table.schema):
        if pa.types.is_timestamp(column.type) and column.type.tz is not None:
            utc = table.column(index).cast(pa.timestamp(column.type.unit, "UTC"))
            table = table.set_column(index, column.name, utc)
    return table
