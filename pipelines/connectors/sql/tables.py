"""The tables of `SqlUpsert`: the output, the rows set aside from it, and the fence.

Every output row carries its origin: one number for the run and checkpoint that wrote it last. It is
the run's number times 2^40, plus the checkpoint's. Storing run and checkpoint by name would cost a
short row as much as its values do. `ftdash_runs` maps the numbers to runs: the runs of each table
are counted from 1, in order of arrival. Rows whose checkpoint is not known yet have a negative
origin of their run.

A rewind uses the origin to decide which rows belong to a starting point:

- rows of the lineage stay, and come back if an earlier rewind had set them aside;
- rows of other runs move to `<table>_superseded`, because their points may still be restored;
- rows of the run itself behind its starting point are deleted: no restorable point names them.

If results are written once per key (windows), the table is then exactly the output of the starting
point. If results are overwritten (running totals), the older value is gone: the key is missing
until the deterministic replay writes it again.

This module also creates the tables and columns that results need, checks that existing columns fit
them, and hides where SQLAlchemy supports SQLite and PostgreSQL separately.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.schema import CreateTable

from pipelines.domain.errors import ProtocolError, Rejected, Retryable
from pipelines.domain.ids import Attempt, CheckpointId, RunId
from pipelines.domain.ownership import Claim, Holder, taken

NAME_BYTES_MAX = 63
"""PostgreSQL's limit for the name of a column, and for the longest name made from a table's."""

SqlType = sa.Boolean | sa.BigInteger | sa.Double[float] | sa.Text | sa.Date | sa.DateTime


def check_name(name: str) -> None:
    """PostgreSQL would truncate a longer name, and two tables might become one."""
    if not name or "\0" in name or len(f"{name}_superseded".encode()) > NAME_BYTES_MAX:
        limit = NAME_BYTES_MAX - len("_superseded")
        raise Rejected(f"The table name {name!r} is not one of 1 to {limit} bytes without NUL.")


def check_column_names(names: Sequence[str]) -> None:
    """PostgreSQL would truncate a longer name, and the next start would look for the whole one."""
    for name in names:
        if not name or "\0" in name or len(name.encode()) > NAME_BYTES_MAX:
            raise Rejected(
                f"The column name {name[:NAME_BYTES_MAX]!r} is not one of 1 to {NAME_BYTES_MAX}"
                " bytes without NUL; rename it in the results."
            )
    repeated = next((name for name, count in Counter(names).items() if count > 1), None)
    if repeated is not None:
        raise Rejected(
            f"Two columns of the table would be named {repeated}; rename it in the results."
        )


def takes(found: sa.types.TypeEngine[Any], wanted: sa.types.TypeEngine[Any]) -> bool:
    """True if `found` stores every `wanted` value that fits its size, without a change."""
    if isinstance(found, postgresql.TIMESTAMP):  # SQLite keeps no zone
        return isinstance(wanted, sa.DateTime) and found.timezone == wanted.timezone
    families: dict[type, tuple[type, ...]] = {
        sa.Boolean: (sa.Boolean,),
        sa.BigInteger: (sa.Integer,),
        sa.Double: (sa.Double,),
        sa.Text: (sa.String,),
        sa.Date: (sa.Date,),
        sa.DateTime: (sa.DateTime,),
    }
    return isinstance(found, families[type(wanted)])


def sql_type(field: pa.Field) -> SqlType:
    is_type = pa.types
    if is_type.is_boolean(field.type):
        return sa.Boolean()
    if is_type.is_integer(field.type):
        return sa.BigInteger()
    if is_type.is_floating(field.type):
        return sa.Double()
    if is_type.is_string(field.type) or is_type.is_large_string(field.type):
        return sa.Text()
    if is_type.is_date32(field.type):
        return sa.Date()
    if is_type.is_timestamp(field.type) and field.type.unit != "ns":
        return sa.DateTime(timezone=field.type.tz is not None)
    raise Rejected(f"Column {field.name} of type {field.type} has no counterpart in SQL.")


Insert = sqlite.Insert | postgresql.Insert


def insert_into(dialect: str, table: sa.Table) -> Insert:
    """An insert with ON CONFLICT, which is not in standard SQL."""
    return sqlite.insert(table) if dialect == "sqlite" else postgresql.insert(table)


ORIGIN = "ftdash_origin"
RUN_STEP = 1 << 40
RUNS = sa.Table(
    "ftdash_runs",
    sa.MetaData(),
    sa.Column("sink", sa.Text, primary_key=True),  # the output table
    sa.Column("run", sa.Text, primary_key=True),
    sa.Column("number", sa.BigInteger, nullable=False),
    sa.UniqueConstraint("sink", "number"),
)


def origin_of(number: int, checkpoint_id: CheckpointId) -> int:
    return number * RUN_STEP + checkpoint_id


def early_origin_of(number: int, writer: int) -> int:
    """The origin of rows whose checkpoint is not known yet; `writer` is in 0 to 2^40 - 2."""
    return -number * RUN_STEP - 1 - writer


def is_of_run(origin: sa.ColumnElement[int], number: int) -> sa.ColumnElement[bool]:
    return sa.func.abs(origin).between(number * RUN_STEP, (number + 1) * RUN_STEP - 1)


def is_up_to(
    origin: sa.ColumnElement[int], number: int, checkpoint_id: int
) -> sa.ColumnElement[bool]:
    first = number * RUN_STEP + 1
    return origin.between(first, first - 1 + checkpoint_id)


def numbers_of(connection: sa.Connection, sink: str) -> Mapping[RunId, int]:
    """The numbers of all runs that have written to the table."""
    mine = sa.select(RUNS.c.run, RUNS.c.number).where(RUNS.c.sink == sink)
    return {RunId(row.run): row.number for row in connection.execute(mine)}


def number_of(connection: sa.Connection, sink: str, run_id: RunId) -> int:
    """Numbers the run if it has no number. Raises Retryable if another run took it meanwhile."""
    mine = sa.and_(RUNS.c.sink == sink, RUNS.c.run == run_id)
    number = connection.scalar(sa.select(RUNS.c.number).where(mine))
    if number is None:
        next_number = sa.func.coalesce(sa.func.max(RUNS.c.number), 0) + 1
        row = sa.select(sa.literal(sink), sa.literal(run_id), next_number).where(
            RUNS.c.sink == sink
        )
        columns = ["sink", "run", "number"]
        insert = insert_into(connection.dialect.name, RUNS).from_select(columns, row)
        connection.execute(insert.on_conflict_do_nothing())
        number = connection.scalar(sa.select(RUNS.c.number).where(mine))
    if number is None:
        raise Retryable(f"Another run than {run_id} began to write to table {sink} meanwhile.")
    return int(number)


FENCE = sa.Table(
    "ftdash_fence",
    sa.MetaData(),
    sa.Column("sink", sa.Text, primary_key=True),  # the output table
    sa.Column("pipeline", sa.Text, nullable=False),
    sa.Column("run", sa.Text, nullable=False),
    sa.Column("attempt", sa.BigInteger, nullable=False),  # newest; -1 - n: n, and refused since
)

HOLDERS = sa.Table(  # separate from the fence, whose columns are those of older versions
    "ftdash_holders",
    sa.MetaData(),
    sa.Column("sink", sa.Text, primary_key=True),  # the output table
    sa.Column("run", sa.Text, nullable=False),
    sa.Column("epoch", sa.BigInteger, nullable=False),
    sa.Column("installation", sa.Text, nullable=False),
    sa.Column("started_by", sa.Text, nullable=False),
)

_RUN_OF_OLD = "ftdash_run"
_NARROW = (postgresql.SMALLINT, postgresql.INTEGER)


def output_table(name: str, schema: pa.Schema, keys: Sequence[str]) -> sa.Table:
    """Raises Rejected naming a table or column whose name or type SQL cannot hold."""
    check_name(name)
    check_column_names([*schema.names, ORIGIN])
    columns = [
        sa.Column(field.name, sql_type(field), primary_key=True, autoincrement=False)
        if field.name in keys
        else sa.Column(field.name, sql_type(field))
        for field in schema
    ]
    origin = sa.Column(ORIGIN, sa.BigInteger, nullable=False)
    return sa.Table(name, sa.MetaData(), *columns, origin)


def superseded_table(output: sa.Table) -> sa.Table:
    """The same columns without a key, because several runs may have had a row for the same key."""
    columns = [sa.Column(column.name, column.type) for column in output.columns]
    return sa.Table(f"{output.name}_superseded", sa.MetaData(), *columns)


def create_if_absent(connection: sa.Connection, *tables: sa.Table) -> None:
    for table in tables:
        connection.execute(CreateTable(table, if_not_exists=True))


def upsert(dialect: str, table: sa.Table) -> Insert:
    insert = insert_into(dialect, table)
    keys = [column.name for column in table.primary_key]
    changed = {c.name: insert.excluded[c.name] for c in table.columns if c.name not in keys}
    return insert.on_conflict_do_update(index_elements=keys, set_=changed)


KEY_PARAMETER = "key_of_"
"""The prefix of the parameters of `delete_by_key`; the name of a key column follows it."""


def delete_by_key(table: sa.Table) -> sa.Delete:
    keys = [column == sa.bindparam(KEY_PARAMETER + column.name) for column in table.primary_key]
    return sa.delete(table).where(sa.and_(sa.true(), *keys))


def check_fits(connection: sa.Connection, wanted: sa.Table, database: str) -> None:
    """Raises Rejected if the table exists but misses a column, or differs in a type or its key."""
    inspector = sa.inspect(connection)
    if not inspector.has_table(wanted.name):
        return
    if inspector.dialect.name == "sqlite":
        _check_spelling(inspector.get_table_names(), wanted.name, database)
    found = {c["name"]: c["type"] for c in inspector.get_columns(wanted.name)}
    missing = next((c.name for c in wanted.columns if c.name not in found), None)
    if missing == ORIGIN and _RUN_OF_OLD in found:
        raise Rejected(
            f"Table {wanted.name} of {database} is of an earlier version, which named run and"
            " checkpoint in two columns; name another table, or convert it as"
            " docs/reference/sinks.md says."
        )
    if missing is not None:
        raise Rejected(f"Table {wanted.name} of {database} has no column {missing}.")
    for column in wanted.columns:
        there = found[column.name]
        is_cut_off = column.name == ORIGIN and isinstance(there, _NARROW)
        if is_cut_off or not takes(there, column.type):
            has, needs = (each.compile(connection.dialect) for each in (there, column.type))
            raise Rejected(
                f"Column {column.name} of table {wanted.name} of {database} is {has}, and the"
                f" results need {needs}."
            )
    keys = inspector.get_pk_constraint(wanted.name)["constrained_columns"]
    if set(keys) != {column.name for column in wanted.primary_key}:
        raise Rejected(
            f"Table {wanted.name} of {database} has the primary key ({', '.join(keys)}), not "
            f"({', '.join(column.name for column in wanted.primary_key)})."
        )


def _check_spelling(names: Sequence[str], name: str, database: str) -> None:
    """SQLite treats capital and small letters as equal; nothing else here does."""
    there = next((each for each in names if each.lower() == name.lower()), name)
    if name not in names and there != name:
        raise Rejected(f"Table {name} of {database} is there as {there}; call it by that name.")


def holder_of(connection: sa.Connection, sink: str) -> Holder | None:
    inspector = sa.inspect(connection)
    if not inspector.has_table(FENCE.name):
        return None
    run_id = connection.scalar(sa.select(FENCE.c.run).where(FENCE.c.sink == sink))
    if run_id is None:
        return None
    if inspector.has_table(HOLDERS.name):
        mine = sa.and_(HOLDERS.c.sink == sink, HOLDERS.c.run == run_id)
        row = connection.execute(sa.select(HOLDERS).where(mine)).one_or_none()
        if row is not None:
            return Holder(
                run_id=RunId(row.run),
                epoch=row.epoch,
                installation=row.installation,
                started_by=row.started_by,
            )
    return Holder(run_id=RunId(run_id))


def hold(connection: sa.Connection, sink: str, pipeline: str, claim: Claim) -> None:
    """Refuses writers of other runs from now on. Raises TargetTaken."""
    one_at_a_time(connection)
    create_if_absent(connection, FENCE, RUNS, HOLDERS)
    check_owner(connection, sink, pipeline)
    mine = FENCE.c.sink == sink
    connection.execute(sa.select(FENCE.c.run).where(mine).with_for_update())
    found = holder_of(connection, sink)
    held = claim.admit(found, f"table {sink}")
    if found == held:
        return
    insert = insert_into(connection.dialect.name, FENCE)
    fence = insert.values(sink=sink, pipeline=pipeline, run=held.run_id, attempt=0)
    connection.execute(fence.on_conflict_do_nothing())
    replaced = sa.and_(mine, FENCE.c.run != held.run_id)
    connection.execute(sa.update(FENCE).where(replaced).values(run=held.run_id, attempt=0))
    connection.execute(sa.delete(HOLDERS).where(HOLDERS.c.sink == sink))
    row = sa.insert(HOLDERS).values(
        sink=sink,
        run=held.run_id,
        epoch=held.epoch,
        installation=held.installation,
        started_by=held.started_by,
    )
    connection.execute(row)


def close_attempts(
    connection: sa.Connection, dialect: str, sink: str, pipeline: str, run_id: RunId
) -> None:
    """Refuses all attempts of the run that have written so far. Raises TargetTaken.

    Until the transaction ends, no other run can take the table over.
    """
    claim_if_absent(connection, dialect, sink, pipeline, run_id)
    newest = pass_as_holder(connection, sink, run_id)
    if newest >= 0:
        mine = sa.update(FENCE).where(FENCE.c.sink == sink)
        connection.execute(mine.values(attempt=-1 - newest))


def claim_if_absent(
    connection: sa.Connection, dialect: str, sink: str, pipeline: str, run_id: RunId
) -> None:
    """Raises Rejected if the table belongs to another pipeline."""
    create_if_absent(connection, FENCE, RUNS)
    check_owner(connection, sink, pipeline)
    claim = insert_into(dialect, FENCE).values(sink=sink, pipeline=pipeline, run=run_id, attempt=0)
    connection.execute(claim.on_conflict_do_nothing())


def check_owner(connection: sa.Connection, sink: str, pipeline: str) -> None:
    if not sa.inspect(connection).has_table(FENCE.name):
        return
    owner = connection.scalar(sa.select(FENCE.c.pipeline).where(FENCE.c.sink == sink))
    if owner is not None and owner != pipeline:
        raise Rejected(
            f"Table {sink} belongs to pipeline {owner}; choose another one for {pipeline}."
        )


def pass_fence(
    connection: sa.Connection,
    sink: str,
    run_id: RunId,
    attempt: Attempt,
    *,
    is_shared: bool = False,
) -> None:
    """Raises ProtocolError for a replaced attempt, TargetTaken if another run holds the table.

    If it raises, it has written nothing. The row stays locked until the transaction ends, so that
    no newer writer comes in between. `is_shared` lets in other writers of the same attempt, which
    has passed before.
    """
    there = pass_as_holder(connection, sink, run_id, is_shared=is_shared)
    newest, is_refused = (there, False) if there >= 0 else (-1 - there, True)
    if newest > attempt or (is_refused and newest == attempt):
        follower = f"attempt {newest} does" if newest > attempt else "a newer one begins"
        raise ProtocolError(
            f"attempt {attempt} of run {run_id} may not write to table {sink} any more: {follower}"
        )
    if there != attempt:
        mine = FENCE.c.sink == sink
        connection.execute(sa.update(FENCE).where(mine).values(attempt=attempt))


def pass_as_holder(
    connection: sa.Connection, sink: str, run_id: RunId, *, is_shared: bool = False
) -> int:
    """Returns what the fence says of the run's attempts. Raises TargetTaken."""
    found = sa.select(FENCE.c.run, FENCE.c.attempt).where(FENCE.c.sink == sink)
    row = connection.execute(found.with_for_update(read=is_shared)).one()
    if row.run != run_id:
        holder = holder_of(connection, sink) or Holder(run_id=RunId(row.run))
        raise taken(f"table {sink}", run_id, holder)
    return int(row.attempt)


def rewind(
    connection: sa.Connection, dialect: str, name: str, newest: Mapping[RunId, int], run_id: RunId
) -> int:
    """Returns how many rows of other runs were set aside."""
    inspector = sa.inspect(connection)
    if not inspector.has_table(name) or not inspector.has_table(f"{name}_superseded"):
        return 0
    numbers = numbers_of(connection, name)
    known = {numbers[run]: newest_id for run, newest_id in newest.items() if run in numbers}
    output = _columns_of(inspector, name)
    aside = _columns_of(inspector, f"{name}_superseded")
    if run_id in numbers:
        for table in (output, aside):
            own = is_of_run(table.c[ORIGIN], numbers[run_id])
            connection.execute(sa.delete(table).where(own, sa.not_(_belongs(table, known))))
    foreign = sa.not_(_belongs(output, known))
    count = connection.scalar(sa.select(sa.func.count()).select_from(output).where(foreign)) or 0
    _move(connection, dialect, output, aside, foreign)
    _move(connection, dialect, aside, output, _belongs(aside, known))
    return int(count)


def one_at_a_time(connection: sa.Connection) -> None:
    """Takes a lock, so that no two sessions create the same table at the same moment.

    In PostgreSQL that fails, even with IF NOT EXISTS. The lock ends with the transaction; SQLite
    has one writer at a time anyway.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(sa.func.hashtext("ftdash"))))


def _columns_of(inspector: sa.Inspector, name: str) -> sa.Table:
    """Only the columns: keys, indexes and comments take longer to read."""
    found = inspector.get_columns(name)
    return sa.Table(name, sa.MetaData(), *(sa.Column(c["name"], c["type"]) for c in found))


def _move(
    connection: sa.Connection,
    dialect: str,
    source: sa.Table,
    target: sa.Table,
    which: sa.ColumnElement[bool],
) -> None:
    names = [column.name for column in source.columns]
    rows = sa.select(*(source.c[name] for name in names)).where(which)
    connection.execute(
        insert_into(dialect, target).from_select(names, rows).on_conflict_do_nothing()
    )
    connection.execute(sa.delete(source).where(which))


def _belongs(table: sa.Table, newest: Mapping[int, int]) -> sa.ColumnElement[bool]:
    """`newest`: for each run number, the checkpoint up to which its rows belong to the lineage."""
    origin = table.c[ORIGIN]
    return sa.or_(sa.false(), *(is_up_to(origin, *each) for each in newest.items()))
