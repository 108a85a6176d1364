"""Reads the head of a recovery point, to refuse a wrong one before anything starts.

Only the head: the driver that restores the point verifies that every file is there and unaltered.
"""

import stat
from pathlib import Path

import msgspec

from pipelines.domain.errors import UNDECODABLE, CorruptSnapshot, Rejected, Retryable
from pipelines.domain.ids import CheckpointId, RunId
from pipelines.domain.places import OBJECT_SCHEMES, scheme_of
from pipelines.domain.status import CheckpointKind

MANIFEST_NAME = "manifest.json"


class PointHead(msgspec.Struct, frozen=True, kw_only=True):
    """The part of `domain.snapshots.Manifest` that decides whether a run may start from it."""

    pipeline: str  # the flow that wrote it
    run_id: RunId
    checkpoint_id: CheckpointId
    kind: CheckpointKind
    max_parallelism: int


class _Sealed(msgspec.Struct, frozen=True):
    """The manifest's file: the manifest and its digest."""

    manifest: PointHead


def may_be_read(path: str) -> bool:
    """True if its manifest is there, as far as the page can tell: the page cannot wait for an
    object store, and a disk that does not answer has lost nothing."""
    scheme = scheme_of(path)
    if scheme:
        return scheme in OBJECT_SCHEMES
    try:
        return stat.S_ISREG((Path(path) / MANIFEST_NAME).stat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True


def read_head(path: str) -> PointHead:
    """Raises Rejected if there is no recovery point at `path`."""
    return _head_of_objects(path) if scheme_of(path) else _head_of_files(path)


def manifest_bytes(path: str) -> bytes:
    """The manifest with its digest, as stored. Raises Rejected if it cannot be read."""
    if not scheme_of(path):
        return _content(path)
    from pipelines.storage.manifest_file import seal
    from pipelines.storage.stores import CheckpointStores

    try:
        return seal(CheckpointStores([path], max_memory_state_bytes=0).manifest(path))
    except (CorruptSnapshot, Retryable) as error:
        raise Rejected(f"{path} cannot be used: {error}") from error


def _head_of_objects(path: str) -> PointHead:
    # The stores load Arrow, which takes longer than a page should; most points are files.
    from pipelines.storage.stores import CheckpointStores

    try:
        manifest = CheckpointStores([path], max_memory_state_bytes=0).manifest(path)
    except (CorruptSnapshot, Retryable) as error:
        raise Rejected(f"{path} cannot be used: {error}") from error
    return msgspec.convert(manifest, PointHead, from_attributes=True)


def _head_of_files(path: str) -> PointHead:
    try:
        return msgspec.json.decode(_content(path), type=_Sealed).manifest
    except UNDECODABLE as error:
        manifest = Path(path) / MANIFEST_NAME
        raise Rejected(f"{manifest} is damaged ({error}); choose another point.") from error


def _content(path: str) -> bytes:
    try:
        return (Path(path) / MANIFEST_NAME).read_bytes()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise Rejected(
            f"There is no recovery point at {path}: its {MANIFEST_NAME} is missing; choose another"
            " point."
        ) from error
    except OSError as error:
        raise Rejected(
            f"{Path(path) / MANIFEST_NAME} cannot be read at the moment ({error.strerror}); try"
            " again when the storage answers."
        ) from error
