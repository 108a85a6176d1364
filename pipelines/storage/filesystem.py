"""Checkpoints in a local directory: durable files, then one manifest, created if absent.

A data file is written under a temporary name while its length and digest are computed, made
durable, and linked into place. Linking is atomic and refuses to replace a file. The manifest is
written in the same way. Checks compare a file with its handle, and say in a sentence what is wrong.
Source: the publication order of Flink's `FsCheckpointMetadataOutputStream`; digests are ours.
"""

import contextlib
import os
import shutil
import stat
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

import pyarrow as pa

from pipelines.disk.files import RunningDigest, blocks_of, make_directory, make_durable
from pipelines.domain.errors import CorruptSnapshot, Rejected, Retryable
from pipelines.domain.snapshots import FileHandle, Manifest
from pipelines.storage.manifests import MANIFEST, missing, problem_of_name, seal, unseal
from pipelines.storage.roots import StorageRoots
from pipelines.storage.state_file import (
    decoded,
    encode_into,
    file_name,
    handle_from,
    handle_of,
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

DIGEST_BLOCK_BYTES = 8 << 20


def write_durably(path: Path, name: str, pieces: Iterable[bytes | memoryview]) -> FileHandle:
    """Raises Retryable if the disk has taken less than it reported."""
    digest = RunningDigest()
    with open(path, "xb") as file:
        for piece in pieces:
            digest.update(piece)
            file.write(piece)
        file.flush()
        os.fsync(file.fileno())
        found_bytes = os.fstat(file.fileno()).st_size
    handle = handle_from(name, digest)
    problem = problem_of_length(str(path.with_name(name)), found_bytes, handle)
    if problem is not None:
        raise Retryable(problem)
    return handle


def write_rows_durably(
    path: Path, name: str, encode: Callable[[pa.NativeFile], None]
) -> FileHandle:
    """Like `write_durably`, for what Arrow encodes.

    Arrow writes the file itself, and this thread reads it again in large blocks for the digest.
    While a subtask is busy, this thread waits for the interpreter's lock after each step. So one
    step for each buffer of each column would take longer than the writing.
    """
    digest = RunningDigest()
    with open(path, "x+b", buffering=0) as file:  # before Arrow does, to see all its errors
        with native_file(path) as native:
            encode(native)
            written_bytes = native.tell()
        os.fsync(file.fileno())
        block = memoryview(bytearray(min(written_bytes, DIGEST_BLOCK_BYTES)))
        while count := file.readinto(block):
            digest.update(block[:count])
    handle = FileHandle(name=name, length=written_bytes, digest=digest.hexdigest())
    problem = problem_of_length(str(path.with_name(name)), digest.length, handle)
    if problem is not None:
        raise Retryable(problem)
    return handle


def native_file(path: Path) -> pa.NativeFile:
    return pa.OSFile(str(path), "wb")


def link_if_absent(temporary: Path, final: Path) -> bool:
    """Returns False if another file has the name. Raises OSError.

    A network file system may repeat a link whose answer was lost. The second try then finds the
    file, and it is ours.
    """
    try:
        os.link(temporary, final)
    except FileExistsError:
        return os.path.samestat(os.lstat(temporary), os.lstat(final))
    return True


def try_link(directory: Path, file: FileHandle, target: Path) -> bool:
    """Makes `target` another name of the file. Returns False, without a `target`, if it cannot.

    It cannot if the file is on another file system, is not a plain file, or may not be linked.
    """
    if problem_outside(directory, file) is not None:
        return False
    try:
        os.link(directory / file.name, target, follow_symlinks=False)
    except OSError:
        return False
    return True


def problem_of_file(directory: Path, file: FileHandle, copy_to: Path | None = None) -> str | None:
    """Returns why a file does not match its handle, as a sentence, or None if it does.

    Raises Retryable if it cannot be read or copied, which says nothing about the file.
    """
    problem, path = problem_outside(directory, file), directory / file.name
    if problem is not None:
        return problem
    with reading(path):
        try:
            found = handle_of(file.name, _copied(blocks_of(path), copy_to), like=file.digest)
        except FileNotFoundError:  # it vanished since the first look
            return f"{path} is missing."
    return problem_of_content(str(path), found, file)


def problem_outside(directory: Path, file: FileHandle) -> str | None:
    """Returns what is wrong with a file's name, existence or length, or None. Does not read it.

    Raises Retryable.
    """
    problem, path = problem_of_name(str(directory), file.name), directory / file.name
    if problem is not None:
        return problem
    with reading(path):
        try:
            found = path.lstat()
        except (FileNotFoundError, NotADirectoryError):
            return f"{path} is missing."
    if stat.S_ISLNK(found.st_mode):
        return problem_of_link(path)
    if not stat.S_ISREG(found.st_mode):
        return f"{path} is no file."
    return problem_of_length(str(path), found.st_size, file)


def content_of(path: Path) -> bytes | None:
    """Returns None if the file does not exist. Raises CorruptSnapshot for a link, and Retryable."""
    with reading(path):
        try:
            if stat.S_ISLNK(path.lstat().st_mode):
                raise CorruptSnapshot(problem_of_link(path))
            return b"".join(blocks_of(path))
        except (FileNotFoundError, NotADirectoryError):
            return None


def is_there(path: Path) -> bool:
    """Raises Retryable for what it may not look at; `Path.exists` and `Path.glob` skip that."""
    with reading(path):
        try:
            path.lstat()
        except (FileNotFoundError, NotADirectoryError):
            return False
    return True


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Only missing, short or altered content is damage; other errors of the system may pass."""
    try:
        yield
    except OSError as error:
        raise Retryable(f"{path} cannot be read: {error}") from error


def problem_of_link(path: Path) -> str:
    return f"{path} is a link; it may lead out of the storage and is not followed."


def _copied(blocks: Iterator[bytes], target: Path | None) -> Iterator[bytes]:
    if target is None:
        yield from blocks
        return
    with _writing(target):
        copy = open(target, "xb")  # noqa: SIM115 - what reading raises is not the copy's
    try:
        for block in blocks:
            with _writing(target):
                copy.write(block)
            yield block
    finally:
        with _writing(target):
            copy.close()


@contextlib.contextmanager
def _writing(target: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise Retryable(f"{target} cannot be written: {error}") from error


class FileSystemCheckpointStore:
    """Implements `CheckpointStore`. Touches nothing outside `roots`."""

    def __init__(self, roots: Sequence[str], *, compresses: bool = False) -> None:
        self._roots = StorageRoots(roots)
        self._compresses = compresses

    def prepare(self, location: str) -> None:
        try:
            make_directory(self._roots.directory(location))
        except OSError as error:
            raise Retryable(f"{location} cannot be made: {error}") from error

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
        encode = partial(
            encode_into,
            schema=schema,
            batches=batches,
            open_format=open_format,
            compresses=self._compresses,
        )
        return self._write(location, name, partial(write_rows_durably, encode=encode))

    def write_file(self, location: str, name: str, pieces: Iterable[bytes]) -> FileHandle:
        return self._write(location, name, partial(write_durably, pieces=pieces))

    def _write(
        self, location: str, name: str, write: Callable[[Path, str], FileHandle]
    ) -> FileHandle:
        directory = self._roots.directory(location)
        temporary = directory / f".{name}.{uuid.uuid4().hex}"
        try:
            make_directory(directory)
            handle = write(temporary, name)
            if not link_if_absent(temporary, directory / name):
                raise taken(location, name)
            make_durable(directory)
        except OSError as error:
            raise Retryable(f"{name} cannot be written to {location}: {error}") from error
        finally:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
        return handle

    def read_batches(self, location: str, file: FileHandle) -> Iterator[pa.RecordBatch]:
        directory = self._directory_of(location, file)
        problem = problem_of_file(directory, file)
        if problem is not None:
            raise CorruptSnapshot(problem)
        yield from decoded(file.name, _mapped(directory / file.name))

    def fetch(
        self, location: str, file: FileHandle, target: Path, *, may_share: bool = False
    ) -> None:
        directory = self._directory_of(location, file)
        is_linked = may_share and try_link(directory, file, target)
        problem = problem_of_file(directory, file, copy_to=None if is_linked else target)
        if problem is not None:
            raise CorruptSnapshot(problem)

    def publish(self, location: str, manifest: Manifest) -> Publication:
        """Raises Retryable if the storage fails.

        It is then unknown if the manifest was published, so the caller tries again or discards it.
        """
        directory = self._roots.directory(location)
        content = seal(manifest)
        temporary = directory / f".{MANIFEST}.{uuid.uuid4().hex}"
        try:
            make_directory(directory)
            with open(temporary, "xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            published = link_if_absent(temporary, directory / MANIFEST)
            make_durable(directory)
            make_durable(directory.parent)
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
        path = self._roots.directory(location) / MANIFEST
        content = content_of(path)
        if content is None:
            raise missing(str(path))
        return unseal(str(path), content)

    def problem_of(self, location: str, file: FileHandle, *, reads: bool) -> str | None:
        directory = self._directory_of(location, file)
        if not reads:
            return problem_outside(directory, file)
        problem = problem_of_file(directory, file)
        if problem is not None or not has_layout(file.name):
            return problem
        return problem_of_layout(file.name, _mapped(directory / file.name))

    def verify(self, location: str, watch: WatchVerification | None = None) -> list[Damage]:
        return damages_of(self, location, watch)

    def published(self, root: str, *, among: Collection[str] | None = None) -> list[str]:
        names = self.names(root) if among is None else among
        directory = self._roots.directory(root)
        return [f"{root}/{name}" for name in names if is_there(directory / name / MANIFEST)]

    def names(self, root: str) -> list[str]:
        directory = self._roots.directory(root)
        try:
            return os.listdir(directory)
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:  # which does not mean that there is none
            raise Retryable(f"{root} cannot be listed: {error}") from error

    def delete(self, location: str, names: Iterable[str]) -> None:
        directory = self._roots.directory(location)
        try:
            for name in checked_names(location, names):
                (directory / name).unlink(missing_ok=True)
        except OSError as error:
            raise Retryable(f"Files cannot be deleted in {location}: {error}") from error

    def _directory_of(self, location: str, file: FileHandle) -> Path:
        return self._roots.directory(location_of(location, file))

    def discard(self, location: str) -> None:
        """Raises Retryable if the manifest cannot be deleted; the point is then still whole."""
        directory = self._roots.directory(location)
        if self._roots.is_root(directory):
            raise Rejected(f"{location} is the storage itself and not a point in it; it is kept.")
        try:
            (directory / MANIFEST).unlink(missing_ok=True)
            with contextlib.suppress(FileNotFoundError):
                make_durable(directory)
        except OSError as error:
            raise Retryable(f"{MANIFEST} cannot be deleted in {location}: {error}") from error
        shutil.rmtree(directory, ignore_errors=True)  # without a manifest the rest is garbage


def _mapped(path: Path) -> pa.Buffer:
    with reading(path):
        return mapped(str(path))
