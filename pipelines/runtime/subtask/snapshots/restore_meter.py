"""Measures how much of a recovery point a slot has read: files and bytes, of how many.

Counts what passes; decides nothing. The slot reports to the driver, which ends an attempt whose
restore stands still and leaves every other alone, however long it takes.
"""

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

from pipelines.domain.errors import CorruptSnapshot, DamagedFile
from pipelines.domain.events import RestoreProgress
from pipelines.domain.snapshots import FileHandle
from pipelines.points.browsing import ReadsFiles


class RestoreMeter:
    """Thread-safe. Each expected file counts once, however often it is read.

    A file that was not expected (records in flight, the segment of a sink) moves the meter and is
    not part of the total.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lengths: dict[str, int] = {}
        self._unread: dict[str, int] = {}  # bytes of each file that is not done
        self._steps = 0
        self._told_steps = 0

    def expect(self, files: Iterable[FileHandle]) -> None:
        with self._lock:
            for file in files:
                self._lengths[file.name] = self._unread[file.name] = file.length
            self._steps += 1

    def step(self) -> None:
        """A step is done that reads no file: an operator or a sink is open."""
        with self._lock:
            self._steps += 1

    def on_read(self, file: FileHandle, length: int) -> None:
        """At most so many more bytes of it; a batch may hold more than was read."""
        with self._lock:
            if file.name in self._unread:
                self._unread[file.name] = max(0, self._unread[file.name] - length)
            self._steps += 1

    def on_done(self, file: FileHandle) -> None:
        with self._lock:
            self._unread.pop(file.name, None)
            self._steps += 1

    def progress(self) -> RestoreProgress:
        with self._lock:
            total_bytes, total_files = sum(self._lengths.values()), len(self._lengths)
            return RestoreProgress(
                read_bytes=total_bytes - sum(self._unread.values()),
                total_bytes=total_bytes,
                read_files=total_files - len(self._unread),
                total_files=total_files,
            )

    def has_news(self) -> bool:
        """True if the meter moved since the last call."""
        with self._lock:
            moved, self._told_steps = self._steps != self._told_steps, self._steps
            return moved


class MeteredFiles:
    """Implements `ReadsFiles`: counts what is read of a store, and names the damaged file in an
    error."""

    def __init__(self, files: ReadsFiles, meter: RestoreMeter) -> None:
        self._files = files
        self._meter = meter

    def read_batches(self, location: str, file: FileHandle) -> Iterator[pa.RecordBatch]:
        with _naming(file):
            for batch in self._files.read_batches(location, file):
                yield batch
                self._meter.on_read(file, batch.nbytes)
        self._meter.on_done(file)

    def fetch(
        self, location: str, file: FileHandle, target: Path, *, may_share: bool = False
    ) -> None:
        with _naming(file):
            self._files.fetch(location, file, target, may_share=may_share)
        self._meter.on_done(file)


@contextmanager
def _naming(file: FileHandle) -> Iterator[None]:
    try:
        yield
    except CorruptSnapshot as error:
        raise DamagedFile(str(error), file.name) from error
