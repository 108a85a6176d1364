"""The origin of a row: one number for the run and checkpoint that wrote it.

It is the run's number times 2^40, plus the checkpoint's. Storing run and checkpoint by name would
cost a short row as much as its values do. `ftdash_runs` maps the numbers: the runs of each table
are counted from 1, in order of arrival. Rows whose checkpoint is not known yet have a negative
origin of their run.
"""

from collections.abc import Mapping

import sqlalchemy as sa

from pipelines.connectors.sql.columns import insert_into
from pipelines.domain.errors import Retryable
from pipelines.domain.ids import CheckpointId, RunId

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
    """For rows whose checkpoint is not known yet; `writer` is from 0 to less than 2^40 - 1."""
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
