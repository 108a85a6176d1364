"""The conditions for dealing the state of a batch to another number of partitions. Pure.

Spark deals it offline, on a fork: `pipelines.spark.structured` asks it to, and compares the rows.
Spark uses the next batch id for the repartition; that batch emits no rows.
Source: Spark 4.3, `OfflineStateRepartitionRunner`.
"""

from collections.abc import Iterator

from pipelines.structured.doctor import NEEDS_OTHER_PARTITIONS
from pipelines.structured.query import Batch, Operator, QueryDirectory, Store

PARTITIONS_MAX = 10_000
"""A limit, because each partition has a folder for every store."""

ROCKSDB = (Store.ROCKSDB, Store.ROCKSDB_UNIQUE)


def refusals(
    query: QueryDirectory,
    batch: Batch,
    partitions: int,
    *,
    keeps_boundaries: bool = False,
    keeps_sink_log: bool = False,
) -> Iterator[str]:
    """Yields the reasons why a committed batch cannot be repartitioned, one sentence each.

    `keeps_boundaries` says that the next batch is to keep its boundaries. `keeps_sink_log` says
    that the fork writes to a place where a file sink has its log.
    """
    kept, following = batch.shuffle_partitions, batch.batch_id + 1
    if not 1 <= partitions <= PARTITIONS_MAX:
        yield f"State has 1 to {PARTITIONS_MAX:,} partitions, not {partitions:,}."
    elif kept is None:
        yield f"The offsets of batch {batch.batch_id} do not say how many partitions its state has."
    elif partitions == kept:
        yield f"The state has that number of partitions, {kept}, already; give another, or none."
    if not query.operators:
        yield "The query keeps no state, so there are no partitions to change."
    elif query.store not in ROCKSDB:
        yield (
            f"Spark repartitions state of RocksDB only, and {query.location} has the store"
            f" {query.store}."
        )
    for operator in query.operators:
        yield from _refusals_of(operator, batch)
    if keeps_boundaries:
        yield (
            f"Spark takes batch {following} of the fork for the repartition, so that batch cannot"
            " have its boundaries; choose new ones."
        )
    if keeps_sink_log:
        yield (
            f"Spark takes batch {following} of the fork for the repartition, and the log of a file"
            " sink must not miss a batch; choose a new output."
        )


def _refusals_of(operator: Operator, batch: Batch) -> Iterator[str]:
    """Refuses an operator without a key, which has all its files in one partition."""
    place = f"Operator {operator.operator_id} ({operator.name})"
    with_files = operator.partitions_by_version.get(batch.batch_id + 1)
    is_alone = with_files == 1 and (batch.shuffle_partitions or 1) > 1
    if operator.keeps_schema_apart:
        yield (
            f"{place} keeps variables of its own in its state, whose rows cannot be compared before"
            " and after a repartition."
        )
    elif is_alone or operator.name in NEEDS_OTHER_PARTITIONS:
        yield f"{place} works in one partition, and would not find its state in another."
