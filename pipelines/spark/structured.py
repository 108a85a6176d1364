"""What needs Spark about a Structured Streaming query: rows of its state, and other partitions.

Rows come through Spark's own source `statestore`, which reads a stopped or a running query and
writes nothing. Other partitions come from Spark's offline repartition, which Spark calls
experimental: it works on a fork here, never on the query itself, and its result is compared.
"""

from dataclasses import dataclass, replace

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from pipelines.domain.errors import Rejected
from pipelines.storage.trees import Tree
from pipelines.structured.directory import read_tree
from pipelines.structured.fork import Boundaries, Fork, ForkRequest, fork
from pipelines.structured.query import QueryDirectory, Store
from pipelines.structured.repartition import refusals
from pipelines.structured.savepoints import committed_batch

FORMAT = "spark.sql.streaming.stateStore.checkpointFormatVersion"
"""Spark takes it from the session, and refuses if the fork's is another one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateAddress:
    """One store of one operator at the end of one batch. `location`: of a query, a savepoint or a
    fork."""

    location: str
    batch_id: int
    operator_id: int = 0
    store: str = "default"


def state_rows(spark: SparkSession, address: StateAddress) -> DataFrame:
    """`key` and `value` as structs, with `partition_id`. Raises Rejected if Spark refuses."""
    reader = spark.read.format("statestore").option("batchId", address.batch_id)
    reader = reader.option("operatorId", address.operator_id).option("storeName", address.store)
    try:
        return reader.load(address.location)
    except PySparkException as error:
        raise Rejected(
            f"Spark cannot read the state of operator {address.operator_id}, store"
            f" {address.store}, at batch {address.batch_id} of {address.location}: {error}"
        ) from error


def state_difference(
    spark: SparkSession, before: StateAddress, after: StateAddress
) -> tuple[DataFrame, DataFrame]:
    """Rows that only `before` has, and rows that only `after` has, in whatever partition."""
    rows = [state_rows(spark, each).select("key", "value") for each in (before, after)]
    return rows[0].exceptAll(rows[1]), rows[1].exceptAll(rows[0])


def fork_repartitioned(
    spark: SparkSession,
    source: Tree,
    query: QueryDirectory,
    target: Tree,
    request: ForkRequest,
    *,
    partitions: int,
) -> Fork:
    """Fork a batch, and give the fork's state that number of partitions. Needs classic Spark, and
    state of RocksDB.

    If Spark refuses, or if a row differs afterwards, this raises Rejected and nothing remains.
    """
    keeps = request.boundaries is Boundaries.SAME
    batch = committed_batch(query, request.batch_id)
    for text in refusals(query, batch, partitions, keeps_boundaries=keeps):
        raise Rejected(text)
    made = fork(source, query, target, request)
    try:
        repartition(spark, target, request.batch_id, partitions)
    except BaseException:
        target.delete_all()
        raise
    return replace(made, next_batch=made.next_batch + 1)


def repartition(spark: SparkSession, tree: Tree, batch_id: int, partitions: int) -> int:
    """Give a fork of that batch, from which no query has run, that number of partitions; the number
    of rows that were compared.

    Spark appends a batch without rows. Every store must hold the same rows before and after it;
    else, or if Spark refuses, this raises Rejected, and the fork is of no use any more.
    """
    query = read_tree(tree)
    before = spark.conf.get(FORMAT)
    spark.conf.set(FORMAT, "2" if query.store is Store.ROCKSDB_UNIQUE else "1")
    try:
        spark._streamingCheckpointManager.repartition(tree.location, partitions)
        return sum(
            _compared(spark, tree, batch_id, operator.operator_id, store.name)
            for operator in query.operators
            for store in operator.stores
        )
    except (PySparkException, Py4JError) as error:
        raise Rejected(f"Spark does not repartition {tree.location}: {_said(error)}") from error
    finally:
        spark.conf.set(FORMAT, str(before))


def _said(error: Exception) -> str:
    """In one line. What py4j says itself is only that a method was called."""
    text = error.java_exception.getMessage() if isinstance(error, Py4JJavaError) else str(error)
    return " ".join(str(text).split())


def _compared(spark: SparkSession, tree: Tree, batch_id: int, operator_id: int, store: str) -> int:
    """How many rows one store has at the batch; it has the same ones at the next."""
    before, after = (
        StateAddress(location=tree.location, batch_id=each, operator_id=operator_id, store=store)
        for each in (batch_id, batch_id + 1)
    )
    lost, gained = state_difference(spark, before, after)
    if lost.limit(1).count() or gained.limit(1).count():
        raise Rejected(
            f"The repartition changed the state of operator {operator_id}, store {store}."
        )
    return int(state_rows(spark, before).count())
