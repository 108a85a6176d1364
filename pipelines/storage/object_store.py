"""Checkpoints in an object store: files first, then one manifest, put only if it is absent.

The store renames nothing, and lists nothing to take or restore a point. Files larger than a part
are uploaded in parts, only a few of them in memory at a time; an aborted upload leaves no object.

A missing object is an answer; any other failed request is Retryable. There is one client per
bucket. Its library retries (5xx, dropped connections, timeouts) within the bounds set here. We
never pass credentials: the library finds them, the region and the endpoint in the environment
(`AWS_...`), or asks for the machine's role.
"""

import contextlib
import os
import tempfile
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import chain
from pathlib import Path
from typing import IO

import obstore
import pyarrow as pa
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import S3Store
from tenacity import Retrying, retry_if_exception_type, stop_after_attempt

from pipelines.disk.files import RunningDigest
from pipelines.domain.errors import CorruptSnapshot, Rejected, Retryable
from pipelines.domain.snapshots import FileHandle, Manifest
from pipelines.storage.manifests import MANIFEST, missing, problem_of_name, seal, unseal
from pipelines.storage.roots import ObjectPrefix, StorageRoots
from pipelines.storage.state_file import (
    Piece,
    decoded,
    encoded,
    file_name,
    handle_from,
    has_layout,
    mapped,
    problem_of_content,
    problem_of_layout,
    problem_of_length,
)
from pipelines.storage.store import (
    Damage,
    Publication,
    WatchVerification,
    checked_names,
    damages_of,
    location_of,
    taken,
)

MACHINE_ROLE_ADDRESS = "//169.254.169.254/"
"""Where the library asks for the machine's role if it has found no other credentials."""
NO_CREDENTIALS = (
    "there are no credentials; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the environment,"
    " or give the machine a role"
)
ENDPOINT_VARIABLES = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectStoreLimits:
    """How long one request may take, how often it is retried, and how much is held in memory."""

    request_timeout_ms: int = 30_000
    connect_timeout_ms: int = 5_000
    retries: int = 5
    first_backoff_ms: int = 50
    max_backoff_ms: int = 5_000
    retry_timeout_ms: int = 60_000
    part_bytes: int = 8 << 20
    concurrent_parts: int = 2


class ObjectClients:
    def __init__(self, limits: ObjectStoreLimits) -> None:
        self._limits = limits
        self._lock = threading.Lock()
        self._by_bucket: dict[str, S3Store] = {}

    def of(self, prefix: ObjectPrefix) -> S3Store:
        with self._lock:
            if prefix.bucket not in self._by_bucket:
                self._by_bucket[prefix.bucket] = self._client(prefix.bucket)
            return self._by_bucket[prefix.bucket]

    def _client(self, bucket: str) -> S3Store:
        limits = self._limits
        return S3Store(
            bucket,
            # The server recomputes it, and refuses bytes that were altered on their way.
            checksum_algorithm="SHA256",
            client_options={
                "timeout": _duration(limits.request_timeout_ms),
                "connect_timeout": _duration(limits.connect_timeout_ms),
                "allow_http": _endpoint_is_plain(),
            },
            retry_config={
                "max_retries": limits.retries,
                "retry_timeout": _duration(limits.retry_timeout_ms),
                "backoff": {
                    "init_backoff": _duration(limits.first_backoff_ms),
                    "max_backoff": _duration(limits.max_backoff_ms),
                    "base": 2,
                },
            },
        )


def reason_of(error: Exception) -> str:
    """The first line of the library's message; the rest is its inner structure."""
    lines = str(error).splitlines()
    said = lines[0].strip() if lines else type(error).__name__
    return f"{NO_CREDENTIALS} ({said})" if MACHINE_ROLE_ADDRESS in said else said


def _endpoint_is_plain() -> bool:
    """Allows a connection without TLS only if the operator has configured such an endpoint."""
    named = (os.environ.get(variable, "") for variable in ENDPOINT_VARIABLES)
    return any(endpoint.startswith("http://") for endpoint in named)


def _duration(milliseconds: int) -> timedelta:
    return timedelta(milliseconds=milliseconds)


Keep = Callable[[bytes], object]
STORE_ERRORS = (BaseError, OSError)
READ_BLOCK_BYTES = 1 << 20
PUT_TRIES = 2
NO_SUCH_OBJECT = "<Code>NoSuchKey</Code>"


class ObjectFiles:
    """Objects by prefix and name. Every method raises Retryable if the store fails."""

    def __init__(self, limits: ObjectStoreLimits) -> None:
        self._limits = limits
        self._clients = ObjectClients(limits)

    def write(self, prefix: ObjectPrefix, name: str, pieces: Iterable[Piece]) -> FileHandle:
        """Raises InvariantViolated if the object exists already."""
        digest = RunningDigest()
        try:
            self._upload(prefix, name, _digested(pieces, digest))
        except STORE_ERRORS as error:
            raise _failed(prefix, name, "written", error) from error
        return handle_from(name, digest)

    def put_if_absent(self, prefix: ObjectPrefix, name: str, content: bytes) -> bool:
        """Returns False if the object exists already.

        It may be from a try of ours whose answer was lost. After a failure it is unknown if the
        object exists.
        """
        client = self._clients.of(prefix)
        try:
            obstore.put(client, prefix.key_of(name), content, mode="create", use_multipart=False)
        except AlreadyExistsError:
            return False
        except STORE_ERRORS as error:
            raise _failed(prefix, name, "written", error) from error
        return True

    def content(self, prefix: ObjectPrefix, name: str) -> bytes | None:
        """Returns None if the object does not exist."""
        try:
            return bytes(obstore.get(self._clients.of(prefix), prefix.key_of(name)).bytes())
        except FileNotFoundError as error:
            _check_absence(prefix, name, error)
            return None
        except STORE_ERRORS as error:
            raise _failed(prefix, name, "read", error) from error

    def exists(self, prefix: ObjectPrefix, name: str) -> bool:
        if self._has(prefix, name):
            return True
        self._confirm_absence(prefix, name)
        return False

    def _has(self, prefix: ObjectPrefix, name: str) -> bool:
        """A False proves nothing, see `_confirm_absence`."""
        try:
            obstore.head(self._clients.of(prefix), prefix.key_of(name))
        except FileNotFoundError:
            return False
        except STORE_ERRORS as error:
            raise _failed(prefix, name, "read", error) from error
        return True

    def problem_of(self, prefix: ObjectPrefix, file: FileHandle, keep: Keep) -> str | None:
        """Reads the file once and passes every block to `keep`.

        Returns why the file does not match its handle, as a sentence, or None.
        """
        problem = problem_of_name(str(prefix), file.name)
        if problem is not None:
            return problem
        where, digest = f"{prefix}/{file.name}", RunningDigest(file.digest)
        try:
            found = obstore.get(self._clients.of(prefix), prefix.key_of(file.name))
            problem = problem_of_length(where, found.meta["size"], file)
            if problem is not None:
                return problem
            for block in found.stream(min_chunk_size=READ_BLOCK_BYTES):
                digest.update(block)
                _keep(where, keep, block)
        except FileNotFoundError as error:
            _check_absence(prefix, file.name, error)
            return f"{where} is missing."
        except STORE_ERRORS as error:
            raise _failed(prefix, file.name, "read", error) from error
        return problem_of_content(where, handle_from(file.name, digest), file)

    def problem_outside(self, prefix: ObjectPrefix, file: FileHandle) -> str | None:
        """Returns what is wrong with a file's name, existence or length, without reading it."""
        problem = problem_of_name(str(prefix), file.name)
        if problem is not None:
            return problem
        where = f"{prefix}/{file.name}"
        try:
            found = obstore.head(self._clients.of(prefix), prefix.key_of(file.name))
        except FileNotFoundError:
            self._confirm_absence(prefix, file.name)
            return f"{where} is missing."
        except STORE_ERRORS as error:
            raise _failed(prefix, file.name, "read", error) from error
        return problem_of_length(where, found["size"], file)

    def names(self, prefix: ObjectPrefix) -> list[str]:
        """The names of objects, and of prefixes that have objects below them."""
        try:
            found = obstore.list_with_delimiter(self._clients.of(prefix), prefix.key)
        except STORE_ERRORS as error:
            raise Retryable(f"{prefix} cannot be listed: {reason_of(error)}") from error
        paths = [*found["common_prefixes"], *(entry["path"] for entry in found["objects"])]
        return [path.rstrip("/").rpartition("/")[2] for path in paths]

    def listed_below(self, prefix: ObjectPrefix) -> Iterator[tuple[str, int, int]]:
        """Yields key, size in bytes and time of the last change in ms of every object below."""
        try:
            for entries in obstore.list(self._clients.of(prefix), f"{prefix.key}/"):
                for entry in entries:
                    modified_ms = int(entry["last_modified"].timestamp() * 1000)
                    yield entry["path"], entry["size"], modified_ms
        except STORE_ERRORS as error:
            raise Retryable(f"{prefix} cannot be listed: {reason_of(error)}") from error

    def delete(self, prefix: ObjectPrefix, names: list[str]) -> None:
        """Skips names that do not exist."""
        keys = [prefix.key_of(name) for name in names]
        try:
            if keys:
                obstore.delete(self._clients.of(prefix), keys)
        except STORE_ERRORS as error:
            raise _failed(prefix, ", ".join(names), "deleted", error) from error

    def delete_below(self, prefix: ObjectPrefix) -> None:
        client = self._clients.of(prefix)
        try:
            for entries in obstore.list(client, prefix.key):
                obstore.delete(client, [entry["path"] for entry in entries])
        except STORE_ERRORS as error:
            raise Retryable(f"{prefix} cannot be cleared: {reason_of(error)}") from error

    def _confirm_absence(self, prefix: ObjectPrefix, name: str) -> None:
        """Reads the object, because a HEAD answer has no body that says what is missing."""
        if self.content(prefix, name) is not None:
            raise Retryable(f"{prefix}/{name} was not there a moment ago, and is there now.")

    def _upload(self, prefix: ObjectPrefix, name: str, pieces: Iterator[Piece]) -> None:
        """Sends a file smaller than a part in one request, and a larger one in parts."""
        client, key = self._clients.of(prefix), prefix.key_of(name)
        first = _first_part(pieces, self._limits.part_bytes)
        if len(first) < self._limits.part_bytes:
            self._put_new(prefix, name, first)
            return
        if self._has(prefix, name):  # the client supports no condition for parts
            raise taken(str(prefix), name)
        obstore.put(
            client,
            key,
            chain([memoryview(first)], pieces),
            chunk_size=self._limits.part_bytes,
            max_concurrency=self._limits.concurrent_parts,
        )

    def _put_new(self, prefix: ObjectPrefix, name: str, content: bytes) -> None:
        """Repeats a conditional put. The client does not, because that is not safe in general.

        Here it is safe: the content shows whose object is there.
        """
        tries = Retrying(
            stop=stop_after_attempt(PUT_TRIES),
            retry=retry_if_exception_type(Retryable),
            reraise=True,
        )
        is_new = tries(self.put_if_absent, prefix, name, content)
        if not is_new and self.content(prefix, name) != content:
            raise taken(str(prefix), name)


def _keep(where: str, keep: Keep, block: bytes) -> None:
    """The local disk that takes a copy may fail in any way; that says nothing about the object."""
    try:
        keep(block)
    except OSError as error:
        raise Retryable(f"{where} cannot be kept on the local disk: {error}") from error


def _check_absence(prefix: ObjectPrefix, name: str, error: FileNotFoundError) -> None:
    """Raises Retryable unless the store says that the object does not exist.

    The bucket may be missing at the moment, or something else may answer in the store's place.
    """
    if NO_SUCH_OBJECT not in str(error):
        raise _failed(prefix, name, "read", error) from error


def _failed(prefix: ObjectPrefix, name: str, verb: str, error: Exception) -> Retryable:
    return Retryable(f"{prefix}/{name} cannot be {verb}: {reason_of(error)}")


def _digested(pieces: Iterable[Piece], digest: RunningDigest) -> Iterator[Piece]:
    for piece in pieces:
        digest.update(piece)
        yield piece


def _first_part(pieces: Iterator[Piece], part_bytes: int) -> bytes:
    """Returns at least one part of the pieces, or all of them if there are fewer."""
    part = bytearray()
    while len(part) < part_bytes:
        piece = next(pieces, None)
        if piece is None:
            break
        part += piece
    return bytes(part)


PUBLISH_TRIES = 2


class ObjectCheckpointStore:
    """Implements `CheckpointStore`. Needs a store that honours `If-None-Match: *` on a put."""

    def __init__(
        self,
        roots: Sequence[str],
        limits: ObjectStoreLimits | None = None,
        *,
        compresses: bool = False,
    ) -> None:
        self._compresses = compresses
        self._roots = StorageRoots(roots)
        self._files = ObjectFiles(limits or ObjectStoreLimits())

    def prepare(self, location: str) -> None:
        """Sends nothing: a prefix need not be created."""
        self._roots.prefix(location)

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
        pieces = encoded(schema, batches, open_format=open_format, compresses=self._compresses)
        return self._files.write(self._roots.prefix(location), name, pieces)

    def write_file(self, location: str, name: str, pieces: Iterable[bytes]) -> FileHandle:
        return self._files.write(self._roots.prefix(location), name, map(memoryview, pieces))

    def read_batches(self, location: str, file: FileHandle) -> Iterator[pa.RecordBatch]:
        """The file is held in an unlinked, mapped temporary file while its rows are in use."""
        prefix = self._prefix_of(location, file)
        with _spooling(file) as spool:
            problem = self._files.problem_of(prefix, file, spool.write)
            if problem is not None:
                raise CorruptSnapshot(problem)
            content = _mapped(spool)
        yield from decoded(file.name, content)

    def fetch(
        self, location: str, file: FileHandle, target: Path, *, may_share: bool = False
    ) -> None:
        del may_share  # the file is on another machine
        prefix = self._prefix_of(location, file)
        try:
            with open(target, "xb") as copy:
                problem = self._files.problem_of(prefix, file, copy.write)
        except OSError as error:
            raise Retryable(f"{target} cannot be written: {error}") from error
        if problem is not None:
            raise CorruptSnapshot(problem)

    def publish(self, location: str, manifest: Manifest) -> Publication:
        """Raises Retryable if the storage fails.

        It is then unknown if the manifest was published, so the caller tries again or discards it.
        """
        prefix, content = self._roots.prefix(location), seal(manifest)
        tries = Retrying(
            stop=stop_after_attempt(PUBLISH_TRIES),
            retry=retry_if_exception_type(Retryable),
            reraise=True,
        )
        return tries(self._try_publish, prefix, content)

    def manifest(self, location: str) -> Manifest:
        """Also raises Retryable if the storage does not answer, which is no damage."""
        prefix = self._roots.prefix(location)
        where = f"{prefix}/{MANIFEST}"
        content = self._files.content(prefix, MANIFEST)
        if content is None:
            raise missing(where)
        return unseal(where, content)

    def problem_of(self, location: str, file: FileHandle, *, reads: bool) -> str | None:
        prefix = self._prefix_of(location, file)
        if not reads:
            return self._files.problem_outside(prefix, file)
        if not has_layout(file.name):
            return self._files.problem_of(prefix, file, _forget)
        with _spooling(file) as spool:
            problem = self._files.problem_of(prefix, file, spool.write)
            return problem or problem_of_layout(file.name, _mapped(spool))

    def verify(self, location: str, watch: WatchVerification | None = None) -> list[Damage]:
        """Raises Retryable if the storage does not answer."""
        return damages_of(self, location, watch)

    def published(self, root: str, *, among: Collection[str] | None = None) -> list[str]:
        prefix = self._roots.prefix(root)
        return [
            f"{prefix}/{name}"
            for name in (self._files.names(prefix) if among is None else among)
            if self._files.exists(prefix, f"{name}/{MANIFEST}")
        ]

    def names(self, root: str) -> list[str]:
        return self._files.names(self._roots.prefix(root))

    def delete(self, location: str, names: Iterable[str]) -> None:
        self._files.delete(self._roots.prefix(location), checked_names(location, names))

    def discard(self, location: str) -> None:
        """Raises Retryable if the manifest cannot be deleted; the point is then still whole."""
        prefix = self._roots.prefix(location)
        if self._roots.is_root(prefix):
            raise Rejected(f"{location} is the storage itself and not a point in it; it is kept.")
        self._files.delete(prefix, [MANIFEST])
        with contextlib.suppress(Retryable):  # without a manifest the rest is garbage
            self._files.delete_below(prefix)

    def _try_publish(self, prefix: ObjectPrefix, content: bytes) -> Publication:
        """Puts the manifest. It may be repeated, although a conditional put may not in general.

        Even after a failed put, the content shows whose manifest is there.
        """
        try:
            if self._files.put_if_absent(prefix, MANIFEST, content):
                return Publication.PUBLISHED
        except Retryable:
            found = self._files.content(prefix, MANIFEST)
            if found is None:
                raise
        else:
            found = self._files.content(prefix, MANIFEST)
        return Publication.ALREADY_PUBLISHED if found == content else Publication.CONFLICT

    def _prefix_of(self, location: str, file: FileHandle) -> ObjectPrefix:
        return self._roots.prefix(location_of(location, file))


@contextlib.contextmanager
def _spooling(file: FileHandle) -> Iterator[IO[bytes]]:
    """A temporary file of this machine; its failures say nothing about the object."""
    try:
        with tempfile.TemporaryFile(prefix="point-") as spool:
            yield spool
    except OSError as error:
        raise Retryable(f"{file.name} cannot be held on the local disk: {error}") from error


def _mapped(spool: IO[bytes]) -> pa.Buffer:
    spool.flush()
    return mapped(f"/proc/self/fd/{spool.fileno()}")


def _forget(block: bytes) -> None:
    """Drops the block, for a caller that only needs to know that a file is whole."""
