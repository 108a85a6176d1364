"""Input files as splits: their names, and what is said about one that cannot be read.

Owns the sentences a person reads when an input is gone, malformed or lacks a column. Reads nothing
itself; each format does.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

from pipelines.domain.errors import Rejected, Retryable

FilePaths = str | Path | Sequence[str | Path]
"""A directory (its files in name order), or the files themselves."""


def input_files(paths: FilePaths, suffix: str) -> tuple[Path, ...]:
    """The files in reading order. A list keeps its meaning when a file vanishes; a directory's
    later files would move up, so whatever must survive that is given as a list.

    Raises Rejected when there is nothing to read.
    """
    if not isinstance(paths, str | Path):
        files = tuple(Path(path) for path in paths)
    elif Path(paths).is_dir():
        files = tuple(sorted(p for p in Path(paths).glob(f"*{suffix}") if _is_visible(p)))
    else:
        raise Rejected(f"The input directory {paths} does not exist.")
    if not files:
        raise Rejected(f"There are no {suffix} files to read in {paths}.")
    return files


@contextmanager
def reading(file: Path, split: str, offset: int, columns: Sequence[str] = ()) -> Iterator[None]:
    """Turns what a reader of `file` raises into one sentence that names it.

    `columns` are the names of columns that the reader knows by number only.
    """
    try:
        yield
    except FileNotFoundError as error:
        raise gone(split, offset, f"{file} is missing") from error
    except PermissionError as error:
        raise Rejected(f"The input file {file} may not be read by this user.") from error
    except pa.ArrowException as error:
        raise _malformed(file, error, columns) from error
    except OSError as error:
        if error.errno is None:  # pyarrow's way to say that the bytes make no sense
            raise _malformed(file, error, columns) from error
        raise Retryable(f"Reading {file} failed: {error}") from error


def gone(split: str, offset: int, why: str) -> Rejected:
    return Rejected(f"The data of split {split} (records from {offset} on) is gone: {why}.")


def check_columns(file: Path, found: pa.Schema, wanted: pa.Schema) -> None:
    """Raises Rejected naming the first column that `file` lacks or has in another type."""
    for column in wanted:
        if column.name not in found.names:
            raise Rejected(f"The input file {file} has no column {column.name}.")
        actual = found.field(column.name).type
        if actual != column.type:
            raise Rejected(
                f"Column {column.name} of the input file {file} is {actual}, not {column.type}."
            )


def _is_visible(path: Path) -> bool:
    return not path.name.startswith((".", "_"))


def _malformed(file: Path, error: BaseException, columns: Sequence[str]) -> Rejected:
    problem = str(error).strip().split("\n")[0].rstrip(".")
    for number, name in reversed(list(enumerate(columns))):  # so that #1 leaves #10 alone
        problem = problem.replace(f"CSV column #{number}", f"column {name}")
    return Rejected(f"The input file {file} is malformed: {problem}.")
