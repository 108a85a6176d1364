"""Audits rows by the writer that each row names: in tables of a database, and in Redis hashes.

A row of a table carries its origin: a run and a number. For hashes, an index names the last writer
of each. The audit uses a plain client, no scripts, and reads index and hash in one step of the
server, so a run may continue meanwhile. A hash that only the index has is a difference, and so is
one that the index does not have. All others are judged like upserted rows: see `TaggedRows`.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from enum import Enum, auto
from itertools import islice
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import redis
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
    """The meaning of the number in a row's origin."""

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
        """Looks for the rows that were given last, which only newer rows could overwrite."""
        pairs = [each for point in history.committed for each in point.given_to(sink).items()]
        for cut, outputs in pairs[-1:]:
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
    """A number without a name belongs to an unknown run; below 0, no checkpoint has the row yet."""
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


_KEYS_AT_ONCE = 1_000
_SCORE_STEP = 2**32  # the distance between two runs in a score
_ANSWER_S = 30.0


class RedisOutput:
    """`schema` is that of the rows that the sink takes. Reads all hashes when constructed."""

    def __init__(self, url: str, prefix: str, schema: pa.Schema) -> None:
        """Raises Rejected when the server does not answer."""
        self._schema = schema
        self._index = f"{{{prefix}}}:own:index"
        self._runs = f"{{{prefix}}}:own:runs"
        self._row = f"{{{prefix}}}:row:"
        self._rows = TaggedRows(f"What is under {prefix}", prefix, Tags.OF_NEWEST)
        self._gone: dict[Cut, str] = {}
        self._unknown_key: str | None = None
        try:
            with closing(redis.Redis.from_url(url, socket_timeout=_ANSWER_S)) as client:
                self._read(client)
        except (redis.RedisError, ValueError):  # their texts may hold the address
            raise Rejected(
                f"The Redis hashes under {prefix} cannot be read for the audit: the server does"
                " not answer, or refuses."
            ) from None

    def stray(self, history: History, sink: Uid) -> Difference | None:
        if self._unknown_key is not None:
            what = f"{self._unknown_key} was written by no checkpoint."
            return Difference(what, part=self._unknown_key)
        return self._rows.stray(history, sink)

    def judge(self, point: Point, sink: Uid) -> Difference | Covers:
        for cut in point.given_to(sink):
            if cut in self._gone:
                what = f"{self._gone[cut]}, which the checkpoint wrote, is gone, or no hash."
                return Difference(what, cut, part=self._gone[cut])
        return self._rows.judge(point, sink)

    def beside(self, later: History, sink: Uid) -> Difference | None:
        return None

    def _read(self, client: Any) -> None:
        """1. Take every row of the index with its hash. 2. Take hashes that the index misses."""
        numbers = {int(n): RunId(run.decode()) for run, n in client.hgetall(self._runs).items()}
        seen: set[bytes] = set()  # a scan may return a row twice
        entries = (key for key, _ in client.zscan_iter(self._index, count=_KEYS_AT_ONCE))
        for keys in _chunks(entries):
            new = list(dict.fromkeys(key for key in keys if key not in seen))
            seen.update(new)
            self._take(client, new, numbers)
        prefix = self._row.encode()
        found = client.scan_iter(match=f"{self._row}*", count=_KEYS_AT_ONCE)
        for keys in _chunks(key.removeprefix(prefix) for key in found):
            self._take(client, [key for key in keys if key not in seen], numbers)

    def _take(self, client: Any, keys: Sequence[bytes], numbers: dict[int, RunId]) -> None:
        if not keys:
            return
        step = client.pipeline(transaction=True)
        step.zmscore(self._index, keys)
        for key in keys:
            step.hgetall(self._row.encode() + key)
        scores, *hashes = step.execute(raise_on_error=False)
        if isinstance(scores, Exception):
            raise scores
        by_cut: dict[Cut, list[dict[bytes, bytes]]] = {}
        for key, score, fields in zip(keys, scores, hashes, strict=True):
            name = self._row + key.decode()
            if score is None:  # without fields: a rewind has set it aside meanwhile
                self._unknown_key = self._unknown_key or (name if fields else None)
                continue
            cut = _cut_of_score(int(score), numbers)
            if fields and not isinstance(fields, redis.ResponseError):
                by_cut.setdefault(cut, []).append(fields)
            else:
                self._gone.setdefault(cut, name)
        for cut, rows in by_cut.items():
            self._rows.add(cut, self._digested(rows))

    def _digested(self, rows: Sequence[dict[bytes, bytes]]) -> Rows:
        """Rows with an unknown field, or a value that does not fit its type, were never given."""
        names = {name.encode() for name in self._schema.names}
        if any(not names.issuperset(row) for row in rows):
            return Rows(len(rows), 0)
        try:
            columns = [_column([row.get(f.name.encode()) for row in rows], f) for f in self._schema]
        except (pa.ArrowException, ValueError):
            return Rows(len(rows), 0)
        return Rows(len(rows), digest_of(pa.RecordBatch.from_arrays(columns, schema=self._schema)))


def _cut_of_score(score: int, numbers: dict[int, RunId]) -> Cut:
    """A number without a name belongs to an unknown run."""
    number, checkpoint_id = divmod(score, _SCORE_STEP)
    return Cut(numbers.get(number, RunId(f"number {number}")), CheckpointId(checkpoint_id))


def _column(values: Sequence[bytes | None], field: pa.Field) -> pa.Array:
    texts = [None if value is None else value.decode() for value in values]
    return pa.array(texts, pa.string()).cast(field.type)


def _chunks(keys: Iterator[bytes]) -> Iterator[list[bytes]]:
    while chunk := list(islice(keys, _KEYS_AT_ONCE)):
        yield chunk
