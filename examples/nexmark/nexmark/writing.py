"""Writes the events for other systems: Parquet and CSV files, and Kafka topics.

The files of a kind overlap in event time: with n files, each has every n-th fifty of all events, in
order. CSV files have no header, and their times are milliseconds since 1970.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq
from pipelines.connectors import ExactlyOnceKafka, KafkaAddress
from pipelines.local import run_local
from pipelines.stream import Environment, Rejected

from nexmark.columns import TIME
from nexmark.generator import EPOCH_EVENTS, KINDS, Kind, Model
from nexmark.sources import generated, positions_of_split

BATCH_ROWS = 65_536
KAFKA_SPLITS = 2


def write_parquet(
    directory: Path, model: Model, *, events: int, files: int, kinds: Sequence[Kind] = KINDS
) -> None:
    for kind, split, path in _files(directory, "parquet", events, files, kinds):
        with pq.ParquetWriter(path, kind.schema) as writer:
            for batch in _batches(kind, model, split, events, files):
                writer.write_batch(batch, row_group_size=BATCH_ROWS)


def write_csv(directory: Path, model: Model, *, events: int, files: int) -> None:
    options = csv.WriteOptions(include_header=False, quoting_style="needed")
    for kind, split, path in _files(directory, "csv", events, files):
        schema = with_integer_times(kind.schema)
        with csv.CSVWriter(path, schema, write_options=options) as writer:
            for batch in _batches(kind, model, split, events, files):
                writer.write_batch(batch.cast(schema))


def write_kafka(address: KafkaAddress, model: Model, *, events: int) -> None:
    """Writes JSON, exactly once, to the existing topics `person`, `auction` and `bid`."""
    env = Environment()
    for kind in KINDS:
        columns = kind.schema.names
        source = generated(kind, model, events=events, splits=KAFKA_SPLITS, columns=columns)
        stream = env.source(source, uid=kind.name)
        stream.sink(
            ExactlyOnceKafka(address, kind.name, pipeline="nexmark"), uid=f"{kind.name}-out"
        )
    run_local(env.build())


def with_integer_times(schema: pa.Schema) -> pa.Schema:
    return pa.schema([(f.name, pa.int64() if f.type == TIME else f.type) for f in schema])


def _files(
    directory: Path, ending: str, events: int, files: int, kinds: Sequence[Kind] = KINDS
) -> Iterator[tuple[Kind, int, Path]]:
    """Yields hidden names to write the files under, so that each file appears whole."""
    if events < EPOCH_EVENTS * files or events % (EPOCH_EVENTS * files):
        raise Rejected(
            f"{events} events cannot be dealt to {files} files; give a multiple of"
            f" {EPOCH_EVENTS * files}."
        )
    for kind in kinds:
        (directory / kind.name).mkdir(parents=True, exist_ok=True)
        for split in range(files):
            path = directory / kind.name / f"{kind.name}-{split:03d}.{ending}"
            hidden = path.with_name(f".{path.name}")
            yield kind, split, hidden
            hidden.rename(path)


def _batches(
    kind: Kind, model: Model, split: int, events: int, files: int
) -> Iterator[pa.RecordBatch]:
    rows = events // EPOCH_EVENTS // files * kind.count
    for begin in range(0, rows, BATCH_ROWS):
        offsets = np.arange(begin, min(rows, begin + BATCH_ROWS))
        positions = positions_of_split(kind, split, files, offsets)
        yield kind.made(model, kind.numbers(positions))
