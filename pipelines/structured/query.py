"""A query as its checkpoint directory shows it: frozen values. Pure.

`directory` makes the values; `doctor`, `savepoints` and `fork` use nothing else for their verdicts.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

from pipelines.storage.trees import ListedFile
from pipelines.structured.formats import (
    SHUFFLE_PARTITIONS,
    STORE_CLASS,
    Commit,
    Plan,
    Problem,
    SourceOffset,
    StoreInfo,
    UniqueIds,
)


class Store(StrEnum):
    """The state store, with the version of its format if the files depend on it."""

    HDFS = "HDFS-backed"
    ROCKSDB = "RocksDB format 1"
    ROCKSDB_UNIQUE = "RocksDB format 2"
    OTHER = "other"
    NONE = "none"  # the query keeps no state


class StateKind(StrEnum):
    DELTA = "delta"
    SNAPSHOT = "snapshot"
    CHANGELOG = "changelog"
    ZIP = "zip"  # a snapshot of RocksDB

    @property
    def is_whole(self) -> bool:
        """Returns True if the file holds all state of its version, not only the changes."""
        return self in (StateKind.SNAPSHOT, StateKind.ZIP)


@dataclass(frozen=True, slots=True)
class FileProblem:
    """One file that cannot be used. `text` is a sentence."""

    path: str
    problem: Problem
    text: str


@dataclass(frozen=True, slots=True)
class StateFile:
    version: int  # the batch plus 1
    kind: StateKind
    unique_id: str  # empty before format 2 of RocksDB
    file: ListedFile


@dataclass(frozen=True, slots=True, kw_only=True)
class StorePartition:
    """The files of one store in one partition, by version. The files of a version have no order."""

    operator_id: int
    partition: int
    store: str
    folder: str
    files: Mapping[int, tuple[StateFile, ...]]
    shared_bytes: int  # of SST files, which several versions share
    has_schema: bool

    @property
    def newest_snapshot_version(self) -> int | None:
        return max(
            (v for v, files in self.files.items() if any(f.kind.is_whole for f in files)),
            default=None,
        )


@dataclass(frozen=True)
class Operator:
    """One stateful operator. `name` is empty if its metadata cannot be read."""

    operator_id: int
    name: str
    stores: tuple[StoreInfo, ...]
    partitions: tuple[StorePartition, ...]
    keeps_schema_apart: bool = False  # transformWithState: one schema for all of its stores

    @cached_property
    def partitions_by_version(self) -> Mapping[int, int]:
        """Returns, for each version, the number of partitions that have files of it."""
        found: defaultdict[int, set[int]] = defaultdict(set)
        for each in self.partitions:
            for version in each.files:
                found[version].add(each.partition)
        return {version: len(partitions) for version, partitions in found.items()}

    @cached_property
    def snapshot_bytes(self) -> Mapping[int, int]:
        """Returns the bytes of versions with a snapshot in every partition, without SST files."""
        found: defaultdict[int, list[int]] = defaultdict(list)
        for each in self.partitions:
            for version, files in each.files.items():
                if wholes := [file.file.size_bytes for file in files if file.kind.is_whole]:
                    found[version].append(max(wholes))
        count = len(self.partitions)
        return {v: sum(sizes) for v, sizes in sorted(found.items()) if len(sizes) == count}

    @cached_property
    def bytes_by_version(self) -> Mapping[int, int]:
        found: defaultdict[int, int] = defaultdict(int)
        for each in self.partitions:
            for version, files in each.files.items():
                found[version] += sum(file.file.size_bytes for file in files)
        return dict(sorted(found.items()))

    @cached_property
    def size_bytes(self) -> int:
        return sum(self.bytes_by_version.values()) + sum(p.shared_bytes for p in self.partitions)

    @property
    def partition_count(self) -> int:
        """Returns the number in the metadata, or the number found if that cannot be read.

        Spark's offline repartition leaves the metadata as it was; a batch names its own number.
        """
        declared = max((store.partitions for store in self.stores), default=0)
        return declared or len({each.partition for each in self.partitions})

    @property
    def newest_snapshot_version(self) -> int | None:
        """Returns the oldest of the partitions' newest snapshots, or None if one has none."""
        newest = [each.newest_snapshot_version for each in self.partitions]
        known = [version for version in newest if version is not None]
        return min(known) if known and len(known) == len(newest) else None


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch with a file in `offsets/`, in `commits/`, or in both.

    `plan` and `commit` are None if their file is absent, damaged, or was not opened.
    """

    batch_id: int
    offset_file: ListedFile | None
    commit_file: ListedFile | None
    plan: Plan | None
    commit: Commit | None
    is_opened: bool

    @property
    def is_committed(self) -> bool:
        return self.commit_file is not None

    @property
    def planned_ms(self) -> int | None:
        if self.plan is not None:
            return self.plan.planned_ms
        return None if self.offset_file is None else self.offset_file.modified_ms

    @property
    def committed_ms(self) -> int | None:
        return None if self.commit_file is None else self.commit_file.modified_ms

    @property
    def watermark_ms(self) -> int | None:
        """Returns None if it is unknown, 0 if the query has no watermark or no event time yet."""
        return None if self.plan is None else self.plan.watermark_ms

    @property
    def sources(self) -> tuple[SourceOffset, ...]:
        return () if self.plan is None else self.plan.sources

    @property
    def shuffle_partitions(self) -> int | None:
        text = "" if self.plan is None else self.plan.conf.get(SHUFFLE_PARTITIONS, "")
        return int(text) if text.isdigit() else None

    @property
    def store_class(self) -> str:
        return "" if self.plan is None else self.plan.conf.get(STORE_CLASS, "")

    @property
    def unique_ids(self) -> UniqueIds:
        return {} if self.commit is None else self.commit.unique_ids


@dataclass(frozen=True)
class FileLog:
    """The log of a file source (`sources/NAME`) or of a file sink (`_spark_metadata`)."""

    folder: str
    files: Mapping[int, tuple[ListedFile, ...]]  # a number may have a plain and a compact file

    @property
    def newest(self) -> int | None:
        return max(self.files, default=None)

    @cached_property
    def compact_numbers(self) -> tuple[int, ...]:
        return tuple(
            sorted(n for n, each in self.files.items() if any(is_compact(file) for file in each))
        )

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for each in self.files.values() for file in each)


@dataclass(frozen=True, kw_only=True)
class QueryDirectory:
    """The contents of the directory, as one listing shows them."""

    location: str
    query_id: str  # empty if `metadata` is missing or damaged
    batches: tuple[Batch, ...]  # by id
    operators: tuple[Operator, ...]  # by id
    source_logs: Mapping[str, FileLog]  # by the source's name, or its index as text
    sink_log: FileLog | None  # only if the output was given
    output: str  # empty if it was not given
    output_files: int  # without those of the log
    output_bytes: int
    problems: tuple[FileProblem, ...]
    temporaries: tuple[ListedFile, ...]  # files of writes that did not end
    strangers: tuple[ListedFile, ...]  # files that no query writes
    has_offsets: bool
    has_commits: bool
    size_bytes: int
    file_count: int

    @cached_property
    def by_id(self) -> Mapping[int, Batch]:
        return {batch.batch_id: batch for batch in self.batches}

    @cached_property
    def newest_planned(self) -> int | None:
        return max((b.batch_id for b in self.batches if b.offset_file), default=None)

    @cached_property
    def newest_committed(self) -> int | None:
        return max((b.batch_id for b in self.batches if b.commit_file), default=None)

    def log_of(self, source: SourceOffset) -> FileLog | None:
        return self.source_logs.get(source.name or str(source.index))

    @cached_property
    def store(self) -> Store:
        if not self.operators:
            return Store.NONE
        kinds = {
            (file.kind, bool(file.unique_id))
            for operator in self.operators
            for partition in operator.partitions
            for files in partition.files.values()
            for file in files
        }
        if kinds & {(StateKind.DELTA, False), (StateKind.SNAPSHOT, False)}:
            return Store.HDFS
        if any(is_unique for _, is_unique in kinds):
            return Store.ROCKSDB_UNIQUE
        if kinds:
            return Store.ROCKSDB
        newest = next((b.store_class for b in reversed(self.batches) if b.store_class), "")
        return _store_of_class(newest)

    @property
    def state_bytes(self) -> int:
        return sum(operator.size_bytes for operator in self.operators)


def is_compact(file: ListedFile) -> bool:
    return file.name.endswith(".compact")


def _store_of_class(name: str) -> Store:
    known = {"HDFSBackedStateStoreProvider": Store.HDFS, "RocksDBStateStoreProvider": Store.ROCKSDB}
    return known.get(name.rpartition(".")[2], Store.OTHER)
