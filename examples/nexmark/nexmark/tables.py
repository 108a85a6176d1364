"""The input of a query: the three kinds of events, with the columns that it names."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pipelines.connectors import ParquetFiles, SeededGenerator
from pipelines.stream import Environment, Stream

from nexmark.generator import AUCTION, BID, PERSON, Kind

Columns = Mapping[str, pa.Array]
Source = ParquetFiles | SeededGenerator


@dataclass(frozen=True, slots=True)
class Tables:
    """`source` makes a source for the events of a kind, with some of their columns."""

    env: Environment
    source: Callable[[Kind, Sequence[str]], Source]

    def persons(self, *columns: str) -> Stream:
        return self._read(PERSON, columns)

    def auctions(self, *columns: str) -> Stream:
        return self._read(AUCTION, columns)

    def bids(self, *columns: str) -> Stream:
        return self._read(BID, columns)

    def _read(self, kind: Kind, columns: Sequence[str]) -> Stream:
        return self.env.source(self.source(kind, columns), uid=f"{kind.name}s")


def renamed(stream: Stream, names: Mapping[str, str], uid: str) -> Stream:
    """Selects and renames columns: {name: new name}. Event time stays if its name does."""
    schema = pa.schema([(new, stream.schema.field(old).type) for old, new in names.items()])

    def rename(batch: pa.RecordBatch) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays([batch[old] for old in names], schema=schema)

    return stream.map_batches(rename, schema, uid=uid)


def selected(stream: Stream, columns: Sequence[str], uid: str) -> Stream:
    """Selects columns of the stream; a changelog also keeps the kind of each change."""
    kinds = ["row_kind"] if stream.is_changelog else []
    return renamed(stream, {name: name for name in [*columns, *kinds]}, uid)


def computed(
    stream: Stream, schema: pa.Schema, compute: Callable[[pa.RecordBatch], Columns], uid: str
) -> Stream:
    """Takes the columns of `schema` from `compute`, or else from the stream."""

    def apply(batch: pa.RecordBatch) -> pa.RecordBatch:
        made = compute(batch)
        columns = [made[name] if name in made else batch[name] for name in schema.names]
        return pa.RecordBatch.from_arrays(columns, schema=schema)

    return stream.map_batches(apply, schema, uid=uid)


def with_columns(
    stream: Stream,
    more: Mapping[str, pa.DataType],
    compute: Callable[[pa.RecordBatch], Columns],
    uid: str,
) -> Stream:
    """Appends the columns that `compute` makes to all columns of the stream."""
    fields = [*stream.schema, *(pa.field(name, type) for name, type in more.items())]
    return computed(stream, pa.schema(fields), compute, uid)
