"""Checkpoints in a local directory: durable files, then one manifest, created if absent.

A data file is written under a temporary name while its length and digest are computed, made
durable and renamed. The manifest is linked into place, which is atomic and refuses to replace.
Source: the publication order of Flink's `FsCheckpointMetadataOutputStream`; digests are ours.
"""

import base64
import contextlib
import hashlib
import os
import shutil
import uuid
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.domain.errors import CorruptSnapshot, Rejected, Retryable
from pipelines.domain.snapshots import FORMAT_VERSION, FileHandle, Manifest
from pipelines.storage.store import Damage, Publication

MANIFEST = "manifest.json"
DIGEST_BYTES = 32
READ_BLOCK_BYTES = 1 << 20


class _Sealed(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of manifest.json: the manifest and the digest of its canonical JSON."""

    digest: str
    manifest: msgspec.Raw


class FileSystemCheckpointStore:
    """Implements `CheckpointStore`. Touches nothing outside `roots`."""

    def __init__(self, roots: Sequence[str]) -> None:
        self._roots = [Path(root).resolve() for root in roots]

    def write_batches(
        self,
        location: str,
        stem: str,
        schema: pa.Schema,
        batches: Iterable[pa.RecordBatch],
        *,
        open_format: bool,
    ) -> FileHandle:
        directory = self._checked(location)
        name = f"{stem}.{'parquet' if open_format else 'arrow'}"
        temporary = directory / f".{name}.{uuid.uuid4().hex}"
        try:
            directory.mkdir(parents=True, exist_ok=True)
            length, digest = _write_durably(temporary, schema, batches, open_format)
            os.rename(temporary, directory / name)
            _make_durable(directory)
        except OSError as error:
            raise Retryable(f"{name} cannot be written to {location}: {error}") from error
        finally:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
        return FileHandle(name=name, length=length, digest=digest)

    def read_batches(self, location: str, file: FileHandle) -> Iterator[pa.RecordBatch]:
        directory = self._checked(location)
        problem = _problem_of(directory, file)
        if problem is not None:
            raise CorruptSnapshot(problem)
        path = directory / file.name
        if path.suffix == ".parquet":
            yield from _parquet_batches(path)
            return
        reader = pa.ipc.open_file(pa.memory_map(str(path)))
        for index in range(reader.num_record_batches):
            yield reader.get_batch(index)

    def publish(self, location: str, manifest: Manifest) -> Publication:
        """Raises Retryable when the storage fails; whether it was published is then unknown, so the
        caller tries again or discards it."""
        directory = self._checked(location)
        content = _seal(manifest)
        temporary = directory / f".{MANIFEST}.{uuid.uuid4().hex}"
        try:
            directory.mkdir(parents=True, exist_ok=True)
            with open(temporary, "xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            published = _link_if_absent(temporary, directory / MANIFEST)
            _make_durable(directory)
            _make_durable(directory.parent)
            same = published or (directory / MANIFEST).read_bytes() == content
        except OSError as error:
            raise Retryable(f"{MANIFEST} cannot be written to {location}: {error}") from error
        finally:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
        if published:
            return Publication.PUBLISHED
        return Publication.ALREADY_PUBLISHED if same else Publication.CONFLICT

    def manifest(self, location: str) -> Manifest:
        path = self._checked(location) / MANIFEST
        try:
            sealed = msgspec.json.decode(path.read_bytes(), type=_Sealed)
        except FileNotFoundError as error:
            raise CorruptSnapshot(f"{path} is missing: this point was never completed.") from error
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise CorruptSnapshot(f"{path} is truncated or altered: {error}.") from error
        except OSError as error:
            raise CorruptSnapshot(f"{path} cannot be read: {error}.") from error
        if _digest_of(bytes(sealed.manifest)) != sealed.digest:
            raise CorruptSnapshot(f"{path} was altered: its digest does not match.")
        return _decode(path, bytes(sealed.manifest))

    def verify(self, location: str) -> list[Damage]:
        try:
            manifest = self.manifest(location)
        except CorruptSnapshot as error:
            return [Damage(MANIFEST, str(error))]
        directory = self._checked(location)
        problems = ((file, _problem_of(directory, file)) for file in _files(manifest))
        return [Damage(file.name, problem) for file, problem in problems if problem is not None]

    def published(self, root: str) -> list[str]:
        return [str(path.parent) for path in self._checked(root).glob(f"*/{MANIFEST}")]

    def discard(self, location: str) -> None:
        """Raises Retryable when the manifest cannot be deleted; then the point is whole."""
        directory = self._checked(location)
        if directory in self._roots:
            raise Rejected(f"{location} is the storage itself and not a point in it; it is kept.")
        try:
            (directory / MANIFEST).unlink(missing_ok=True)
            if directory.is_dir():
                _make_durable(directory)
        except OSError as error:
            raise Retryable(f"{MANIFEST} cannot be deleted in {location}: {error}") from error
        shutil.rmtree(directory, ignore_errors=True)  # without a manifest the rest is garbage

    def _checked(self, location: str) -> Path:
        path = Path(location).resolve()
        if not any(path.is_relative_to(root) for root in self._roots):
            raise Rejected(f"{location} lies outside the configured storage and is not touched.")
        return path


class _Digesting:
    """A file-like object that digests what passes through it, in one pass."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._hash = hashlib.blake2b(digest_size=DIGEST_BYTES)
        self.length = 0
        self.closed = False

    def write(self, data: bytes) -> int:
        self._hash.update(data)
        self.length += len(data)
        return self._file.write(data)

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self.closed = True

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()


def _write_durably(
    path: Path, schema: pa.Schema, batches: Iterable[pa.RecordBatch], open_format: bool
) -> tuple[int, str]:
    with open(path, "xb") as file:
        digesting = _Digesting(file)
        sink = pa.PythonFile(digesting, mode="w")
        if open_format:
            with pq.ParquetWriter(sink, schema) as writer:
                for batch in batches:
                    writer.write_batch(batch)
        else:
            with pa.ipc.new_file(sink, schema) as writer:
                for batch in batches:
                    writer.write_batch(batch)
        sink.flush()
        file.flush()
        os.fsync(file.fileno())
    return digesting.length, digesting.digest


def _parquet_batches(path: Path) -> Iterator[pa.RecordBatch]:
    """Rows in the types they were written in: Parquet itself has no seconds, for one."""
    file = pq.ParquetFile(path)
    encoded = file.metadata.metadata[b"ARROW:schema"]
    schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(encoded)))
    for batch in file.iter_batches(use_threads=False):
        yield batch.cast(schema)


def _link_if_absent(temporary: Path, final: Path) -> bool:
    try:
        os.link(temporary, final)
    except FileExistsError:
        return False
    return True


def _make_durable(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _problem_of(directory: Path, file: FileHandle) -> str | None:
    """Why a file is not what its handle says, as a sentence; None when it is."""
    if os.path.basename(file.name) != file.name or file.name in ("", os.curdir, os.pardir):
        return f"{file.name!r} is no file name; the manifest in {directory} was not written here."
    path = directory / file.name
    try:
        length = path.stat().st_size
        if length != file.length:
            change = "truncated" if length < file.length else "extended"
            return f"{path} has {length} bytes instead of {file.length}: it was {change}."
        if _digest_of_file(path) != file.digest:
            return f"{path} was altered: its digest does not match."
    except FileNotFoundError:
        return f"{path} is missing."
    except OSError as error:
        return f"{path} cannot be read: {error}."
    return None


def _digest_of_file(path: Path) -> str:
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
    with open(path, "rb") as file:
        while block := file.read(READ_BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()


def _digest_of(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=DIGEST_BYTES).hexdigest()


def _seal(manifest: Manifest) -> bytes:
    content = msgspec.json.encode(manifest)
    return msgspec.json.encode(_Sealed(digest=_digest_of(content), manifest=msgspec.Raw(content)))


def _decode(path: Path, content: bytes) -> Manifest:
    try:
        version = msgspec.json.decode(content, type=_Versioned).format_version
        if version > FORMAT_VERSION:
            raise CorruptSnapshot(
                f"{path} was written by a newer release (format {version}); this one reads "
                f"formats up to {FORMAT_VERSION}."
            )
        return msgspec.json.decode(content, type=Manifest)
    except msgspec.DecodeError as error:
        raise CorruptSnapshot(f"{path} is not a manifest: {error}.") from error


class _Versioned(msgspec.Struct):
    format_version: int


def _files(manifest: Manifest) -> Iterator[FileHandle]:
    for subtask in manifest.subtasks:
        for operator in subtask.operators:
            for state in operator.states:
                yield state.file
