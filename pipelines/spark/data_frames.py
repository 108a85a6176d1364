"""DataFrames at both ends of a run: written to the files that a run reads, and read from a point.

Each executor writes its partitions of a DataFrame into the files of a `DataFrameRows`. This module
chooses the Spark types of the rows: another Spark type represents an Arrow type that Spark does not
have, and never loses a value. It makes the files durable before anything reads them.

`read_state` returns the state in a savepoint or checkpoint. Executors read a point's files, one
task each, and verify length and digest; the driver collects nothing. It works for every storage,
for the open format and for the backends' own files. Any program can read a canonical savepoint.

Sources: Spark's `from_arrow_type`, which refuses unsigned integers and assumes microseconds;
Flink's State Processor API (`SavepointReader`), by uid and name instead of classes.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.functions import col
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from pipelines.bus.inbox import reporting_damage
from pipelines.connectors.files.data_frame import DataFrameRows, name_of_part
from pipelines.domain.errors import Rejected
from pipelines.domain.run import scheme_of
from pipelines.domain.snapshots import Manifest, StateHandle
from pipelines.points.browsing import rows_of
from pipelines.runtime.clocks import SystemClock
from pipelines.storage.stores import CheckpointStores

_SIGNED = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
    pa.float16(): pa.float32(),
    pa.large_string(): pa.string(),
    pa.large_binary(): pa.binary(),
    pa.date64(): pa.date32(),
}


def readable_schema(schema: pa.Schema) -> pa.Schema:
    return pa.schema([pa.field(f.name, _readable(f.type), f.nullable) for f in schema])


def as_spark_reads(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Returns the same rows in types that Spark has."""
    schema = readable_schema(batch.schema)
    if schema.equals(batch.schema):
        return batch
    arrays = [column.cast(field.type) for column, field in zip(batch.columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _readable(column_type: pa.DataType) -> pa.DataType:
    types = pa.types
    if types.is_timestamp(column_type):
        return pa.timestamp("us", column_type.tz)
    if types.is_duration(column_type):
        return pa.duration("us")
    if types.is_time(column_type):
        return pa.time64("us")
    if types.is_dictionary(column_type):
        return _readable(column_type.value_type)
    if types.is_list(column_type) or types.is_large_list(column_type):
        return pa.list_(_readable(column_type.value_type))
    if types.is_map(column_type):
        return pa.map_(_readable(column_type.key_type), _readable(column_type.item_type))
    if types.is_struct(column_type):
        return pa.struct([pa.field(f.name, _readable(f.type), f.nullable) for f in column_type])
    return _SIGNED.get(column_type, column_type)


ROW_GROUP_ROWS = 65_536
"""How many rows a reader that begins in the middle can skip at once."""

WRITTEN = "rows long"


def keep_rows(session: SparkSession, source: DataFrameRows) -> int:
    """Returns the row count. Raises Rejected if the DataFrame cannot be made or does not fit."""
    frame = _loaded(session, source)
    _check_fits(frame, source)
    chosen = frame.select(*(_named(place, c.name) for place, c in enumerate(source.schema)))
    if source.timestamp_column is not None:
        place = source.schema.get_field_index(source.timestamp_column)
        chosen = chosen.sortWithinPartitions(chosen[place])
    rows = source.begin()
    with_files = chosen.mapInArrow(_part_writer(rows, source.schema), WRITTEN)
    try:
        counts = [part.rows for part in with_files.collect()]
    except PySparkException as error:
        raise Rejected(
            f"The DataFrame for {source.directory} could not be written: {_said(error)}."
        ) from error
    source.finish(rows)
    return sum(counts)


def _loaded(session: SparkSession, source: DataFrameRows) -> DataFrame:
    """Calls the author's function, which may raise any exception. Raises Rejected."""
    try:
        frame = source.load(session)
    except Exception as error:
        raise Rejected(
            f"The DataFrame for {source.directory} cannot be made: {_said(error)}."
        ) from error
    if not isinstance(frame, DataFrame):
        raise Rejected(
            f"The function that makes the rows of {source.directory} returned"
            f" {type(frame).__name__}, not a DataFrame."
        )
    return frame


def _check_fits(frame: DataFrame, source: DataFrameRows) -> None:
    wanted = readable_schema(source.schema)
    found = to_arrow_schema(frame.schema, timezone="UTC")
    for column in wanted:
        if column.name not in found.names:
            raise Rejected(f"The DataFrame for {source.directory} has no column {column.name}.")
        type_ = found.field(column.name).type
        if type_ != column.type:
            raise Rejected(
                f"Column {column.name} of the DataFrame for {source.directory} is {type_}, not"
                f" {column.type}; cast it."
            )


def _part_writer(
    rows: Path, schema: pa.Schema
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Returns a function that writes one partition in an executor. A retried task writes its whole
    file again."""

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context: Any = TaskContext.get()
        part = rows / name_of_part(context.partitionId())
        unfinished = part.with_name(f".{part.name}-{context.taskAttemptId()}")
        count = 0
        with unfinished.open("wb") as file:
            with pq.ParquetWriter(file, schema) as writer:
                for batch in batches:
                    writer.write_batch(_cast(batch, schema), ROW_GROUP_ROWS)
                    count += batch.num_rows
            file.flush()
            os.fsync(file.fileno())
        unfinished.rename(part) if count else unfinished.unlink()
        yield pa.record_batch({"rows": pa.array([count], pa.int64())})

    return write


def _cast(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Truncates times to what the type can store; any other loss is an error."""
    arrays = [
        batch.column(place).cast(column.type, safe=not pa.types.is_timestamp(column.type))
        for place, column in enumerate(schema)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _named(place: int, column: str) -> Column:
    """Renames the column to its place, because Spark reads a dot in a name as a struct's field."""
    quoted = column.replace("`", "``")
    return col(f"`{quoted}`").alias(f"column_{place}")


def _said(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")


FOUND_BY = "read_state"


def read_state(spark: SparkSession, path: str, uid: str, state: str) -> DataFrame:
    """Returns the rows of one state of one operator: key columns, value columns, `__key_group`.

    A batch list also has `__namespace`, such as the window that its rows belong to. The types are
    those of the state if Spark has them. Unsigned integers become the next wider signed ones,
    seconds become microseconds.

    Raises:
        Rejected: the point has no such operator or state; the message lists those that it has.
        CorruptSnapshot: there is no point at `path`, or its manifest is damaged. The action that
            reads a damaged file raises an error that names it. If the point is in the directories
            of a run under way, its driver is asked to check its points.
    """
    location = path if scheme_of(path) else os.path.abspath(path)
    with reporting_damage(location, SystemClock(), found_by=FOUND_BY):
        manifest = _store(location).manifest(location)
    handles = handles_of(manifest, location, uid, state)
    schema = _schema_of(spark, location, handles[0])
    parts = spark.range(0, len(handles), 1, len(handles))
    return parts.mapInArrow(_reader(location, handles), from_arrow_schema(readable_schema(schema)))


def handles_of(manifest: Manifest, location: str, uid: str, state: str) -> list[StateHandle]:
    """Returns the handles of every subtask that has rows. Raises Rejected, see `read_state`."""
    by_state: dict[str, list[StateHandle]] = {}
    uids = sorted({o.uid for subtask in manifest.subtasks for o in subtask.operators})
    for subtask in manifest.subtasks:
        for operator in subtask.operators:
            if operator.uid == uid:
                for handle in operator.states:
                    by_state.setdefault(handle.state, []).append(handle)
    if uid not in uids:
        raise Rejected(f"There is no operator {uid!r} in {location}; it has {_listed(uids)}.")
    if state not in by_state:
        raise Rejected(
            f"The operator {uid!r} has no rows in a state {state!r} in {location}; it has rows in"
            f" {_listed(sorted(by_state))}."
        )
    return by_state[state]


def _schema_of(spark: SparkSession, location: str, handle: StateHandle) -> pa.Schema:
    """Has an executor read the schema: the driver may be unable to reach the files."""
    [row] = (
        spark.range(0, 1, 1, 1)
        .mapInArrow(_schema_reader(location, handle), "schema binary")
        .collect()
    )
    return pa.ipc.read_schema(pa.py_buffer(bytes(row.schema)))


def _schema_reader(
    location: str, handle: StateHandle
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    encoded = msgspec.json.encode(handle)

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        list(batches)
        schema = next(iter(_rows(location, encoded))).schema
        yield pa.record_batch({"schema": pa.array([schema.serialize().to_pybytes()])})

    return read


def _reader(
    location: str, handles: list[StateHandle]
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    encoded = [msgspec.json.encode(handle) for handle in handles]

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column("id").to_pylist():
                yield from map(as_spark_reads, _rows(location, encoded[number]))

    return read


def _rows(location: str, encoded: bytes) -> Iterator[pa.RecordBatch]:
    handle = msgspec.json.decode(encoded, type=StateHandle)
    with reporting_damage(location, SystemClock(), found_by=FOUND_BY):
        yield from rows_of(_store(location), location, handle)


def _store(location: str) -> CheckpointStores:
    """Returns a store with access to the directory around the point: shared files are there."""
    return CheckpointStores([location.rstrip("/").rpartition("/")[0]], max_memory_state_bytes=0)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(repr(name) for name in names) or "nothing"
