"""The checkpoint directory of a Structured Streaming query, read into frozen values.

It decides what each file is. It lists the tree once and opens only `metadata`, the logs of batches
and the metadata of operators. It reads no state and does not need Spark; the query may be running.
Damage is a value here (`FileProblem`), so that an incomplete checkpoint can be read and judged.
Source: the layout that Spark 4.3 writes (`StreamExecution`, `StateStoreId`, `RocksDBFileManager`).
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from pipelines.domain.errors import Rejected
from pipelines.domain.run import scheme_of
from pipelines.domain.settings.resources import OBJECT_SCHEMES
from pipelines.storage.trees import ListedFile, Tree, tree_at
from pipelines.structured.formats import (
    Damaged,
    Problem,
    commit_of,
    crc_length_of,
    is_number,
    operator_of,
    plan_of,
    query_id_of,
)
from pipelines.structured.query import (
    Batch,
    FileLog,
    FileProblem,
    Operator,
    QueryDirectory,
    StateFile,
    StateKind,
    StorePartition,
)

OPENED_OBJECTS_MAX = 200
"""The newest batches to open in an object store, where each file costs a request."""
STATE_FILE = re.compile(r"([0-9]{1,18})(?:_([^./]+))?\.(delta|snapshot|changelog|zip)$")
LOG_FILE = re.compile(r"([0-9]{1,18})(\.compact)?$")
SINK_LOG = "_spark_metadata"
OWN_FILES = ("metadata", "savepoint.json")
NOT_STORES = ("SSTs", "_metadata", "_stateSchema")
T = TypeVar("T")


def read_query(
    location: str,
    roots: Iterable[str],
    *,
    output: str = "",
    opened_batches_max: int | None = None,
) -> QueryDirectory:
    """Read a checkpoint directory, and the log of the file sink in `output` if you give it.

    At most `opened_batches_max` of the newest batches are opened; the others have no plan. None
    means all in a directory, and the newest 200 in an object store. Raises Rejected if the location
    is outside the roots or is no checkpoint at all, and Retryable if the storage fails.
    """
    tree = tree_at(location, roots)
    if opened_batches_max is None and scheme_of(location) in OBJECT_SCHEMES:
        opened_batches_max = OPENED_OBJECTS_MAX
    sink_tree = tree_at(output, roots) if output else None
    return read_tree(tree, sink_tree, opened_batches_max=opened_batches_max)


def read_tree(
    tree: Tree, sink_tree: Tree | None = None, *, opened_batches_max: int | None = None
) -> QueryDirectory:
    """Does the same as `read_query`, for trees that the caller already has.

    The query may be running. Its offsets are listed last, so that nothing seems to be ahead of
    them. A file that a purge deletes between listing and reading is left out.
    """
    found = _SortedFiles(tree.files())
    found.take(tree.files("offsets"))
    _check_is_checkpoint(tree.location, found)
    reading = _Reading(tree)
    batches = _batches(reading, found, opened_batches_max)
    output = _Output(sink_tree) if sink_tree is not None else None
    return QueryDirectory(
        location=tree.location,
        query_id=reading.value("metadata", query_id_of) or "",
        batches=batches,
        operators=_operators(reading, found),
        source_logs={
            name: FileLog(f"sources/{name}", _frozen(files))
            for name, files in sorted(found.sources.items())
        },
        sink_log=FileLog(SINK_LOG, _frozen(output.log)) if output else None,
        output=output.location if output else "",
        output_files=output.file_count if output else 0,
        output_bytes=output.size_bytes if output else 0,
        problems=tuple(reading.problems),
        temporaries=tuple(found.temporaries),
        strangers=tuple(found.strangers),
        has_offsets=bool(found.offsets),
        has_commits=bool(found.commits),
        size_bytes=found.size_bytes,
        file_count=found.file_count,
    )


class _SortedFiles:
    """The files of the listing, sorted by kind. Names are judged once, here."""

    def __init__(self, files: Iterable[ListedFile]) -> None:
        self.has_metadata = False
        self.offsets: dict[int, ListedFile] = {}
        self.commits: dict[int, ListedFile] = {}
        self.sources: defaultdict[str, dict[int, list[ListedFile]]] = defaultdict(dict)
        self.state: defaultdict[tuple[int, int, str], list[ListedFile]] = defaultdict(list)
        self.operators: set[int] = set()
        self.apart: set[int] = set()  # operators that keep their schema in a separate place
        self.operator_metadata: defaultdict[int, list[str]] = defaultdict(list)
        self.crc_lengths: dict[str, int] = {}  # by the path of the file that the checksums cover
        self.temporaries: list[ListedFile] = []
        self.strangers: list[ListedFile] = []
        self.deep: list[ListedFile] = []  # in folders that no query has
        self.size_bytes = self.file_count = 0
        for file in files:
            self.size_bytes += file.size_bytes
            self.file_count += 1
            self._sort(file)

    def take(self, offsets: Iterable[ListedFile]) -> None:
        """Replaces the offsets by those of a second listing of the folder `offsets`."""
        self.offsets = {
            int(file.name): file
            for file in offsets
            if file.path.count("/") == 1 and is_number(file.name)
        }

    def _sort(self, file: ListedFile) -> None:
        *folders, name = file.path.split("/")
        if name.endswith((".tmp", ".tmp.crc")):
            self.temporaries.append(file)
        elif name.startswith(".") and name.endswith(".crc"):
            self.crc_lengths["/".join((*folders, name[1:-4]))] = file.size_bytes
        elif not folders:
            self.has_metadata |= name == "metadata"
            if name not in OWN_FILES:
                self.strangers.append(file)
        elif folders[0] in ("offsets", "commits"):
            log = self.offsets if folders[0] == "offsets" else self.commits
            if len(folders) == 1 and is_number(name):
                log[int(name)] = file
            else:
                self.strangers.append(file)
        elif folders[0] == "sources" and len(folders) == 2:
            if (match := LOG_FILE.match(name)) is not None:
                self.sources[folders[1]].setdefault(int(match[1]), []).append(file)
        elif folders[0] == "state" and len(folders) >= 2 and is_number(folders[1]):
            self._sort_state(file, folders)
        else:
            self.deep.append(file)

    def _sort_state(self, file: ListedFile, folders: list[str]) -> None:
        operator_id = int(folders[1])
        self.operators.add(operator_id)
        if len(folders) >= 3 and is_number(folders[2]):
            has_store = len(folders) > 3 and folders[3] not in NOT_STORES
            store = folders[3] if has_store else "default"
            self.state[operator_id, int(folders[2]), store].append(file)
        elif folders[2:4] == ["_metadata", "v2"]:
            self.operator_metadata[operator_id].append(file.path)
        elif folders[2:3] == ["_stateSchema"]:
            self.apart.add(operator_id)


class _Reading:
    """Opens files, and keeps the problems of those that are damaged."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self.problems: list[FileProblem] = []

    def value(self, path: str, decode: Callable[[bytes], T]) -> T | None:
        """Returns None if the file is missing, which is not noted as a problem, or damaged."""
        content = self._tree.read(path)
        if content is None:
            return None
        try:
            return decode(content)
        except Damaged as damage:
            self.note(path, damage.problem, str(damage))
            return None

    def note(self, path: str, problem: Problem, what: str) -> None:
        self.problems.append(FileProblem(path, problem, f"{path} {what}."))


def _check_is_checkpoint(location: str, found: _SortedFiles) -> None:
    if found.has_metadata or found.offsets or found.commits:
        return
    if not found.file_count:
        raise Rejected(f"{location} is empty or does not exist; give the checkpointLocation.")
    within = sorted(
        {f.path.rpartition("/")[0] for f in found.deep if f.path.endswith("/metadata")}
        - {f.path.rpartition("/")[0] for f in found.deep if "_metadata/" in f.path}
    )
    hint = f" Did you mean {location}/{within[0]}?" if within else ""
    raise Rejected(
        f"{location} is no checkpoint of a Structured Streaming query: it has no metadata, no"
        f" offsets and no commits. Give the checkpointLocation of the query.{hint}"
    )


def _batches(reading: _Reading, found: _SortedFiles, opened_max: int | None) -> tuple[Batch, ...]:
    ids = sorted(found.offsets.keys() | found.commits.keys())
    opened = set(ids if opened_max is None else ids[len(ids) - opened_max :])
    batches = []
    for batch_id in ids:
        offset, commit = found.offsets.get(batch_id), found.commits.get(batch_id)
        is_opened = batch_id in opened
        batches.append(
            Batch(
                batch_id,
                offset,
                commit,
                reading.value(offset.path, plan_of) if offset and is_opened else None,
                reading.value(commit.path, commit_of) if commit and is_opened else None,
                is_opened,
            )
        )
        for file in (offset, commit):
            if file and not file.size_bytes and not is_opened:
                reading.note(file.path, Problem.EMPTY, "is empty")
    return tuple(batches)


def _operators(reading: _Reading, found: _SortedFiles) -> tuple[Operator, ...]:
    by_operator: defaultdict[int, list[StorePartition]] = defaultdict(list)
    for (operator_id, partition, store), files in sorted(found.state.items()):
        each = _store_partition(reading, (operator_id, partition, store), files, found)
        by_operator[operator_id].append(each)
    operators = []
    for operator_id in sorted(found.operators):
        path = f"state/{operator_id}/_metadata/metadata"
        info = None
        for name in (path, *sorted(found.operator_metadata.get(operator_id, ()))):
            info = reading.value(name, operator_of) or info
        if info is None and not any(each.path == path for each in reading.problems):
            reading.note(path, Problem.MISSING, "is missing")
        operators.append(
            Operator(
                operator_id,
                info.name if info else "",
                info.stores if info else (),
                tuple(by_operator[operator_id]),
                operator_id in found.apart,
            )
        )
    return tuple(operators)


def _store_partition(
    reading: _Reading,
    place: tuple[int, int, str],
    files: list[ListedFile],
    found: _SortedFiles,
) -> StorePartition:
    versions: defaultdict[int, list[StateFile]] = defaultdict(list)
    shared_bytes = 0
    has_schema = False
    for file in files:
        if (match := STATE_FILE.match(file.name)) is not None:
            kind = StateKind(match[3])
            versions[int(match[1])].append(StateFile(int(match[1]), kind, match[2] or "", file))
        elif "/SSTs/" in file.path:
            shared_bytes += file.size_bytes
        has_schema |= "/_metadata/schema" in file.path
        _note_length(reading, file, found.crc_lengths.get(file.path))
    operator_id, partition, store = place
    folder = f"state/{operator_id}/{partition}" + ("" if store == "default" else f"/{store}")
    return StorePartition(
        operator_id=operator_id,
        partition=partition,
        store=store,
        folder=folder,
        files={version: tuple(each) for version, each in sorted(versions.items())},
        shared_bytes=shared_bytes,
        has_schema=has_schema,
    )


def _note_length(reading: _Reading, file: ListedFile, crc_bytes: int | None) -> None:
    """Finds a file that was cut off without opening it, by the length of its checksums."""
    if not file.size_bytes and STATE_FILE.match(file.name):
        reading.note(file.path, Problem.EMPTY, "is empty")
    elif crc_bytes is not None and crc_bytes != crc_length_of(file.size_bytes):
        reading.note(file.path, Problem.LENGTH, "is not as long as its checksum file says")


class _Output:
    """The directory of a file sink: its log, and the number and bytes of its other files."""

    def __init__(self, tree: Tree) -> None:
        self.location = tree.location
        self.log: dict[int, list[ListedFile]] = {}
        self.file_count = self.size_bytes = 0
        for file in tree.files():
            match = LOG_FILE.match(file.name)
            if file.path.startswith(f"{SINK_LOG}/"):
                if match is not None:
                    self.log.setdefault(int(match[1]), []).append(file)
            elif not file.name.startswith((".", "_")):
                self.file_count += 1
                self.size_bytes += file.size_bytes


def _frozen(files: Mapping[int, list[ListedFile]]) -> Mapping[int, tuple[ListedFile, ...]]:
    return {number: tuple(each) for number, each in sorted(files.items())}
