"""Audits a table of rows, by the origin that each row carries: see `tagged_rows`.

An origin is the number of a run, as `ftdash_runs` tells it, times 2^40, plus a checkpoint's.

Reads with plain selects on a table as the database describes it.
"""

from collections.abc import Mapping, Sequence
from urllib.parse import quote

import pyarrow as pa
import sqlalchemy as sa

from pipelines.audit.history import Cut, History, Point
from pipelines.audit.output import Covers, Difference, Rows
from pipelines.audit.tagged_rows import TaggedRows, Tags
from pipelines.domain.errors import Rejected
from pipelines.domain.ids import CheckpointId, RunId, Uid
from pipelines.state.row_digest import digest_of

_ORIGIN, _RUNS = "ftdash_origin", "ftdash_runs"
_RUN_STEP = 1 << 40
_ROWS = 8_192
_STREAMED = {"yield_per": _ROWS}


class TableOutput:
    """`schema` is of the rows that the sink takes. The whole table is read when it is made."""

    def __init__(self, url: str, table: str, schema: pa.Schema, tags: Tags) -> None:
        """Raises Rejected when the database does not answer."""
        self._table = table
        self._schema = schema
        self._is_exact = not any(_loses_digits(field.type) for field in schema)
        self._rows = TaggedRows(f"Table {table}", table, tags)
        try:
            self._read(url)
        except (sa.exc.SQLAlchemyError, ValueError) as error:  # text that is no time
            name = sa.make_url(url).set(query={}).render_as_string(hide_password=True)
            raise Rejected(f"The table {table} of {name} cannot be read for the audit.") from error

    def stray(self, history: History, sink: Uid) -> Difference | None:
        return self._rows.stray(history, sink)

    def judge(self, point: Point, sink: Uid) -> Difference | Covers:
        return self._rows.judge(point, sink)

    def beside(self, later: History, sink: Uid) -> Difference | None:
        return None

    def _read(self, url: str) -> None:
        engine = sa.create_engine(_of_what_exists(sa.make_url(url)))
        try:
            with engine.connect() as connection:
                if sa.inspect(connection).has_table(self._table):
                    runs = self._runs(connection)
                    found = _all_of(connection, self._table)
                    for rows in found.partitions(_ROWS):
                        self._take(rows, runs)
        finally:
            engine.dispose()

    def _runs(self, connection: sa.Connection) -> Mapping[int, RunId]:
        if not sa.inspect(connection).has_table(_RUNS):
            return {}
        named = _all_of(connection, _RUNS)
        return {row["number"]: RunId(row["run"]) for row in named if row["sink"] == self._table}

    def _take(self, rows: Sequence[sa.RowMapping], runs: Mapping[int, RunId]) -> None:
        tagged: dict[Cut, list[sa.RowMapping]] = {}
        for row in rows:
            tagged.setdefault(_cut(row[_ORIGIN], runs), []).append(row)
        for cut, own in tagged.items():
            self._rows.add(cut, self._digested(own))

    def _digested(self, rows: Sequence[sa.RowMapping]) -> Rows:
        if not self._is_exact:
            return Rows(len(rows), None)
        try:
            columns = [pa.array([row[f.name] for row in rows], f.type) for f in self._schema]
        except pa.ArrowException:
            return Rows(len(rows), 0)  # no such rows were ever given
        return Rows(len(rows), digest_of(pa.RecordBatch.from_arrays(columns, schema=self._schema)))


def _all_of(connection: sa.Connection, name: str) -> sa.MappingResult:
    table = sa.Table(name, sa.MetaData(), autoload_with=connection)
    return connection.execute(sa.select(table), execution_options=_STREAMED).mappings()


def _cut(origin: int, runs: Mapping[int, RunId]) -> Cut:
    """A run whose number is not known is somebody's whose name is not. Below 0: not yet of any
    checkpoint."""
    number, checkpoint_id = divmod(abs(origin), _RUN_STEP)
    sign = -1 if origin < 0 else 1
    return Cut(runs.get(number, RunId(f"number {number}")), CheckpointId(sign * checkpoint_id))


def _of_what_exists(url: sa.URL) -> sa.URL:
    """SQLite would make a file that is not there."""
    if url.get_backend_name() != "sqlite":
        return url
    return url.set(
        database=f"file:{quote(url.database or '')}", query={"mode": "rw", "uri": "true"}
    )


def _loses_digits(kind: pa.DataType) -> bool:
    """Databases keep microseconds."""
    return bool(pa.types.is_timestamp(kind) and kind.unit == "ns")
