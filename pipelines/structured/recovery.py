"""Which retained batches a query can be restored to, and the state files that each one needs.

Decides completeness by names alone: a version can be loaded if its snapshot is there, or its
changes and everything that the version before needs. `verification` compares the bytes. Pure.
Source: `HDFSBackedStateStoreProvider.loadMap` and `RocksDB.load` of Spark 4.3.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pipelines.structured.query import Batch, Operator, QueryDirectory, StateFile, StorePartition


@dataclass(frozen=True, slots=True)
class RecoveryPoint:
    """A batch with its offsets, committed. Problems are sentences: damaged logs, and state that
    cannot be loaded. `longest_chain`: how many files of changes a restore reads behind one
    snapshot."""

    batch_id: int
    planned_ms: int | None
    committed_ms: int | None
    log_problems: tuple[str, ...]
    state_problems: tuple[str, ...]
    longest_chain: int

    @property
    def problems(self) -> tuple[str, ...]:
        return self.log_problems + self.state_problems

    @property
    def is_complete(self) -> bool:
        return not self.problems


def recovery_points(query: QueryDirectory) -> tuple[RecoveryPoint, ...]:
    """Of every batch that has offsets and a commit, the oldest first."""
    chains = [
        (each, chain_lengths(each, _ids_by_version(query, operator, each)))
        for operator in query.operators
        for each in operator.partitions
    ]
    absent = [text for operator in query.operators for text in missing_partitions(query, operator)]
    damaged = {problem.path for problem in query.problems}
    points = []
    for batch in query.batches:
        if batch.offset_file is None or batch.commit_file is None:
            continue
        logs = (batch.offset_file.path, batch.commit_file.path)
        lost, longest = list(absent), 0
        for each, lengths in chains:
            if not is_of_batch(each, batch):
                continue
            if (length := lengths.get(batch.batch_id + 1)) is None:
                lost.append(f"{each.folder} cannot be loaded at version {batch.batch_id + 1}.")
            else:
                longest = max(longest, length)
        points.append(
            RecoveryPoint(
                batch.batch_id,
                batch.planned_ms,
                batch.committed_ms,
                (
                    *(f"{path} is damaged." for path in logs if path in damaged),
                    *missing_before(query, batch.batch_id),
                ),
                tuple(lost),
                longest,
            )
        )
    return tuple(points)


def missing_before(query: QueryDirectory, batch_id: int) -> Iterator[str]:
    """A restart reads the offsets of the batch before its newest one, too (Spark 4.3,
    `MicroBatchExecution.populateStartOffsets`): the oldest batch that is kept is no point."""
    before = query.by_id.get(batch_id - 1)
    if batch_id > 0 and (before is None or before.offset_file is None):
        yield f"offsets/{batch_id - 1}, which a restart reads as well, is not kept any more."


def is_of_batch(partition: StorePartition, batch: Batch) -> bool:
    """Spark's offline repartition leaves folders that only earlier or later batches read."""
    count = batch.shuffle_partitions
    return count is None or partition.partition < count


def missing_partitions(query: QueryDirectory, operator: Operator) -> Iterator[str]:
    """What the metadata of the operator declares and the directory does not have, as sentences.

    Spark's offline repartition leaves the metadata as it was, so that fewer may be right.
    """
    counts = (batch.shuffle_partitions for batch in reversed(query.batches))
    newest = next((count for count in counts if count is not None), None)
    there = {(each.store, each.partition) for each in operator.partitions if each.files}
    for store in operator.stores:
        for partition in range(min(store.partitions, newest or store.partitions)):
            if (store.name, partition) not in there:
                place = f"state/{operator.operator_id}/{partition}"
                yield f"{place} has no files of store {store.name}."


def chain_lengths(partition: StorePartition, ids: Mapping[int, str]) -> dict[int, int]:
    """{version: files of changes behind its snapshot}, of versions that can be loaded.

    `ids`: the unique id that each version must have; a version without one may have any.
    """
    lengths: dict[int, int] = {0: 0}  # the empty state, before the first batch
    for version, files in partition.files.items():
        usable = [f for f in files if f.file.size_bytes and _fits(f, ids.get(version))]
        if any(file.kind.is_whole for file in usable):
            lengths[version] = 0
        elif usable and (before := lengths.get(version - 1)) is not None:
            lengths[version] = before + 1
    del lengths[0]
    return lengths


def files_for(query: QueryDirectory, batch: Batch) -> tuple[StateFile, ...]:
    """The state files that a restore to the batch reads; SST files are named inside snapshots.

    Only for a batch whose point is complete.
    """
    found: list[StateFile] = []
    for operator in query.operators:
        for partition in operator.partitions:
            if not is_of_batch(partition, batch):
                continue
            ids = _ids_by_version(query, operator, partition)
            for version in range(batch.batch_id + 1, 0, -1):
                files = partition.files.get(version, ())
                usable = [f for f in files if f.file.size_bytes and _fits(f, ids.get(version))]
                found += usable
                if any(file.kind.is_whole for file in usable):
                    break
    return tuple(found)


def _fits(file: StateFile, unique_id: str | None) -> bool:
    return unique_id is None or not file.unique_id or file.unique_id == unique_id


def _ids_by_version(
    query: QueryDirectory, operator: Operator, partition: StorePartition
) -> dict[int, str]:
    """Commits name the ids of all stores of a partition, in the order of the metadata."""
    names = [store.name for store in operator.stores] or ["default"]
    if partition.store not in names:
        return {}
    store_index, ids = names.index(partition.store), {}
    for batch in query.batches:
        by_partition = batch.unique_ids.get(operator.operator_id, ())
        if partition.partition < len(by_partition):
            stores = by_partition[partition.partition]
            if store_index < len(stores):
                ids[batch.batch_id + 1] = stores[store_index]
    return ids
