"""Lists and reads a tree of files that another program wrote, and copies it into a new tree.

Decides that nothing outside the roots is touched, that no symbolic link is followed, and that a
new tree never takes a place that is in use. `store` keeps our own snapshots; this module keeps no
format of its own. A tree is a directory, or a prefix in a bucket; names use `/` in both.
"""

import errno
import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from pipelines.disk.files import create_if_absent
from pipelines.domain.errors import Rejected, Retryable
from pipelines.domain.run import scheme_of
from pipelines.domain.settings.resources import OBJECT_SCHEMES
from pipelines.storage.roots import ObjectPrefix, StorageRoots


@dataclass(frozen=True, slots=True)
class ListedFile:
    """`path` is relative to the root of the tree."""

    path: str
    size_bytes: int
    modified_ms: int

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]


class Tree(Protocol):
    """Every method raises Retryable if the storage fails."""

    @property
    def location(self) -> str: ...

    def files(self, below: str = "") -> Iterator[ListedFile]:
        """Yields all files at any depth, in no order. Leaves out a file that vanishes meanwhile."""

    def read(self, path: str) -> bytes | None:
        """Returns None if there is no such file."""

    def write_new(self, path: str, content: bytes) -> None:
        """Writes a file, which appears whole. Raises Rejected if it exists."""

    def delete_all(self) -> None:
        """Deletes the tree. Call it only for one that this process has begun."""


def tree_at(location: str, roots: Iterable[str]) -> Tree:
    """Raises Rejected if `location` lies outside the roots."""
    allowed = StorageRoots(roots)
    if scheme_of(location) in OBJECT_SCHEMES:
        return ObjectTree(allowed.prefix(location))
    return LocalTree(allowed.directory(location.removeprefix("file://")))


class LocalTree:
    """A tree in a directory. A symbolic link in it counts as absent: it could leave the roots."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory.resolve()
        self._real_folders: set[str] = set()

    @property
    def location(self) -> str:
        return str(self._directory)

    def files(self, below: str = "") -> Iterator[ListedFile]:
        waiting = [below] if self._is_real(below) else []
        while waiting:
            folder = waiting.pop()
            try:
                with os.scandir(self._path_of(folder)) as entries:
                    found = list(entries)
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError as error:
                raise Retryable(f"{self._path_of(folder)} cannot be listed: {error}") from error
            for entry in found:
                path = f"{folder}/{entry.name}" if folder else entry.name
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(path)
                elif (listed := _listed(entry, path)) is not None:
                    yield listed

    def read(self, path: str) -> bytes | None:
        place = self._path_of(path)
        if not self._is_real(path.rpartition("/")[0]):
            return None
        try:
            with open(os.open(place, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
                return file.read()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            if error.errno == errno.ELOOP:  # the file itself is a link
                return None
            raise Retryable(f"{self._path_of(path)} cannot be read: {error}") from error

    def write_new(self, path: str, content: bytes) -> None:
        target = self._path_of(path)
        if not self._is_real(path.rpartition("/")[0]):
            raise Rejected(f"{target} lies behind a symbolic link and is not written.")
        try:
            is_new = create_if_absent(target, content, mode=0o644)
        except OSError as error:
            raise Retryable(f"{target} cannot be written: {error}") from error
        if not is_new:
            raise Rejected(f"{target} exists already and is left as it is.")

    def delete_all(self) -> None:
        for folder, names, files in os.walk(self._directory, topdown=False):
            for name in files:
                os.unlink(os.path.join(folder, name))
            for name in names:
                os.rmdir(os.path.join(folder, name))
        if self._directory.is_dir():
            self._directory.rmdir()

    def _is_real(self, folder: str) -> bool:
        """Returns True if the folder is behind no link. Looks that up once."""
        if folder not in self._real_folders:
            place = self._path_of(folder)
            if place.resolve() != place:
                return False
            self._real_folders.add(folder)
        return True

    def _path_of(self, path: str) -> Path:
        """Raises Rejected for `..`, because names also come from files that others wrote."""
        if any(part in ("..", ".") for part in path.split("/")) or path.startswith("/"):
            raise Rejected(f"{path!r} is no name of a file below {self._directory}.")
        return self._directory / path


def _listed(entry: os.DirEntry[str], path: str) -> ListedFile | None:
    try:
        found = entry.stat(follow_symlinks=False)
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(found.st_mode):
        return None
    return ListedFile(path, found.st_size, found.st_mtime_ns // 1_000_000)


class ObjectTree:
    """A tree in a bucket. Its client is an extra, imported when the first tree is made."""

    def __init__(self, prefix: ObjectPrefix) -> None:
        from pipelines.storage.object_store import ObjectFiles, ObjectStoreLimits

        self._prefix = prefix
        self._objects = ObjectFiles(ObjectStoreLimits())

    @property
    def location(self) -> str:
        return str(self._prefix)

    def files(self, below: str = "") -> Iterator[ListedFile]:
        start = len(self._prefix.key) + 1 if self._prefix.key else 0
        within = ObjectPrefix(
            self._prefix.scheme,
            self._prefix.bucket,
            (*self._prefix.parts, *filter(None, below.split("/"))),
        )
        for key, size_bytes, modified_ms in self._objects.listed_below(within):
            yield ListedFile(key[start:], size_bytes, modified_ms)

    def read(self, path: str) -> bytes | None:
        return self._objects.content(self._prefix, path)

    def write_new(self, path: str, content: bytes) -> None:
        if not self._objects.put_if_absent(self._prefix, path, content):
            raise Rejected(f"{self._prefix}/{path} exists already and is left as it is.")

    def delete_all(self) -> None:
        self._objects.delete_below(self._prefix)


def check_is_apart(tree: Tree, source: Tree) -> None:
    """Raises Rejected if the tree lies within `source`, or the other way round.

    Otherwise, what is written into the one would be found in the other.
    """
    if are_nested(tree.location, source.location):
        raise Rejected(
            f"{tree.location} and {source.location} lie within each other; choose a place beside it"
            " for the copy."
        )


def are_nested(one: str, other: str) -> bool:
    """Compares locations as trees have them. Also true if both are the same."""
    places = [f"{each.rstrip('/')}/" for each in (one, other)]
    return places[0].startswith(places[1]) or places[1].startswith(places[0])


def check_is_free(tree: Tree) -> None:
    """Raises Rejected if the tree has a file."""
    if (first := next(tree.files(), None)) is not None:
        raise Rejected(
            f"{tree.location} holds files already, {first.path} among them; choose a place that is"
            " empty or does not exist."
        )
