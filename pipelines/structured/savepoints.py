"""Savepoints of Structured Streaming queries: one batch, copied whole, with a digest of every file.

A savepoint is itself a checkpoint directory that holds a single batch, and a manifest beside it,
written last: without a manifest there is no savepoint. It never changes. To run from it, fork it.
"""

from dataclasses import dataclass

import msgspec

from pipelines.domain.errors import UNDECODABLE, CorruptSnapshot, Rejected
from pipelines.storage.trees import Tree
from pipelines.structured.copying import (
    CopiedFile,
    Copying,
    Told,
    copy_batch,
    same_content,
    untold,
)
from pipelines.structured.query import QueryDirectory

MANIFEST = "savepoint.json"
FORMAT = 1


class SavepointManifest(msgspec.Struct, frozen=True, kw_only=True):
    """`files`: {path: (bytes, digest)}."""

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
    told: Told = untold,
) -> SavepointManifest:
    """Copy one committed batch of a query that may run. Raises Rejected, then nothing remains."""
    metadata = source.read("metadata")
    if metadata is None or not query.query_id:
        raise Rejected(f"{query.location} has no id of its query; write its file metadata first.")
    copying = Copying(batch_id=request.batch_id, metadata=metadata, keeps_next=request.keeps_next)
    written = copy_batch(source, query, target, copying, told)
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
    """Raises CorruptSnapshot if there is none, or if it cannot be read."""
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


def verify_savepoint(tree: Tree, told: Told = untold) -> tuple[str, ...]:
    """Compare every file with its digest; each problem is a sentence. Raises CorruptSnapshot."""
    manifest = read_savepoint(tree)
    files = {path: CopiedFile(*each) for path, each in manifest.files.items()}
    return tuple(same_content(files, tree, told))
