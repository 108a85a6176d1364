"""Where this installation may keep snapshots: directories and prefixes in buckets.

Decides whether a location lies inside, after `..`, symbolic links and empty parts are resolved, so
that neither a setting nor a request makes the engine read, write or delete anywhere else.
"""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from pipelines.domain.errors import Rejected
from pipelines.domain.places import OBJECT_SCHEMES, scheme_of


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
    """Raises Rejected when `location` names no bucket, or a key that could mean another one."""
    scheme, _, rest = location.partition("://")
    bucket, *parts = rest.rstrip("/").split("/")
    if not bucket or any(part in ("", ".", "..") for part in parts):
        raise Rejected(
            f"{location} is no place in an object store; write {scheme}://bucket/prefix without"
            " '.', '..' or empty parts."
        )
    return ObjectPrefix(scheme, bucket, tuple(parts))


class StorageRoots:
    """Guarantee: what `directory` and `prefix` return lies below one of the roots."""

    def __init__(self, roots: Iterable[str]) -> None:
        named = list(roots)
        self._prefixes = [object_prefix(r) for r in named if scheme_of(r) in OBJECT_SCHEMES]
        self._directories = [Path(r).resolve() for r in named if scheme_of(r) == ""]

    def check(self, location: str) -> None:
        """Raises Rejected in one sentence when `location` lies outside."""
        if scheme_of(location) in OBJECT_SCHEMES:
            self.prefix(location)
        else:
            self.directory(location)

    def directory(self, location: str) -> Path:
        if "\0" in location:  # no path has it, and the system refuses to look
            raise self._outside(location.replace("\0", "?"))
        resolved = os.path.realpath(location)  # `Path.resolve` looks once more
        path = Path(resolved)
        if (
            scheme_of(location)
            or not any(path.is_relative_to(root) for root in self._directories)
            or not _is_resolved(resolved, location)
        ):
            raise self._outside(location)
        return path

    def prefix(self, location: str) -> ObjectPrefix:
        prefix = object_prefix(location)
        if not any(prefix.is_within(root) for root in self._prefixes):
            raise self._outside(location)
        return prefix

    def is_root(self, place: Path | ObjectPrefix) -> bool:
        return place in self._directories or place in self._prefixes

    def _outside(self, location: str) -> Rejected:
        known = ", ".join(str(root) for root in [*self._directories, *self._prefixes])
        return Rejected(
            f"{location} lies outside the configured storage and is not touched; the roots are"
            f" {known or 'not configured'}."
        )


def _is_resolved(path: str, location: str) -> bool:
    """Behind a link that leads to itself nothing is resolved, and then `x/..` is left out: another
    link may be left that nobody has followed. What is the place itself needs no second look."""
    return path == location or os.path.realpath(path) == path
