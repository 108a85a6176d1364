"""The storage of a seed: the real store on files, in which every operation may fail.

It checks two promises at every instant: no complete point loses a file, and a run that has had a
complete point still has one. It keeps copies of some points for the checkers, since retention
deletes the originals.
"""

import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from pipelines.domain.errors import Retryable
from pipelines.domain.ids import CheckpointId, RunId
from pipelines.domain.snapshots import FileHandle, Manifest
from pipelines.runtime.master.output.leftovers import named_by
from pipelines.storage.filesystem import FileSystemCheckpointStore
from pipelines.storage.manifests import files_of
from pipelines.storage.store import Damage, Publication, WatchVerification, location_of

Fails = Callable[[str], bool]
Keeps = Callable[[], Path | None]


class Disk:
    """Shared by all processes of a seed; each opens it as its own `SimulatedStore`."""

    def __init__(
        self,
        root: Path,
        fails: Fails,
        keeps: Keeps,
        on_published: Callable[[RunId, CheckpointId], None],
        *,
        keeps_newest: bool = False,
    ) -> None:
        self.root = root
        self._fails = fails
        self._keeps = keeps
        self._on_published = on_published
        self._newest_home = root / "newest" if keeps_newest else None
        self.complete: dict[str, frozenset[str]] = {}  # the files of each complete point
        self.runs: dict[str, RunId] = {}  # the run of each complete point
        self._known: set[str] = set()
        self._undeletable: set[str] = set()  # in no manifest, but could not be deleted
        self.ended: set[RunId] = set()
        self.problems: list[str] = []
        self.useless: list[str] = []  # complete points that no run can restore any more
        self.kept: list[str] = []
        self.newest: str | None = None  # a copy of the newest point, with `keeps_newest`
        self.failed: Counter[str] = Counter()  # by operation

    def open(self) -> "SimulatedStore":
        return SimulatedStore(self)

    def may_fail(self, operation: str, location: str = "") -> None:
        if self._fails(operation):
            self.failed[operation] += 1
            self._undeletable.add(location)
            raise Retryable(f"the simulated disk does not {operation}")

    def published(self, location: str, manifest: Manifest) -> None:
        files = [f"{location_of(location, file)}/{file.name}" for file in files_of(manifest)]
        missing = [file for file in files if not os.path.exists(file)]
        self.problems += [f"{location} is complete without {file}" for file in missing]
        self.complete[location] = frozenset(files)
        self.runs[location] = manifest.run_id
        if self._newest_home is not None:
            place = self._newest_home / f"{manifest.run_id}-{manifest.checkpoint_id}"
            self.newest = self._copied(location, sorted(files), place)
        self._on_published(manifest.run_id, manifest.checkpoint_id)

    def confirmed(self, location: str) -> None:
        """The publisher knows of the point now, so giving it up later is no loss."""
        self._known.add(location)
        copy, files = self._keeps(), self.complete[location]
        if copy is not None:
            self.kept.append(self._copied(location, sorted(files), copy))

    def discarded(self, location: str) -> None:
        if self.complete.pop(location, None) is None or location not in self._known:
            return
        run_id = self.runs[location]
        others = [place for place in self.complete if self.runs[place] == run_id]
        if not others and run_id not in self.ended:
            self.problems.append(f"{location} was the last point of a run that goes on")

    def deleted(self, paths: Iterable[str]) -> None:
        gone = set(paths)
        for location, files in self.complete.items():
            if location in self._undeletable - self._known:
                continue
            self.problems += [f"{location} has lost {file}" for file in sorted(files & gone)]

    def rolled_back(self, names: set[str]) -> None:
        """Reports points with rolled-back output: a run that restores them cannot commit it."""
        if not names:
            return
        store = FileSystemCheckpointStore([str(self.root)])
        for location in self.complete:
            needed = sorted(names.intersection(named_by(store.manifest(location))))
            self.useless += [f"{location} needs {name}, which is rolled back" for name in needed]

    def _copied(self, location: str, files: list[str], copy: Path) -> str:
        """Copies a point and the files that it shares; links them, as no file ever changes."""
        point = copy / Path(location).name
        for file in [*files, f"{location}/manifest.json"]:
            inside = file.startswith(f"{location}/")
            target = point / Path(file).name if inside else copy / "shared" / Path(file).name
            target.parent.mkdir(parents=True, exist_ok=True)
            os.link(file, target)
        return str(point)


class SimulatedStore(FileSystemCheckpointStore):
    def __init__(self, disk: Disk) -> None:
        super().__init__([str(disk.root)])
        self._disk = disk

    def write_batches(
        self, location: str, stem: str, schema: pa.Schema, batches: Any, *, open_format: bool
    ) -> FileHandle:
        self._disk.may_fail("write")
        return super().write_batches(location, stem, schema, batches, open_format=open_format)

    def write_file(self, location: str, name: str, pieces: Iterable[bytes]) -> FileHandle:
        self._disk.may_fail("write")
        return super().write_file(location, name, pieces)

    def read_batches(self, location: str, file: FileHandle) -> Iterator[pa.RecordBatch]:
        self._disk.may_fail("read")
        return super().read_batches(location, file)

    def fetch(
        self, location: str, file: FileHandle, target: Path, *, may_share: bool = False
    ) -> None:
        self._disk.may_fail("read")
        super().fetch(location, file, target, may_share=may_share)

    def publish(self, location: str, manifest: Manifest) -> Publication:
        """May fail before publishing or after; a complete point is then unknown to the caller."""
        self._disk.may_fail("publish")
        published = super().publish(location, manifest)
        if published is Publication.PUBLISHED:
            self._disk.published(location, manifest)
        self._disk.may_fail("confirm")
        if published is Publication.PUBLISHED:
            self._disk.confirmed(location)
        return published

    def manifest(self, location: str) -> Manifest:
        self._disk.may_fail("read a manifest")
        return super().manifest(location)

    def verify(self, location: str, watch: WatchVerification | None = None) -> list[Damage]:
        self._disk.may_fail("verify")
        return super().verify(location, watch)

    def published(self, root: str, *, among: Collection[str] | None = None) -> list[str]:
        self._disk.may_fail("list")
        return super().published(root, among=among)

    def names(self, root: str) -> list[str]:
        self._disk.may_fail("list")
        return super().names(root)

    def delete(self, location: str, names: Iterable[str]) -> None:
        self._disk.may_fail("delete")
        chosen = list(names)
        self._disk.deleted(f"{location}/{name}" for name in chosen)
        super().delete(location, chosen)

    def discard(self, location: str) -> None:
        self._disk.may_fail("delete", location)
        self._disk.discarded(location)
        super().discard(location)
