"""A directory on the local disk that belongs to one process and is removed after it.

A killed process cannot clean up, so the next process that makes a directory in the same place does.
Each owner locks its directory with flock(2), and a lock that can be taken shows that the owner is
dead. The kernel drops the lock with the process, however the process ended.
"""

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path

PREFIX = "ftdash-state-"
LOCK = "owner.lock"


class WorkingDirectory:
    """Attempt-unique by its random name; removed by `close`, or by a later neighbour."""

    def __init__(self, root: Path, label: str) -> None:
        """Raises OSError when `root` cannot be written."""
        root.mkdir(parents=True, exist_ok=True)
        remove_abandoned(root)
        self.path = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{label}-", dir=root))
        self._lock = os.open(self.path / LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self._made = 0

    def fresh(self, label: str) -> Path:
        """An unused path inside the directory; it is not created."""
        self._made += 1
        return self.path / f"{label}-{self._made}"

    def close(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def remove_abandoned(root: Path) -> None:
    """Remove the neighbouring directories whose owners are dead."""
    for path in root.glob(f"{PREFIX}*"):
        try:
            lock = os.open(path / LOCK, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            continue  # it is just being made, or just being removed
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            continue  # its owner lives
        else:
            _remove(path)
        finally:
            os.close(lock)


def _remove(path: Path) -> None:
    """Removes the lock last: after a crash halfway a later neighbour still recognizes the rest."""
    with contextlib.suppress(OSError):  # another neighbour may be removing it too
        for content in path.iterdir():
            if content.is_dir():
                shutil.rmtree(content, ignore_errors=True)
            elif content.name != LOCK:
                content.unlink(missing_ok=True)
    shutil.rmtree(path, ignore_errors=True)
