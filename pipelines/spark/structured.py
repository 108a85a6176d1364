"""The work on a Structured Streaming query that needs Spark: reading its state, repartitioning it.

Rows come through Spark's own source `statestore`, which reads a stopped or a running query and
writes nothing. To change the number of partitions, this uses Spark's offline repartition, which
Spark calls experimental. So it works only on a fork, never on the query itself, and compares the
result.
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
"""Spark takes this version from the session, and refuses if that of the fork differs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateAddress:
    """One store of one operator at the end of one batch. `location`: that of a query, a savepoint
    or a fork."""

    location: str
    batch_id: int
    operator_id: int = 0
    store: str = "default"


def state_rows(spark: SparkSession, address: StateAddress) -> DataFrame:
    """Returns structs `key` and `value`, and `partition_id`. Raises Rejected if Spark refuses."""
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
    """Returns the rows that only `before` has and those that only `after` has, in any partition."""
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
    """Forks a batch, and splits the fork's state into `partitions`. Needs classic Spark, and state
    in RocksDB.

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
    """Splits the state of a fork into `partitions`, and returns the number of rows compared.

    The fork must be of `batch_id`, and no query may have run from it. Spark appends a batch without
    rows. Raises Rejected if Spark refuses, or if a store has different rows after that batch; the
    fork is unusable then.
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
    """Returns Java's message in one line; py4j's own message only says that a method was called."""
    text = error.java_exception.getMessage() if isinstance(error, Py4JJavaError) else str(error)
    return " ".join(str(text).split())


def _compared(spark: SparkSession, tree: Tree, batch_id: int, operator_id: int, store: str) -> int:
    """Returns the row count of one store. Raises Rejected if the next batch has other rows."""
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
