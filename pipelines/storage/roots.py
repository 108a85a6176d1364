"""Where this installation may keep snapshots: directories, and prefixes in buckets.

The roots are the directory of all jobs and those in `FTDASH_STORAGE_ROOTS`. Only the operator of
the installation sets these, so neither a setting nor a request makes the engine read, write or
delete anywhere else. This module decides whether a location is inside, after resolving `..`,
symbolic links and empty parts. Submissions and the driver ask it.
"""

import errno
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from pipelines.domain.errors import Rejected, Retryable
from pipelines.domain.run import scheme_of
from pipelines.domain.settings import StorageOptions
from pipelines.domain.settings.resources import CHECKPOINT_DIR, OBJECT_SCHEMES, SAVEPOINT_DIR

LINKS_MAX = 40
"""How many links the system follows in one path."""


@dataclass(frozen=True, slots=True)
class ObjectPrefix:
    """A bucket and the parts of a key in it."""

    scheme: str
    bucket: str
    parts: tuple[str, ...]

    @property
    def key(self) -> str:
        return "/".join(self.parts)

    def key_of(self, name: str) -> str:
        return "/".join((*self.parts, name))

    def __str__(self) -> str:
        return "/".join((f"{self.scheme}://{self.bucket}", *self.parts))

    def is_within(self, root: "ObjectPrefix") -> bool:
        same_bucket = (self.scheme, self.bucket) == (root.scheme, root.bucket)
        return same_bucket and self.parts[: len(root.parts)] == root.parts


def object_prefix(location: str) -> ObjectPrefix:
    """Raises Rejected if `location` names no bucket, or an ambiguous key."""
    scheme, _, rest = location.partition("://")
    bucket, *parts = rest.rstrip("/").split("/")
    if not bucket or any(part in ("", ".", "..") for part in parts):
        raise Rejected(
            f"{location} is no place in an object store; write {scheme}://bucket/prefix without"
            " '.', '..' or empty parts."
        )
    return ObjectPrefix(scheme, bucket, tuple(parts))


class StorageRoots:
    """Guarantee: what `directory` and `prefix` return is below one of the roots.

    Each root is looked up at its first use, so that a root that does not answer affects only its
    users.
    """

    def __init__(self, roots: Iterable[str]) -> None:
        named = list(roots)
        self._prefixes = [object_prefix(r) for r in named if scheme_of(r) in OBJECT_SCHEMES]
        self._named = [r for r in named if scheme_of(r) == ""]
        self._resolved: list[Path] | None = None

    def check(self, location: str) -> None:
        """Raises Rejected in one sentence if `location` is outside."""
        if scheme_of(location) in OBJECT_SCHEMES:
            self.prefix(location)
        else:
            self.directory(location)

    def directory(self, location: str) -> Path:
        """Raises Rejected, and Retryable if the system does not say where a link leads."""
        if "\0" in location:  # no path has one, and the system refuses it
            raise self._outside(location.replace("\0", "?"))
        if scheme_of(location):
            raise self._outside(location)
        try:
            path = _resolved(location)
            is_inside = any(path.is_relative_to(root) for root in self._directories())
        except OSError as error:
            if self._is_spelled_inside(location):
                raise Retryable(f"{location} cannot be looked up: {error}") from error
            raise self._outside(location) from error
        except _LeadsNowhere as error:
            raise self._outside(location) from error
        if not is_inside:
            raise self._outside(location)
        return path

    def prefix(self, location: str) -> ObjectPrefix:
        prefix = object_prefix(location)
        if not any(prefix.is_within(root) for root in self._prefixes):
            raise self._outside(location)
        return prefix

    def is_root(self, place: Path | ObjectPrefix) -> bool:
        """True if the result of `directory` or `prefix` is itself a root."""
        return place in self._directories() or place in self._prefixes

    def _directories(self) -> list[Path]:
        if self._resolved is None:
            self._resolved = [_resolved(root) for root in self._named]
        return self._resolved

    def _is_spelled_inside(self, location: str) -> bool:
        """Judges by the text alone, without asking the system."""
        path = Path(os.path.abspath(location))
        spelled = [Path(os.path.abspath(root)) for root in self._named]
        return any(path.is_relative_to(root) for root in (*spelled, *(self._resolved or ())))

    def _outside(self, location: str) -> Rejected:
        known = ", ".join(str(root) for root in [*self._named, *self._prefixes])
        return Rejected(
            f"{location} lies outside the configured storage and is not touched; the roots are"
            f" {known or 'not configured'}."
        )


class _LeadsNowhere(Exception):
    """A link leads to itself, and `..` after it could mean any place."""


def _resolved(location: str) -> Path:
    """Like `os.path.realpath`, which would take a link that it cannot read for a plain name.

    Keeps components that do not exist as they are. Raises OSError.
    """
    left = os.path.abspath(os.sep) if os.path.isabs(location) else os.getcwd()
    path, rest, links_left = left, location.split(os.sep)[::-1], LINKS_MAX
    while rest:
        name = rest.pop()
        if name in ("", os.curdir):
            continue
        if name == os.pardir:
            path = os.path.dirname(path)
            continue
        place = os.path.join(path, name)
        target = _target_of(place)
        if target is None:
            path = place
            continue
        links_left -= 1
        if links_left < 0 and os.pardir in rest:
            raise _LeadsNowhere(place)
        if links_left < 0:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), place)
        path = os.sep if os.path.isabs(target) else path
        rest += target.split(os.sep)[::-1]
    return Path(path)


def _target_of(place: str) -> str | None:
    """Returns None if it is not a link, or missing."""
    try:
        return os.readlink(place)
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.ENOENT, errno.ENOTDIR):
            return None
        raise


ROOTS_VARIABLE = "FTDASH_STORAGE_ROOTS"
"""Directories and `s3://bucket/prefix`, separated by commas."""


def configured_roots(jobs_root: Path) -> list[str]:
    named = os.environ.get(ROOTS_VARIABLE, "").split(",")
    return [str(jobs_root), *(root.strip() for root in named if root.strip())]


def check_placement(storage: StorageOptions, roots: list[str]) -> None:
    """Raises Rejected naming the setting whose place is outside the roots."""
    allowed = StorageRoots(roots)
    given = {CHECKPOINT_DIR: storage.checkpoint_dir, SAVEPOINT_DIR: storage.savepoint_dir}
    for key, place in given.items():
        if not place:
            continue
        try:
            allowed.check(place)
        except Rejected as refusal:
            raise Rejected(
                f"The setting {key} cannot be used: {refusal} To allow it, add a root to"
                f" {ROOTS_VARIABLE} on the server."
            ) from refusal
