"""Audits a table of rows, by the run and checkpoint that each row carries.

Rows that are only inserted are compared with their digest. Of upserted rows, one that was written
again carries the newer checkpoint only, and what it was before is gone. So of each checkpoint at
most as many can be there as were given. Where they are exactly as many, none was overwritten, and
their digest is compared too; where they are fewer, they are counted.

Reads with plain selects on a table as the database describes it.
"""

from collections.abc import Sequence
from dataclasses import replace
from urllib.parse import quote

import pyarrow as pa
import sqlalchemy as sa

from pipelines.audit.history import Cut, History
from pipelines.audit.output import Covers, Difference, Rows, compared, given, total
from pipelines.domain.errors import Rejected
from pipelines.domain.ids import CheckpointId, RunId, Uid
from pipelines.domain.ledger import SinkOutput
from pipelines.state.row_digest import digest_of

_RUN, _CHECKPOINT = "ftdash_run", "ftdash_checkpoint"
_ROWS = 8_192
_STREAMED = {"yield_per": _ROWS}


class TableOutput:
    """`schema` is of the rows that the sink takes. The whole table is read when it is made."""

    def __init__(self, url: str, table: str, schema: pa.Schema, *, is_upserted: bool) -> None:
        """Raises Rejected when the database does not answer."""
        self._table = table
        self._is_upserted = is_upserted
        self._schema = schema
        self._is_exact = not any(_loses_digits(field.type) for field in schema)
        self._by_cut: dict[Cut, Rows] = {}
        try:
            self._read(url)
        except (sa.exc.SQLAlchemyError, ValueError) as error:  # text that is no time
            name = sa.make_url(url).render_as_string(hide_password=True)
            raise Rejected(f"The table {table} of {name} cannot be read for the audit.") from error

    def stray(self, history: History, sink: Uid) -> Difference | None:
        ours, known = history.known_runs, history.cuts_of(sink)
        cuts = sorted(self._by_cut)
        settled = history.judged(cuts)  # not so: a negative number, the checkpoint is not known yet
        for cut in (cut for cut in cuts if cut.run_id not in ours):
            what = f"Table {self._table} has rows of a run that this one does not descend from."
            return Difference(what, cut, found=self._by_cut[cut])
        for cut in (cut for cut in settled if cut not in known):
            what = f"Table {self._table} has rows of a checkpoint that gave it none."
            return Difference(what, cut, found=self._by_cut[cut])
        is_at_rest = self._is_upserted and len(settled) == len(cuts)
        return self._newest_is_gone(history, sink) if is_at_rest else None

    def judge(self, cut: Cut, outputs: Sequence[SinkOutput]) -> Difference | Covers:
        expected, found = given(outputs), self._by_cut.get(cut, Rows(0, 0))
        if self._is_upserted and found.count < expected.count:
            return Covers.COUNTED
        judged = compared(cut, outputs, {self._table: found})
        return replace(judged, part=self._table) if isinstance(judged, Difference) else judged

    def _newest_is_gone(self, history: History, sink: Uid) -> Difference | None:
        """Of the rows that were given last none is overwritten, as long as no newer ones come."""
        told = [each for point in history.committed for each in point.given_to(sink).items()]
        for cut, outputs in told[-1:]:
            if cut not in self._by_cut and given(outputs).count:
                what = f"Table {self._table} has none of the rows that were given to it last."
                return Difference(what, cut, given(outputs), Rows(0, 0))
        return None

    def _read(self, url: str) -> None:
        engine = sa.create_engine(_of_what_exists(sa.make_url(url)))
        try:
            with engine.connect() as connection:
                if sa.inspect(connection).has_table(self._table):
                    table = sa.Table(self._table, sa.MetaData(), autoload_with=connection)
                    found = connection.execute(sa.select(table), execution_options=_STREAMED)
                    for rows in found.mappings().partitions(_ROWS):
                        self._take(rows)
        finally:
            engine.dispose()

    def _take(self, rows: Sequence[sa.RowMapping]) -> None:
        tagged: dict[Cut, list[sa.RowMapping]] = {}
        for row in rows:
            cut = Cut(RunId(row[_RUN]), CheckpointId(row[_CHECKPOINT]))
            tagged.setdefault(cut, []).append(row)
        for cut, own in tagged.items():
            self._by_cut[cut] = total([self._by_cut.get(cut, Rows(0, 0)), self._digested(own)])

    def _digested(self, rows: Sequence[sa.RowMapping]) -> Rows:
        if not self._is_exact:
            return Rows(len(rows), None)
        try:
            columns = [pa.array([row[f.name] for row in rows], f.type) for f in self._schema]
        except pa.ArrowException:
            return Rows(len(rows), 0)  # no such rows were ever given
        return Rows(len(rows), digest_of(pa.RecordBatch.from_arrays(columns, schema=self._schema)))


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
