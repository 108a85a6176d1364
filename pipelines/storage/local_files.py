"""Single files of a local disk: made durable, compared with their handles, copied.

Describes in a sentence what is wrong with a file. `filesystem` makes checkpoints out of files.
"""

import contextlib
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from pipelines.disk.files import RunningDigest, blocks_of
from pipelines.domain.errors import CorruptSnapshot, Retryable
from pipelines.domain.snapshots import FileHandle
from pipelines.storage.manifest_file import (
    handle_from,
    handle_of,
    problem_of_content,
    problem_of_length,
    problem_of_name,
)


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


def link_if_absent(temporary: Path, final: Path) -> bool:
    """Raises OSError. A network file system may repeat a link whose answer was lost; the second try
    then finds the file, and it is ours."""
    try:
        os.link(temporary, final)
    except FileExistsError:
        return os.path.samestat(os.lstat(temporary), os.lstat(final))
    return True


def try_link(directory: Path, file: FileHandle, target: Path) -> bool:
    """Make `target` another name of the file. False if that is impossible: it is on another file
    system, is not a plain file, or may not be linked; then there is no `target`."""
    if problem_outside(directory, file) is not None:
        return False
    try:
        os.link(directory / file.name, target, follow_symlinks=False)
    except OSError:
        return False
    return True


def problem_of_file(directory: Path, file: FileHandle, copy_to: Path | None = None) -> str | None:
    """Why a file does not match its handle, as a sentence; None if it does.

    Raises Retryable if it cannot be read or copied: that says nothing about the file.
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
    """A check without reading: the file has a valid name, exists, and has its length.

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
    """None: the file does not exist. Raises CorruptSnapshot for a link, and Retryable."""
    with reading(path):
        try:
            if stat.S_ISLNK(path.lstat().st_mode):
                raise CorruptSnapshot(problem_of_link(path))
            return b"".join(blocks_of(path))
        except (FileNotFoundError, NotADirectoryError):
            return None


def is_there(path: Path) -> bool:
    """Raises Retryable, where `Path.exists` and `Path.glob` skip what they may not look at."""
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
