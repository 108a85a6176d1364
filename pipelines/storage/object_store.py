"""Checkpoints in an object store: files first, then one manifest, put only if it is absent.

Nothing is renamed, and nothing is listed to take or restore a point. Files larger than a part are
uploaded in parts, of which few are in memory; what is aborted leaves no object. Credentials,
region and endpoint come from the environment (`AWS_...`), or from the machine's own role.
"""

import contextlib
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path

import obstore
import pyarrow as pa
from obstore.exceptions import BaseError
from tenacity import Retrying, retry_if_exception_type, stop_after_attempt

from pipelines.domain.errors import CorruptSnapshot, Rejected, Retryable
from pipelines.domain.snapshots import FileHandle, Manifest
from pipelines.storage.integrity import (
    RunningDigest,
    problem_of_content,
    problem_of_length,
    problem_of_name,
)
from pipelines.storage.manifest_file import MANIFEST, files_of, missing, seal, unseal
from pipelines.storage.object_clients import ObjectClients, ObjectStoreLimits, reason_of
from pipelines.storage.roots import ObjectPrefix, StorageRoots
from pipelines.storage.state_file import Piece, decoded, encoded, file_name
from pipelines.storage.store import Damage, Publication, checked_names, location_of

Keep = Callable[[bytes], object]
STORE_ERRORS = (BaseError, OSError)
PUBLISH_TRIES = 2
READ_BLOCK_BYTES = 1 << 20


class ObjectCheckpointStore:
    """Implements `CheckpointStore`. Needs a store that honours `If-None-Match: *` on a put."""

    def __init__(self, roots: Sequence[str], limits: ObjectStoreLimits | None = None) -> None:
        self._roots = StorageRoots(roots)
        self._limits = limits or ObjectStoreLimits()
        self._clients = ObjectClients(self._limits)

    def write_batches(
        self,
        location: str,
        stem: str,
        schema: pa.Schema,
        batches: Iterable[pa.RecordBatch],
        *,
        open_format: bool,
    ) -> FileHandle:
        name = file_name(stem, open_format=open_format)
        return self._write(location, name, encoded(schema, batches, open_format=open_format))

    def write_file(self, location: str, name: str, pieces: Iterable[bytes]) -> FileHandle:
        return self._write(location, name, map(memoryview, pieces))

    def _write(self, location: str, name: str, pieces: Iterable[Piece]) -> FileHandle:
        prefix = self._roots.prefix(location)
        digest = RunningDigest()
        try:
            self._upload(prefix, name, _digested(pieces, digest))
        except STORE_ERRORS as error:
            raise Retryable(
                f"{name} cannot be written to {location}: {reason_of(error)}"
            ) from error
        return digest.handle(name)

    def read_batches(self, location: str, file: FileHandle) -> Iterator[pa.RecordBatch]:
        """The file is held in an unlinked temporary file, mapped, while its rows are in use."""
        prefix = self._prefix_of(location, file)
        with tempfile.TemporaryFile(prefix="restore-") as spool:
            problem = self._problem_of(prefix, file, spool.write)
            if problem is not None:
                raise CorruptSnapshot(problem)
            spool.flush()
            content = pa.memory_map(f"/proc/self/fd/{spool.fileno()}").read_buffer()
        yield from decoded(file.name, content)

    def fetch(self, location: str, file: FileHandle, target: Path) -> None:
        try:
            with open(target, "xb") as copy:
                problem = self._problem_of(self._prefix_of(location, file), file, copy.write)
        except OSError as error:
            raise Retryable(f"{target} cannot be written: {error}") from error
        if problem is not None:
            raise CorruptSnapshot(problem)

    def publish(self, location: str, manifest: Manifest) -> Publication:
        """Raises Retryable when the storage fails; whether it was published is then unknown, so the
        caller tries again or discards it."""
        prefix, content = self._roots.prefix(location), seal(manifest)
        tries = Retrying(
            stop=stop_after_attempt(PUBLISH_TRIES),
            retry=retry_if_exception_type(Retryable),
            reraise=True,
        )
        return tries(self._try_publish, prefix, content)

    def manifest(self, location: str) -> Manifest:
        """Raises Retryable, too, when the storage does not answer: that damages nothing."""
        prefix = self._roots.prefix(location)
        where = f"{prefix}/{MANIFEST}"
        content = self._content(prefix, MANIFEST)
        if content is None:
            raise missing(where)
        return unseal(where, content)

    def verify(self, location: str) -> list[Damage]:
        """Raises Retryable when the storage does not answer."""
        try:
            manifest = self.manifest(location)
        except CorruptSnapshot as error:
            return [Damage(MANIFEST, str(error))]
        problems = (
            (file, self._problem_of(self._prefix_of(location, file), file, _forget))
            for file in files_of(manifest)
        )
        return [Damage(file.name, problem) for file, problem in problems if problem is not None]

    def published(self, root: str) -> list[str]:
        prefix = self._roots.prefix(root)
        return [
            f"{prefix}/{name}"
            for name in self.names(root)
            if self._exists(prefix, f"{name}/{MANIFEST}")
        ]

    def names(self, root: str) -> list[str]:
        prefix = self._roots.prefix(root)
        try:
            found = obstore.list_with_delimiter(self._clients.of(prefix), prefix.key)
        except STORE_ERRORS as error:
            raise Retryable(f"{root} cannot be listed: {reason_of(error)}") from error
        paths = [*found["common_prefixes"], *(entry["path"] for entry in found["objects"])]
        return [path.rstrip("/").rpartition("/")[2] for path in paths]

    def delete(self, location: str, names: Iterable[str]) -> None:
        prefix = self._roots.prefix(location)
        keys = [_key(prefix, name) for name in checked_names(location, names)]
        try:
            if keys:
                obstore.delete(self._clients.of(prefix), keys)
        except FileNotFoundError:
            pass  # deleted before
        except STORE_ERRORS as error:
            raise Retryable(f"Files cannot be deleted in {location}: {reason_of(error)}") from error

    def _prefix_of(self, location: str, file: FileHandle) -> ObjectPrefix:
        return self._roots.prefix(location_of(location, file))

    def discard(self, location: str) -> None:
        """Raises Retryable when the manifest cannot be deleted; then the point is whole."""
        prefix = self._roots.prefix(location)
        if self._roots.is_root(prefix):
            raise Rejected(f"{location} is the storage itself and not a point in it; it is kept.")
        client = self._clients.of(prefix)
        try:
            obstore.delete(client, _key(prefix, MANIFEST))
        except FileNotFoundError:
            pass  # never published, or discarded before
        except STORE_ERRORS as error:
            raise Retryable(
                f"{MANIFEST} cannot be deleted in {location}: {reason_of(error)}"
            ) from error
        with contextlib.suppress(*STORE_ERRORS):  # without a manifest the rest is garbage
            for entries in obstore.list(client, prefix.key):
                obstore.delete(client, [entry["path"] for entry in entries])

    def _upload(self, prefix: ObjectPrefix, name: str, pieces: Iterator[Piece]) -> None:
        """One request for a file of up to a part; for a larger one its parts, few at a time."""
        client, key = self._clients.of(prefix), _key(prefix, name)
        first = _first_part(pieces, self._limits.part_bytes)
        if len(first) < self._limits.part_bytes:
            obstore.put(client, key, first, use_multipart=False)
            return
        obstore.put(
            client,
            key,
            chain([memoryview(first)], pieces),
            chunk_size=self._limits.part_bytes,
            max_concurrency=self._limits.concurrent_parts,
        )

    def _try_publish(self, prefix: ObjectPrefix, content: bytes) -> Publication:
        """The client repeats what is safe to repeat blindly; a conditional put is not, here it is:
        whose manifest is there can be told."""
        try:
            obstore.put(
                self._clients.of(prefix),
                _key(prefix, MANIFEST),
                content,
                mode="create",
                use_multipart=False,
            )
        except STORE_ERRORS as error:
            return self._outcome_of_a_failed_put(prefix, content, error)
        return Publication.PUBLISHED

    def _outcome_of_a_failed_put(
        self, prefix: ObjectPrefix, content: bytes, error: Exception
    ) -> Publication:
        """A put whose answer was lost may have succeeded, and then meets itself when repeated."""
        found = self._content(prefix, MANIFEST)
        if found is None:
            why = reason_of(error)
            raise Retryable(f"{MANIFEST} cannot be written to {prefix}: {why}") from error
        return Publication.ALREADY_PUBLISHED if found == content else Publication.CONFLICT

    def _problem_of(self, prefix: ObjectPrefix, file: FileHandle, keep: Keep) -> str | None:
        """Reads the file once, a block at a time; why it is not what its handle says, or None."""
        problem = problem_of_name(str(prefix), file.name)
        if problem is not None:
            return problem
        where, digest = f"{prefix}/{file.name}", RunningDigest()
        try:
            found = obstore.get(self._clients.of(prefix), _key(prefix, file.name))
            problem = problem_of_length(where, found.meta["size"], file)
            if problem is not None:
                return problem
            for block in found.stream(min_chunk_size=READ_BLOCK_BYTES):
                digest.update(block)
                keep(block)
        except FileNotFoundError:
            return f"{where} is missing."
        except STORE_ERRORS as error:
            raise Retryable(f"{where} cannot be read: {reason_of(error)}") from error
        return problem_of_content(where, digest.handle(file.name), file)

    def _exists(self, prefix: ObjectPrefix, name: str) -> bool:
        try:
            obstore.head(self._clients.of(prefix), _key(prefix, name))
        except FileNotFoundError:
            return False
        except STORE_ERRORS as error:
            raise Retryable(f"{prefix}/{name} cannot be read: {reason_of(error)}") from error
        return True

    def _content(self, prefix: ObjectPrefix, name: str) -> bytes | None:
        """None: there is no such object."""
        try:
            found = obstore.get(self._clients.of(prefix), _key(prefix, name))
            return bytes(found.bytes())
        except FileNotFoundError:
            return None
        except STORE_ERRORS as error:
            raise Retryable(f"{prefix}/{name} cannot be read: {reason_of(error)}") from error


def _key(prefix: ObjectPrefix, name: str) -> str:
    return "/".join((*prefix.parts, name))


def _digested(pieces: Iterable[Piece], digest: RunningDigest) -> Iterator[Piece]:
    for piece in pieces:
        digest.update(piece)
        yield piece


def _first_part(pieces: Iterator[Piece], part_bytes: int) -> bytes:
    """At least a part of what comes, unless there is less."""
    part = bytearray()
    while len(part) < part_bytes:
        piece = next(pieces, None)
        if piece is None:
            break
        part += piece
    return bytes(part)


def _forget(block: bytes) -> None:
    """For whoever only wants to know that a file is whole."""
