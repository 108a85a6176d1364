"""What needs Spark about a Structured Streaming query: rows of its state, and other partitions.

Rows come through Spark's own source `statestore`, which reads a stopped or a running query and
writes nothing. Other partitions come from Spark's offline repartition, which Spark calls
experimental: it works on a fork here, never on the query itself, and its result is compared.
"""

from dataclasses import dataclass

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from pipelines.domain.errors import Rejected
from pipelines.storage.trees import Tree
from pipelines.structured.directory import read_tree
from pipelines.structured.fork import Fork, ForkRequest, fork
from pipelines.structured.query import QueryDirectory, Store


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

    Spark appends a batch without rows to the fork. Every store must hold the same rows before and
    after it; else, or if Spark refuses, this raises Rejected and nothing remains.
    """
    if query.store not in (Store.ROCKSDB, Store.ROCKSDB_UNIQUE):
        raise Rejected(
            f"Spark repartitions state of RocksDB only, and {query.location} has the store"
            f" {query.store}."
        )
    made = fork(source, query, target, request)
    try:
        spark._streamingCheckpointManager.repartition(target.location, partitions)
        _check_same(spark, target, request.batch_id)
    except (PySparkException, Py4JError) as error:
        target.delete_all()
        raise Rejected(f"Spark does not repartition {query.location}: {error}") from error
    except BaseException:
        target.delete_all()
        raise
    return made


def _check_same(spark: SparkSession, target: Tree, batch_id: int) -> None:
    for operator in read_tree(target).operators:
        for store in operator.stores:
            addresses = [
                StateAddress(
                    location=target.location,
                    batch_id=each,
                    operator_id=operator.operator_id,
                    store=store.name,
                )
                for each in (batch_id, batch_id + 1)
            ]
            lost, gained = state_difference(spark, *addresses)
            if lost.limit(1).count() or gained.limit(1).count():
                raise Rejected(
                    f"The repartition changed the state of operator {operator.operator_id}, store"
                    f" {store.name}; it was undone."
                )
