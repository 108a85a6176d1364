"""Audits a table of rows by the origin that each row carries: a run and a number."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from enum import Enum, auto
from urllib.parse import quote

import pyarrow as pa
import sqlalchemy as sa

from pipelines.audit.history import Cut, History, Point
from pipelines.audit.report import (
    Covers,
    Difference,
    Rows,
    compared,
    given,
    judged_by_cut,
    total,
)
from pipelines.domain.errors import Rejected
from pipelines.domain.ids import CheckpointId, RunId, Uid
from pipelines.domain.ledger import SinkOutput
from pipelines.state.row_digest import digest_of

NO_ROWS = Rows(0, 0)


class Tags(Enum):
    """What the number in a row's origin means."""

    OF_CHECKPOINT = auto()
    """The checkpoint that gave the row; the row is never written again."""
    OF_NEWEST = auto()
    """The checkpoint that gave the row last."""
    OF_INTERVAL = auto()
    """One more than the previous checkpoint: the writer knows no more while it writes."""


class TaggedRows:
    """`place` begins a sentence, `part` names the same place in a report."""

    def __init__(self, place: str, part: str, tags: Tags) -> None:
        self._place = place
        self._part = part
        self._tags = tags
        self._by_cut: dict[Cut, Rows] = {}

    def add(self, cut: Cut, rows: Rows) -> None:
        self._by_cut[cut] = total([self._by_cut.get(cut, NO_ROWS), rows])

    def stray(self, history: History, sink: Uid) -> Difference | None:
        ours, known = history.known_runs, history.cuts_of(sink)
        cuts = sorted(self._by_cut)
        settled = history.judged(cuts)  # no negative numbers: their checkpoint is not known yet
        for cut in (cut for cut in cuts if cut.run_id not in ours):
            what = f"{self._place} has rows of a run that this one does not descend from."
            return Difference(what, cut, found=self._by_cut[cut])
        if self._tags is Tags.OF_INTERVAL:
            return None  # every interval before a committed point is judged with that point
        for cut in (cut for cut in settled if cut not in known):
            what = f"{self._place} has rows of a checkpoint that gave it none."
            return Difference(what, cut, found=self._by_cut[cut])
        is_at_rest = self._tags is Tags.OF_NEWEST and len(settled) == len(cuts)
        return self._newest_is_gone(history, sink) if is_at_rest else None

    def judge(self, point: Point, sink: Uid) -> Difference | Covers:
        if self._tags is not Tags.OF_INTERVAL:
            return judged_by_cut(point, sink, self._judge)
        outputs = [each for of_cut in point.given_to(sink).values() for each in of_cut]
        found = total(rows for cut, rows in self._by_cut.items() if point.spans(cut))
        return self._compared(point.cut, outputs, found)

    def _judge(self, cut: Cut, outputs: Sequence[SinkOutput]) -> Difference | Covers:
        found = self._by_cut.get(cut, NO_ROWS)
        if self._tags is Tags.OF_NEWEST and found.count < given(outputs).count:
            return Covers.COUNTED
        return self._compared(cut, outputs, found)

    def _compared(
        self, cut: Cut, outputs: Sequence[SinkOutput], found: Rows
    ) -> Difference | Covers:
        judged = compared(cut, outputs, {self._part: found})
        return replace(judged, part=self._part) if isinstance(judged, Difference) else judged

    def _newest_is_gone(self, history: History, sink: Uid) -> Difference | None:
        """As long as no newer rows come, nothing overwrites the rows that were given last."""
        told = [each for point in history.committed for each in point.given_to(sink).items()]
        for cut, outputs in told[-1:]:
            if cut not in self._by_cut and given(outputs).count:
                what = f"{self._place} has none of the rows that were given to it last."
                return Difference(what, cut, given(outputs), NO_ROWS)
        return None


_ORIGIN, _RUNS = "ftdash_origin", "ftdash_runs"
_RUN_STEP = 1 << 40
_ROWS = 8_192
_STREAMED = {"yield_per": _ROWS}


class TableOutput:
    """`schema` is that of the rows that the sink takes. Reads the whole table when constructed."""

    def __init__(self, url: str, table: str, schema: pa.Schema, tags: Tags) -> None:
        """Raises Rejected when the database does not answer."""
        self._table = table
        self._schema = schema
        self._is_exact = not any(_loses_digits(field.type) for field in schema)
        self._rows = TaggedRows(f"Table {table}", table, tags)
        try:
            self._read(url)
        except (sa.exc.SQLAlchemyError, ValueError) as error:  # ValueError: text that is no time
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
    """A number without a name belongs to an unknown run. Below 0: no checkpoint has the row
    yet."""
    number, checkpoint_id = divmod(abs(origin), _RUN_STEP)
    sign = -1 if origin < 0 else 1
    return Cut(runs.get(number, RunId(f"number {number}")), CheckpointId(sign * checkpoint_id))


def _of_what_exists(url: sa.URL) -> sa.URL:
    """Keeps SQLite from creating a missing file."""
    if url.get_backend_name() != "sqlite":
        return url
    return url.set(
        database=f"file:{quote(url.database or '')}", query={"mode": "rw", "uri": "true"}
    )


def _loses_digits(kind: pa.DataType) -> bool:
    """Databases keep only microseconds."""
    return bool(pa.types.is_timestamp(kind) and kind.unit == "ns")
