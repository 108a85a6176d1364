"""Input files as splits: their names, and the errors for files that cannot be read.

Owns the sentences that a person reads if an input is gone or malformed, or has no such column.
Reads no records; each format does that.
"""

import hashlib
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pyarrow as pa

from pipelines.connectors.positions import listed_once
from pipelines.disk.files import FOR_ALL, replace_atomically
from pipelines.domain.errors import UNDECODABLE, Rejected, Retryable

FilePaths = str | Path | Sequence[str | Path]
"""A directory, or the files themselves."""

LISTING = "_files.json"

VERSION_BYTES = 4_096
"""How much is read at each end of a file, to tell it from another file of the same length."""


class ListedFile(msgspec.Struct, frozen=True):
    """One file in the listing that says which files belong in a directory."""

    name: str
    length: int  # bytes


def input_files(paths: FilePaths, suffix: str) -> tuple[Path, ...]:
    """The files in reading order. Raises Rejected when there is nothing to read.

    A directory is read in the order of its listing if it has one, else in the order of the names in
    it. Only a listing shows that a file has vanished; without one, the later files would silently
    move up. Within a run, a directory is listed once (`connectors.positions`).
    """
    if not isinstance(paths, str | Path):
        files = tuple(Path(path) for path in paths)
    else:
        directory = Path(paths)
        names = listed_once(str(paths), suffix, lambda: _names_in(directory, suffix))
        files = tuple(directory / name for name in names)
    if not files:
        raise Rejected(f"There are no {suffix} files to read in {paths}.")
    return files


def write_listing(directory: Path) -> None:
    """Writes the listing of a directory: the visible files that are there now.

    The listing appears whole or not at all; the caller syncs the directory to keep its name.
    """
    files = sorted(path for path in directory.iterdir() if _is_visible(path))
    listed = [ListedFile(path.name, path.stat().st_size) for path in files]
    replace_atomically(directory / LISTING, msgspec.json.encode(listed), FOR_ALL)


def read_listing(directory: Path) -> list[ListedFile] | None:
    """Returns None if the directory has no listing. Raises Rejected if the listing is malformed."""
    listing = directory / LISTING
    try:
        return msgspec.json.decode(listing.read_bytes(), type=list[ListedFile])
    except FileNotFoundError:
        return None
    except UNDECODABLE as error:
        raise Rejected(f"The listing {listing} is malformed: {error}.") from error


@contextmanager
def reading(file: Path, split: str, offset: int, columns: Sequence[str] = ()) -> Iterator[None]:
    """Turns an exception of a reader of `file` into one sentence that names the file.

    `columns` are the names of columns that the reader knows only by number.
    """
    try:
        yield
    except FileNotFoundError as error:
        raise gone(split, offset, f"{file} is missing") from error
    except PermissionError as error:
        raise Rejected(f"The input file {file} may not be read by this user.") from error
    except (pa.ArrowException, UnicodeDecodeError) as error:  # a name of a column may be no text
        raise malformed(file, error, columns) from error
    except OSError as error:
        if error.errno is None:  # pyarrow's way to say that the bytes make no sense
            raise malformed(file, error, columns) from error
        raise Retryable(f"Reading {file} failed: {error}") from error


def file_version(file: Path, split: str) -> str:
    """Returns the length and a digest of both ends of an immutable file; cheap for any size.

    Raises Rejected if the file is gone.
    """
    with reading(file, split, 0), file.open("rb") as content:
        length = content.seek(0, os.SEEK_END)
        digest = hashlib.blake2b(digest_size=8)
        for place in (0, max(0, length - VERSION_BYTES)):
            content.seek(place)
            digest.update(content.read(VERSION_BYTES))
    return f"{length}-{digest.hexdigest()}"


def gone(split: str, offset: int, why: str) -> Rejected:
    return Rejected(f"The data of split {split} (records from {offset} on) is gone: {why}.")


def check_columns(file: Path, found: pa.Schema, wanted: pa.Schema) -> None:
    """Raises Rejected naming the first column that `file` does not have with the wanted type."""
    for column in wanted:
        if column.name not in found.names:
            raise Rejected(f"The input file {file} has no column {column.name}.")
        actual = found.field(column.name).type
        if actual != column.type:
            raise Rejected(
                f"Column {column.name} of the input file {file} is {actual}, not {column.type}."
            )


def malformed(
    file: Path, error: BaseException, columns: Sequence[str], place: str = ""
) -> Rejected:
    """Makes the error; `place` is the place in the file, as a clause; `columns` as in `reading`."""
    problem = str(error).strip().split("\n")[0].rstrip(".")
    for number, name in reversed(list(enumerate(columns))):  # so that #1 leaves #10 alone
        problem = problem.replace(f"CSV column #{number}", f"column {name}")
    return Rejected(f"The input file {file} is malformed{place}: {problem}.")


def _names_in(directory: Path, suffix: str) -> list[str]:
    if not directory.is_dir():
        raise Rejected(f"The input directory {directory} does not exist.")
    listed = read_listing(directory)
    if listed is not None:
        return [file.name for file in listed]
    try:
        names = os.listdir(directory)  # `Path.glob` would report it empty
    except OSError as error:
        problem = f"cannot be listed: {error.strerror}"
        raise Rejected(f"The input directory {directory} {problem}.") from error
    return sorted(name for name in names if name.endswith(suffix) and name[0] not in "._")


def _is_visible(path: Path) -> bool:
    return not path.name.startswith((".", "_"))
