"""A file that is digested while it is written, and survives a loss of power once closed."""

import os
from pathlib import Path

from pipelines.disk.digests import RunningDigest


class DigestedFile:
    """File-like, for the code that writes the contents. Every call raises OSError."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.digest = RunningDigest()
        self._file = path.open("wb")

    @property
    def closed(self) -> bool:
        return self._file.closed

    def write(self, piece: bytes | memoryview) -> int:
        view = memoryview(piece).cast("B")
        self.digest.update(view)
        return self._file.write(view)

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.close()

    def close_durably(self) -> None:
        """Also raises when the disk has taken less than it reported."""
        self._file.flush()
        os.fsync(self._file.fileno())
        found_bytes = os.fstat(self._file.fileno()).st_size
        self._file.close()
        if found_bytes != self.digest.length:
            raise OSError(f"{self.path} has {found_bytes} bytes instead of {self.digest.length}")
