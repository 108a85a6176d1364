"""The manifest, which makes a directory a checkpoint: JSON with a digest of itself.

`unseal` is the only way to read one: a manifest that was truncated or altered, or that names files
elsewhere, is refused. Loads no Arrow, so that a page can read a manifest at once.
"""

import os
from collections.abc import Iterator

import msgspec

from pipelines.disk.files import BLAKE3, RunningDigest
from pipelines.domain.errors import UNDECODABLE, CorruptSnapshot
from pipelines.domain.snapshots import (
    FORMAT_VERSION,
    FileHandle,
    Manifest,
    StateFormat,
    SubtaskSnapshot,
)

MANIFEST = "manifest.json"


class _Sealed(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of manifest.json: the manifest and the digest of its canonical JSON."""

    digest: str
    manifest: msgspec.Raw


class _Versioned(msgspec.Struct):
    format_version: int


def seal(manifest: Manifest) -> bytes:
    content = msgspec.json.encode(manifest)
    return msgspec.json.encode(_Sealed(digest=digest_of(content), manifest=msgspec.Raw(content)))


def unseal(where: str, content: bytes) -> Manifest:
    """Raises CorruptSnapshot (truncated, altered, newer format) naming `where`."""
    try:
        sealed = msgspec.json.decode(content, type=_Sealed)
    except UNDECODABLE as error:
        raise CorruptSnapshot(f"{where} is truncated or altered: {error}.") from error
    if digest_of(bytes(sealed.manifest), like=sealed.digest) != sealed.digest:
        raise CorruptSnapshot(f"{where} was altered: its digest does not match.")
    return _decode(where, bytes(sealed.manifest))


def missing(where: str) -> CorruptSnapshot:
    return CorruptSnapshot(f"{where} is missing: this point was never completed.")


def digest_of(content: bytes, like: str = BLAKE3) -> str:
    digest = RunningDigest(like)
    digest.update(content)
    return digest.hexdigest()


def problem_of_name(directory: str, name: str) -> str | None:
    """Refuses any name but that of a file next to the manifest; our manifests have no others."""
    if os.path.basename(name) != name or name in ("", os.curdir, os.pardir) or "\0" in name:
        return f"{name!r} is no file name; the manifest at {directory} was not written here."
    return None


def files_of(manifest: Manifest) -> Iterator[FileHandle]:
    for subtask in manifest.subtasks:
        yield from files_of_subtask(subtask)


def files_of_subtask(subtask: SubtaskSnapshot) -> Iterator[FileHandle]:
    for operator in subtask.operators:
        for state in operator.states:
            yield from state.files
        for segment in operator.segments:
            yield segment.file
    for in_flight in subtask.in_flight:
        yield in_flight.file


def _decode(where: str, content: bytes) -> Manifest:
    try:
        version = msgspec.json.decode(content, type=_Versioned).format_version
        if version > FORMAT_VERSION:
            raise CorruptSnapshot(
                f"{where} was written by a newer release (format {version}); this one reads "
                f"formats up to {FORMAT_VERSION}."
            )
        manifest = msgspec.json.decode(content, type=Manifest)
    except UNDECODABLE as error:
        raise CorruptSnapshot(f"{where} is not a manifest: {error}.") from error
    for name in _names_of(manifest):
        problem = problem_of_name(where, name)
        if problem is not None:
            raise CorruptSnapshot(problem)
    return manifest


def _names_of(manifest: Manifest) -> Iterator[str]:
    """Yields the names of files in storage, and of a database's files in its directory."""
    yield from (file.name for file in files_of(manifest))
    for subtask in manifest.subtasks:
        for operator in subtask.operators:
            for state in operator.states:
                if state.format is StateFormat.ROCKSDB:
                    yield from (part.name for part in state.parts)
