"""Finds the retained batches that a query can be restored to, and verifies the files for a restore.

Names alone decide if a batch is complete: a version can be loaded if its snapshot is there, or its
changes and everything that the version before it needs. `verify` compares the bytes with the marks
that Spark and Hadoop left: checksums (`.NAME.crc`), lengths (`NAME.crc`), the names of SST files
in a RocksDB snapshot, and the ends of streams. It reads each file once, as a whole. A file without
any such mark counts as intact.

Source: `HDFSBackedStateStoreProvider.loadMap` and `RocksDB.load` of Spark 4.3.
"""

import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from io import BytesIO

import msgspec

from pipelines.disk.archives import BROKEN_ARCHIVE, read_file
from pipelines.domain.errors import UNDECODABLE
from pipelines.storage.trees import ListedFile, Tree
from pipelines.structured.formats import (
    Damaged,
    Problem,
    check_blocks,
    check_crc,
)
from pipelines.structured.query import (
    Batch,
    FileProblem,
    Operator,
    QueryDirectory,
    StateFile,
    StateKind,
    StorePartition,
)


@dataclass(frozen=True, slots=True)
class RecoveryPoint:
    """A committed batch with its offsets.

    Problems are sentences: damaged logs, and state that cannot be loaded. `longest_chain` is the
    largest number of files of changes that a restore reads behind one snapshot.
    """

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
    """Returns a point for every batch that has offsets and a commit, the oldest first."""
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
    """Yields a problem if the offsets of the previous batch are missing.

    A restart reads these too (Spark 4.3, `MicroBatchExecution.populateStartOffsets`), so the oldest
    retained batch is no recovery point.
    """
    before = query.by_id.get(batch_id - 1)
    if batch_id > 0 and (before is None or before.offset_file is None):
        yield f"offsets/{batch_id - 1}, which a restart reads as well, is not kept any more."


def is_of_batch(partition: StorePartition, batch: Batch) -> bool:
    """Returns True if the batch reads the partition.

    Spark's offline repartition leaves folders that only earlier or later batches read.
    """
    count = batch.shuffle_partitions
    return count is None or partition.partition < count


def missing_partitions(query: QueryDirectory, operator: Operator) -> Iterator[str]:
    """Yields a sentence for each partition of the operator's metadata that has no files.

    Spark's offline repartition leaves the metadata as it was, so fewer partitions may be right.
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
    """Returns {version: number of files of changes behind its snapshot} for loadable versions.

    `ids` maps versions to the unique id that their files must have; others may have any id.
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
    """Returns the state files that a restore to the batch reads, without SST files.

    Snapshots name the SST files. Call it only for a batch whose point is complete.
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
    """Reads the ids from the commits, which list a partition's stores in the metadata's order."""
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


SNAPSHOT_METADATA = "metadata"
SNAPSHOT_METADATA_BYTES_MAX = 64 << 20
MARKS_MAX_BYTES = 1 << 20


class _SstFile(msgspec.Struct):
    dfsSstFileName: str  # noqa: N815
    sizeBytes: int  # noqa: N815


class _Snapshot(msgspec.Struct):
    sstFiles: list[_SstFile] = []  # noqa: N815
    logFiles: list[_SstFile] = []  # noqa: N815


class _SparkSum(msgspec.Struct):
    mainFileSize: int  # noqa: N815


@dataclass(frozen=True, slots=True)
class BatchFiles:
    """`paths` are the files that a restore to the batch reads, without logs of sources.

    `problems` is empty if all of them are as written.
    """

    paths: tuple[str, ...]
    problems: tuple[FileProblem, ...]
    read_bytes: int


def verify(tree: Tree, query: QueryDirectory, batch: Batch) -> BatchFiles:
    """Read and compare everything that a restore to the batch needs. Raises Retryable."""
    work = _Verification(tree)
    for file in (batch.offset_file, batch.commit_file):
        if file is not None:
            work.check(file.path)
    for operator in query.operators:
        for path in _described(tree, operator.operator_id, batch.batch_id):
            work.check(path)
    for state_file in files_for(query, batch):
        work.check_state(state_file)
    return BatchFiles(tuple(dict.fromkeys(work.paths)), tuple(work.problems), work.read_bytes)


def _described(tree: Tree, operator_id: int, batch_id: int) -> list[str]:
    """Returns the files with the operator's name, stores and schemas.

    An operator that keeps its schema apart writes `_metadata/v2/BATCH` when they change; a file of
    a later batch belongs to another timeline.
    """
    folder = f"state/{operator_id}"
    below = [f"{folder}/_metadata", f"{folder}/_stateSchema", f"{folder}/0"]
    return sorted(
        file.path
        for place in below
        for file in tree.files(place)
        if not file.name.startswith(".")
        and not _is_later(file, batch_id)
        and ("/_metadata/" in file.path or "/_stateSchema/" in file.path)
    )


def _is_later(file: ListedFile, batch_id: int) -> bool:
    return "/_metadata/v2/" in file.path and file.name.isdigit() and int(file.name) > batch_id


class _Verification:
    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self.paths: list[str] = []
        self.problems: list[FileProblem] = []
        self.read_bytes = 0

    def check(self, path: str, size_bytes: int | None = None) -> bytes | None:
        """Returns the content, or None if the file is damaged or missing.

        `size_bytes` is the length that another file gives for this one.
        """
        content = self._tree.read(path)
        self.paths.append(path)
        try:
            if content is None:
                raise Damaged(Problem.MISSING, "is missing")
            self.read_bytes += len(content)
            if size_bytes is not None and len(content) != size_bytes:
                raise Damaged(Problem.LENGTH, f"has {len(content)} bytes instead of {size_bytes}")
            self._check_sums(path, content)
            check_blocks(content)
        except Damaged as damage:
            self.problems.append(FileProblem(path, damage.problem, f"{path} {damage}."))
            return None
        return content

    def check_state(self, file: StateFile) -> None:
        """Checks the file, and the files that it names."""
        content = self.check(file.file.path)
        if content is None or file.kind is not StateKind.ZIP:
            return
        try:
            snapshot = snapshot_of(content)
        except Damaged as damage:
            path = file.file.path
            self.problems.append(FileProblem(path, damage.problem, f"{path} {damage}."))
            return
        folder = file.file.path.rpartition("/")[0]
        for each in snapshot.sstFiles:
            self.check(f"{folder}/SSTs/{each.dfsSstFileName}", each.sizeBytes)
        for each in snapshot.logFiles:
            self.check(f"{folder}/logs/{each.dfsSstFileName}", each.sizeBytes)

    def _check_sums(self, path: str, content: bytes) -> None:
        folder, _, name = path.rpartition("/")
        crc = self._tree.read(f"{folder}/.{name}.crc" if folder else f".{name}.crc")
        if crc is not None:
            check_crc(content, crc)
        if name.endswith((".zip", ".changelog", ".delta", ".snapshot")):
            self._check_length(f"{path}.crc", content)

    def _check_length(self, path: str, content: bytes) -> None:
        """Compares the length in Spark's own checksum file, which newer formats have."""
        said = self._tree.read(path)
        if said is None:
            return
        self.paths.append(path)
        try:
            expected = msgspec.json.decode(said, type=_SparkSum).mainFileSize
        except UNDECODABLE as error:
            raise Damaged(Problem.TORN, "has a checksum file that is itself damaged") from error
        if expected != len(content):
            raise Damaged(Problem.LENGTH, f"has {len(content)} bytes instead of {expected}")


def snapshot_of(content: bytes) -> _Snapshot:
    try:
        with zipfile.ZipFile(BytesIO(content)) as archive:
            if (torn := archive.testzip()) is not None:
                raise Damaged(Problem.CHECKSUM, f"holds a damaged {torn}")
            described = read_file(archive, SNAPSHOT_METADATA, SNAPSHOT_METADATA_BYTES_MAX)
    except BROKEN_ARCHIVE as error:
        raise Damaged(Problem.TORN, f"is no whole archive: {error}") from error
    _, _, body = described.partition(b"\n")
    try:
        return msgspec.json.decode(body, type=_Snapshot)
    except UNDECODABLE as error:
        raise Damaged(Problem.TORN, f"does not name its files: {error}") from error
