"""Single files of a local disk: made durable, compared with their handles, copied.

Says in a sentence what is wrong with a file. What makes a checkpoint of files is `filesystem`.
"""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from pipelines.disk.digests import RunningDigest, blocks_of
from pipelines.domain.errors import Retryable
from pipelines.domain.snapshots import FileHandle
from pipelines.storage.integrity import (
    handle_from,
    handle_of,
    problem_of_content,
    problem_of_length,
    problem_of_name,
)


def write_durably(path: Path, name: str, pieces: Iterable[bytes | memoryview]) -> FileHandle:
    """Raises Retryable when the disk has taken less than it said."""
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
    try:
        os.link(temporary, final)
    except FileExistsError:
        return False
    return True


def problem_of_file(directory: Path, file: FileHandle, copy_to: Path | None = None) -> str | None:
    """Why a file is not what its handle says, as a sentence; None when it is.

    Raises Retryable when it cannot be copied.
    """
    problem, path = problem_outside(directory, file), directory / file.name
    if problem is not None:
        return problem
    try:
        found = handle_of(file.name, _copied(blocks_of(path), copy_to), like=file.digest)
        return problem_of_content(str(path), found, file)
    except OSError as error:
        return f"{path} cannot be read: {error}."


def problem_outside(directory: Path, file: FileHandle) -> str | None:
    """What can be told without reading: the file has a name, is there, and has its length."""
    problem, path = problem_of_name(str(directory), file.name), directory / file.name
    if problem is not None:
        return problem
    if path.is_symlink():
        return problem_of_link(path)
    try:
        return problem_of_length(str(path), path.stat().st_size, file)
    except FileNotFoundError:
        return f"{path} is missing."
    except OSError as error:
        return f"{path} cannot be read: {error}."


def problem_of_link(path: Path) -> str:
    return f"{path} is a link; it may lead out of the storage and is not followed."


def _copied(blocks: Iterator[bytes], target: Path | None) -> Iterator[bytes]:
    if target is None:
        yield from blocks
        return
    try:
        with open(target, "xb") as copy:
            for block in blocks:
                copy.write(block)
                yield block
    except OSError as error:
        raise Retryable(f"{target} cannot be written: {error}") from error
