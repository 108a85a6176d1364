"""Savepoints of Structured Streaming queries: one batch, copied whole, with a digest of every file.

A savepoint is itself a checkpoint directory that holds a single batch, and a manifest. The manifest
is written last: without a manifest there is no savepoint. A savepoint never changes. To run from
it, fork it.

This module owns the order that makes a copy of a running query complete. The batch is committed
before the copy begins, so its files no longer change. State is copied first, commit and offsets
last. At the end the copy is verified on its own. Nothing is written beside the original. No state
above the batch's version is copied: it belongs to a timeline that the copy does not have.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from urllib.parse import quote

import msgspec

from pipelines.disk.files import RunningDigest
from pipelines.domain.errors import UNDECODABLE, CorruptSnapshot, Rejected
from pipelines.storage.trees import Tree, check_is_apart, check_is_free
from pipelines.structured.directory import read_tree
from pipelines.structured.formats import SourceKind, crc_of
from pipelines.structured.logs import read_log, source_log_at
from pipelines.structured.query import Batch, QueryDirectory
from pipelines.structured.recovery import missing_before, verify

OnProgress = Callable[[int, int], None]
"""The function to call after each file, with the number of files done and the number of all."""


def no_progress(done: int, of: int) -> None:
    """Ignores the progress, for callers that do not follow a copy."""


@dataclass(frozen=True, slots=True)
class CopiedFile:
    size_bytes: int
    digest: str  # with its prefix, as `RunningDigest` gives it


@dataclass(frozen=True, slots=True, kw_only=True)
class Copying:
    """`metadata` is the content of the file of that name.

    With `keeps_next`, the copy has the plan of the next batch, which then runs again with exactly
    the rows that it had.
    """

    batch_id: int
    metadata: bytes
    keeps_next: bool = False


def committed_batch(query: QueryDirectory, batch_id: int) -> Batch:
    """Raises Rejected, with one sentence, if the query cannot go back to that batch at all."""
    batch = query.by_id.get(batch_id)
    committed = [b.batch_id for b in query.batches if b.is_committed and b.offset_file]
    kept = f"it keeps {committed[0]} to {committed[-1]}" if committed else "it keeps none"
    if batch is None or batch.offset_file is None:
        raise Rejected(f"{query.location} has no batch {batch_id}; {kept}.")
    if not batch.is_committed:
        raise Rejected(
            f"Batch {batch_id} of {query.location} is planned and not committed; {kept}."
        )
    if batch.plan is None or batch.commit is None:
        raise Rejected(
            f"The offsets or the commit of batch {batch_id} in {query.location} cannot be read;"
            " choose another batch."
        )
    for text in missing_before(query, batch_id):
        raise Rejected(f"Batch {batch_id} of {query.location} is no recovery point: {text}")
    return batch


def copy_batch(
    source: Tree,
    query: QueryDirectory,
    target: Tree,
    copying: Copying,
    on_progress: OnProgress = no_progress,
) -> dict[str, CopiedFile]:
    """Returns {path: file} of everything that was written.

    Raises Rejected and leaves nothing behind if a file is damaged or is purged meanwhile, or if the
    target is in use or within the source.
    """
    batch = committed_batch(query, copying.batch_id)
    following = query.by_id.get(batch.batch_id + 1)
    if copying.keeps_next and (following is None or following.plan is None):
        raise Rejected(
            f"Batch {batch.batch_id + 1} was not planned, so its boundaries cannot be kept; choose"
            " new boundaries."
        )
    check_is_apart(target, source)
    check_is_free(target)
    try:
        written = _copy(_Copy(source, target, on_progress), query, batch, copying)
        _check_copy(target, batch.batch_id)
    except BaseException:
        target.delete_all()
        raise
    return written


def _copy(
    work: "_Copy", query: QueryDirectory, batch: Batch, copying: Copying
) -> dict[str, CopiedFile]:
    found = verify(work.source, query, batch)
    if found.problems:
        raise Rejected(f"Batch {batch.batch_id} is no recovery point: {found.problems[0].text}")
    logs = [path for path in found.paths if path.startswith(("offsets/", "commits/"))]
    source_logs = _source_logs(work.source, query, batch, copying)
    work.of = len(found.paths) + len(source_logs) + (batch.batch_id > 0) + copying.keeps_next + 1
    for path in found.paths:
        if path not in logs:
            work.copy(path)
    for path, content in source_logs.items():
        work.write(path, content)
    if batch.batch_id > 0:
        logs.append(f"offsets/{batch.batch_id - 1}")
    for path in sorted(logs):  # commits before offsets
        work.copy(path)
    if copying.keeps_next:
        work.copy(f"offsets/{batch.batch_id + 1}")
    work.write("metadata", copying.metadata)
    return work.written


def _source_logs(
    source: Tree, query: QueryDirectory, batch: Batch, copying: Copying
) -> dict[str, bytes]:
    """Returns the logs, rewound to the last entry of the batch, or of the next one if that is kept.

    A log of another kind, such as the start time of a rate source, is copied as it is.
    """
    newest = query.by_id[batch.batch_id + 1] if copying.keeps_next else batch
    files: dict[str, bytes] = {}
    for offset in newest.sources:
        log = query.log_of(offset)
        if log is None or offset.kind is SourceKind.NONE:
            continue
        if offset.kind is SourceKind.FILE:
            rewound = source_log_at(read_log(source, log), offset.positions["logOffset"])
            files |= {f"{log.folder}/{name}": each for name, each in rewound.items()}
            continue
        for listed in (file for each in log.files.values() for file in each):
            if (content := source.read(listed.path)) is not None:
                files[listed.path] = content
    return files


class _Copy:
    def __init__(self, source: Tree, target: Tree, on_progress: OnProgress) -> None:
        self.source = source
        self._target = target
        self._on_progress = on_progress
        self.of = 0
        self.written: dict[str, CopiedFile] = {}

    def copy(self, path: str) -> None:
        content = self.source.read(path)
        if content is None:
            raise Rejected(
                f"{self.source.location}/{path} was purged during the copy; choose a newer batch."
            )
        if "/_metadata/v2/" in path:
            content = relocated(content, self._target)
        self.write(path, content)

    def write(self, path: str, content: bytes) -> None:
        """Writes the file, and the checksums that Hadoop's local file system compares."""
        folder, _, name = path.rpartition("/")
        self._target.write_new(path, content)
        self._target.write_new(f"{folder}/.{name}.crc".removeprefix("/"), crc_of(content))
        digest = RunningDigest()
        digest.update(content)
        self.written[path] = CopiedFile(len(content), digest.hexdigest())
        self._on_progress(len(self.written), max(self.of, len(self.written)))


SCHEMA_ADDRESS = re.compile(rb'"[^"]*(/state/\d+/_stateSchema/[^"]*)"')


def relocated(content: bytes, target: Tree) -> bytes:
    """Makes the metadata of a transformWithState operator name the schema files of the copy.

    Spark names them there by their full addresses.
    """
    return SCHEMA_ADDRESS.sub(
        lambda found: b'"%b%b"' % (address_of(target).encode(), found[1]), content
    )


def address_of(tree: Tree) -> str:
    """Returns the address in Hadoop's form."""
    if tree.location.startswith("/"):
        return f"file://{quote(tree.location)}"
    return tree.location.replace("s3://", "s3a://", 1)


def _check_copy(target: Tree, batch_id: int) -> None:
    copied = read_tree(target)
    found = verify(target, copied, committed_batch(copied, batch_id))
    if problems := [*copied.problems, *found.problems]:
        raise Rejected(f"The copy in {target.location} is damaged: {problems[0].text}")


def same_content(
    expected: Mapping[str, CopiedFile], tree: Tree, on_progress: OnProgress = no_progress
) -> list[str]:
    """Returns a sentence for each file that is missing or differs from its digest."""
    problems = []
    for number, (path, file) in enumerate(expected.items()):
        on_progress(number, len(expected))
        content = tree.read(path)
        if content is None:
            problems.append(f"{tree.location}/{path} is missing.")
            continue
        digest = RunningDigest(file.digest)
        digest.update(content)
        if (digest.length, digest.hexdigest()) != (file.size_bytes, file.digest):
            problems.append(f"{tree.location}/{path} has been altered.")
    return problems


MANIFEST = "savepoint.json"
FORMAT = 1


class SavepointManifest(msgspec.Struct, frozen=True, kw_only=True):
    """`files` is {path: (bytes, digest)}."""

    format: int = FORMAT
    query_id: str
    batch_id: int
    keeps_next: bool  # with the plan of the next batch
    label: str
    taken_ms: int
    location: str  # of the query
    store: str
    files: dict[str, tuple[int, str]]

    @property
    def size_bytes(self) -> int:
        return sum(length for length, _ in self.files.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class SavepointRequest:
    batch_id: int
    label: str
    taken_ms: int
    keeps_next: bool = False


def take_savepoint(
    source: Tree,
    query: QueryDirectory,
    target: Tree,
    request: SavepointRequest,
    on_progress: OnProgress = no_progress,
) -> SavepointManifest:
    """Copy one committed batch of a query that may be running.

    Raises Rejected; then nothing of the copy remains.
    """
    metadata = source.read("metadata")
    if metadata is None or not query.query_id:
        raise Rejected(f"{query.location} has no id of its query; write its file metadata first.")
    copying = Copying(batch_id=request.batch_id, metadata=metadata, keeps_next=request.keeps_next)
    written = copy_batch(source, query, target, copying, on_progress)
    manifest = SavepointManifest(
        query_id=query.query_id,
        batch_id=request.batch_id,
        keeps_next=request.keeps_next,
        label=request.label,
        taken_ms=request.taken_ms,
        location=query.location,
        store=query.store.value,
        files={path: (file.size_bytes, file.digest) for path, file in written.items()},
    )
    target.write_new(MANIFEST, msgspec.json.encode(manifest))
    return manifest


def read_savepoint(tree: Tree) -> SavepointManifest:
    """Raises CorruptSnapshot if there is no savepoint, or if its manifest cannot be read."""
    content = tree.read(MANIFEST)
    if content is None:
        raise CorruptSnapshot(
            f"{tree.location} is no savepoint: it has no {MANIFEST}. Give the directory that the"
            " savepoint was written to."
        )
    try:
        manifest = msgspec.json.decode(content, type=SavepointManifest)
    except UNDECODABLE as error:
        raise CorruptSnapshot(f"{tree.location}/{MANIFEST} cannot be read: {error}") from error
    if manifest.format != FORMAT:
        raise CorruptSnapshot(
            f"{tree.location}/{MANIFEST} has format {manifest.format}, and this version reads"
            f" {FORMAT}; use a newer ftdash."
        )
    return manifest


def verify_savepoint(tree: Tree, on_progress: OnProgress = no_progress) -> tuple[str, ...]:
    """Compare every file with its digest; returns the problems, one sentence each.

    Raises CorruptSnapshot if the manifest is missing or cannot be read.
    """
    manifest = read_savepoint(tree)
    files = {path: CopiedFile(*each) for path, each in manifest.files.items()}
    return tuple(same_content(files, tree, on_progress))
