"""Audits a directory of output files: reads each again with plain Arrow, or as lines of JSON."""

import base64
import json
import re
from collections.abc import Callable, Iterator, Sequence
from datetime import date
from decimal import Decimal
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.audit.history import Cut, History, Point
from pipelines.audit.report import Covers, Difference, Rows, compared, given, judged_by_cut
from pipelines.domain.ids import CheckpointId, RunId, Uid
from pipelines.domain.ledger import SinkOutput
from pipelines.state.row_digest import MODULUS, digest_of

_LINES = 8_192


def batches_of(path: Path, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Raises ValueError or ArrowException when a line is no row of the schema."""
    with path.open("rb") as file:
        while lines := list(islice(file, _LINES)):
            yield batch_of(lines, schema)


def batch_of(lines: Sequence[bytes], schema: pa.Schema) -> pa.RecordBatch:
    """Raises ValueError or ArrowException when a line is no row of the schema."""
    try:
        rows = [json.loads(line) for line in lines]
        if any(not isinstance(row, dict) or row.keys() != set(schema.names) for row in rows):
            raise ValueError("a line has other columns than the sink takes")
        columns = [_column([row[field.name] for row in rows], field.type) for field in schema]
    except (ArithmeticError, RecursionError) as error:  # of Decimal, and of endless nesting
        raise ValueError(str(error)) from error
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def is_ambiguous(batch: pa.RecordBatch) -> bool:
    return any(pa.types.is_nested(c.type) or (_is_float(c) and c.null_count) for c in batch.columns)


def _is_float(column: pa.Array) -> bool:
    return bool(pa.types.is_floating(column.type))


def _column(values: list[object], kind: pa.DataType) -> pa.Array:
    if pa.types.is_nested(kind):
        return pa.nulls(len(values), kind)  # ambiguous anyway
    if pa.types.is_timestamp(kind):
        return pa.array(values, pa.string()).cast(kind)
    known = [None if value is None else _value(value, kind) for value in values]
    return pa.array(known, kind)


def _value(value: object, kind: pa.DataType) -> object:
    if pa.types.is_decimal(kind):
        return Decimal(str(value))
    if pa.types.is_date(kind):
        return date.fromisoformat(str(value))
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return base64.b64decode(str(value), validate=True)
    return value


_NAME = re.compile(r"part-(?P<run>.+)-(?P<checkpoint>\d{8,})-\d+-\d+\.(parquet|jsonl)")


class FileOutput:
    """`schema` is that of the rows that the sink takes; JSON needs it, Parquet has its own.

    Construct it after reading the journal: it lists the directory at once, and so misses no file
    that the ledger names.
    """

    def __init__(self, directory: Path, schema: pa.Schema) -> None:
        self._directory = directory
        self._schema = schema
        self._by_cut: dict[Cut, set[str]] = {}
        self._strays: list[str] = []
        for name in sorted(file.name for file in directory.glob("[!._]*")):
            self._sort_in(name)

    def stray(self, history: History, sink: Uid) -> Difference | None:
        ours, known = history.known_runs, history.cuts_of(sink)
        for name in self._strays:
            return Difference(f"{name} is no file of this sink.", part=name)
        cuts = sorted(self._by_cut)
        for cut in (cut for cut in cuts if cut.run_id not in ours):
            name = min(self._by_cut[cut])
            what = f"{name} is of a run that this one does not descend from."
            return Difference(what, cut, part=name)
        for cut in (cut for cut in history.judged(cuts) if cut not in known):
            name = min(self._by_cut[cut])
            return Difference(f"{name} is not in the ledger.", cut, part=name)
        return None

    def judge(self, point: Point, sink: Uid) -> Difference | Covers:
        return judged_by_cut(point, sink, self._judge)

    def beside(self, later: History, sink: Uid) -> Difference | None:
        return None

    def _judge(self, cut: Cut, outputs: Sequence[SinkOutput]) -> Difference | Covers:
        expected = {token for output in outputs for token in output.share.tokens}
        names = self._by_cut.get(cut, set())
        for name in sorted(expected - names):
            return Difference(f"{name} is missing.", cut, given(outputs), part=name)
        for name in sorted(names - expected):
            return Difference(f"{name} is not in the ledger.", cut, given(outputs), part=name)
        try:
            parts = {name: self._rows_of(name) for name in sorted(names)}
        except Unreadable as error:
            return Difference(str(error), cut, given(outputs), part=error.name)
        return compared(cut, outputs, parts)

    def _sort_in(self, name: str) -> None:
        match = _NAME.fullmatch(name)
        if match is None:
            self._strays.append(name)
        else:
            cut = Cut(RunId(match["run"]), CheckpointId(int(match["checkpoint"])))
            self._by_cut.setdefault(cut, set()).add(name)

    def _rows_of(self, name: str) -> Rows:
        path = self._directory / name
        try:
            if path.suffix == ".parquet":
                with pq.ParquetFile(path, pre_buffer=False) as file:  # else it reads all ahead
                    return _digested(file.iter_batches())
            return _digested(batches_of(path, self._schema), is_ambiguous)
        except (OSError, ValueError, pa.ArrowException) as error:
            raise Unreadable(name, f"{name} cannot be read: {error}.") from error


class Unreadable(Exception):
    def __init__(self, name: str, what: str) -> None:
        super().__init__(what)
        self.name = name


def _digested(
    batches: Iterator[pa.RecordBatch],
    is_ambiguous: Callable[[pa.RecordBatch], bool] = lambda _: False,
) -> Rows:
    count, digest, is_plain = 0, 0, True
    for batch in batches:
        count += batch.num_rows
        digest += digest_of(batch)
        is_plain = is_plain and not is_ambiguous(batch)
    return Rows(count, digest % MODULUS if is_plain else None)
