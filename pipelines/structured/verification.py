"""The bytes of one batch: which files a restore to it reads, and whether they are as written.

Decides by what Spark and Hadoop left beside each file: checksums (`.NAME.crc`), lengths
(`NAME.crc`), the names of SST files in a RocksDB snapshot, and the ends of streams. It reads each
file once, whole. Files that nothing vouches for count as they are.
"""

import zipfile
from dataclasses import dataclass
from io import BytesIO

import msgspec

from pipelines.domain.errors import UNDECODABLE
from pipelines.storage.trees import ListedFile, Tree
from pipelines.structured.formats import (
    Damaged,
    Problem,
    check_blocks,
    check_crc,
)
from pipelines.structured.query import Batch, FileProblem, QueryDirectory, StateFile, StateKind
from pipelines.structured.recovery import files_for

SNAPSHOT_METADATA = "metadata"
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
    """`paths`: all that a restore to the batch reads, without logs of sources. `problems` is empty
    if all of them are as written."""

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
    """What tells the operator's name, stores and schemas. An operator that keeps them apart writes
    `_metadata/v2/BATCH` when they change; a later one is of another timeline."""
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
        """`size_bytes`: the length that another file names. None: the file is damaged."""
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
        """And the files that it names."""
        content = self.check(file.file.path)
        if content is None or file.kind is not StateKind.ZIP:
            return
        try:
            snapshot = _snapshot_of(content)
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
        """Spark's own sum, beside files of newer formats. Only its length is compared."""
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


def _snapshot_of(content: bytes) -> _Snapshot:
    try:
        with zipfile.ZipFile(BytesIO(content)) as archive:
            if (torn := archive.testzip()) is not None:
                raise Damaged(Problem.CHECKSUM, f"holds a damaged {torn}")
            described = archive.read(SNAPSHOT_METADATA)
    except (zipfile.BadZipFile, KeyError, EOFError, ValueError) as error:
        raise Damaged(Problem.TORN, f"is no whole archive: {error}") from error
    _, _, body = described.partition(b"\n")
    try:
        return msgspec.json.decode(body, type=_Snapshot)
    except UNDECODABLE as error:
        raise Damaged(Problem.TORN, f"does not name its files: {error}") from error
