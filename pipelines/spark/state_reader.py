"""Reads the state in a savepoint or checkpoint as a Spark DataFrame.

Executors read a point's files, one task each, and verify length and digest; the driver collects
nothing. Works for every storage, for the open format and for the backends' own files. Any program
can read a canonical savepoint. Source: Flink's State Processor API (`SavepointReader`), by uid and
name instead of classes.
"""

import os
from collections.abc import Callable, Iterator, Sequence

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from pipelines.bus.inbox import reporting_damage
from pipelines.domain.errors import Rejected
from pipelines.domain.run import scheme_of
from pipelines.domain.snapshots import Manifest, StateHandle
from pipelines.points.browsing import rows_of
from pipelines.runtime.clocks import SystemClock
from pipelines.spark.data_frames import as_spark_reads, readable_schema
from pipelines.storage.stores import CheckpointStores

FOUND_BY = "read_state"


def read_state(spark: SparkSession, path: str, uid: str, state: str) -> DataFrame:
    """The rows of one state of one operator: its key columns, its value columns, `__key_group`.

    A batch list also has `__namespace`, such as the window that its rows belong to. The types
    are those of the state, as far as Spark has them: unsigned integers become the next wider
    signed ones, seconds become microseconds.

    Raises:
        Rejected: the point has no such operator or state; the message lists what there is.
        CorruptSnapshot: there is no point at `path`, or its manifest is damaged. The action that
            reads a damaged file raises an error that names it. If the point lies in the
            directories of a run under way, its driver is asked to read its points.
    """
    location = path if scheme_of(path) else os.path.abspath(path)
    with reporting_damage(location, SystemClock(), found_by=FOUND_BY):
        manifest = _store(location).manifest(location)
    handles = handles_of(manifest, location, uid, state)
    schema = _schema_of(spark, location, handles[0])
    parts = spark.range(0, len(handles), 1, len(handles))
    return parts.mapInArrow(_reader(location, handles), from_arrow_schema(readable_schema(schema)))


def handles_of(manifest: Manifest, location: str, uid: str, state: str) -> list[StateHandle]:
    """The handles of every subtask that holds rows. Raises Rejected, see `read_state`."""
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
    """An executor reads it: the driver may not even reach the files."""
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
    """Includes the directory around the point: checkpoints share files that lie there."""
    return CheckpointStores([location.rstrip("/").rpartition("/")[0]], max_memory_state_bytes=0)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(repr(name) for name in names) or "nothing"
