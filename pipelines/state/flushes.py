"""Writes the changes up to each cut from memory into a database, in the order of the cuts.

A cut only notes what is to be written. The first thread that needs a cut's content writes it, and
everything before it. A flush that fails stays in the queue and is tried again.
"""

import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from typing import Protocol

from pipelines.state.sorted_files import SortedFiles

SortedRows = Iterator[tuple[bytes, bytes | None]]
"""Keys ascending and distinct; None deletes."""


class CutReader(Protocol):
    """A reader that needs the database exactly as it is after one flush."""

    def on_flushed(self, files: SortedFiles) -> None: ...


class Flush:
    """`content` is called once, on the thread that writes; its result can be read repeatedly."""

    def __init__(
        self, content: Callable[[], Callable[[], SortedRows]], reader: CutReader | None
    ) -> None:
        self._content: Callable[[], Callable[[], SortedRows]] | None = content
        self._rows: Callable[[], SortedRows] | None = None
        # Weak: a cut that has no reader any more must not pin files of the database.
        self._reader = None if reader is None else weakref.ref(reader)
        self.is_done = False

    def run(self, files: SortedFiles) -> None:
        if self._content is not None:
            self._rows = self._content()
            self._content = None
        if self._rows is not None:
            files.ingest(self._rows())
            self._rows = None
        reader = None if self._reader is None else self._reader()
        if reader is not None:
            reader.on_flushed(files)
        self.is_done = True


class Flushes:
    """The flushes of one database."""

    def __init__(self, files: SortedFiles) -> None:
        self._files = files
        self._waiting: deque[Flush] = deque()
        self._writing = threading.Lock()

    def add(self, flush: Flush) -> None:
        self._waiting.append(flush)

    def run_until(self, flush: Flush) -> None:
        """On return, `flush` and all before it are written. Raises what the database raises."""
        with self._writing:
            while not flush.is_done:
                self._waiting[0].run(self._files)
                self._waiting.popleft()
