"""A directory on the local disk that belongs to one process and goes when the process is gone.

A killed process cannot clean up, so whoever makes the next directory beside it does: each one is
locked by its owner with flock(2), and a lock that can be taken shows that the owner is dead. The
kernel drops the lock with the process, whatever ended it.
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
        """A path inside that nobody uses; it is not created."""
        self._made += 1
        return self.path / f"{label}-{self._made}"

    def close(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def remove_abandoned(root: Path) -> None:
    """Remove the directories beside ours whose owners are dead."""
    for path in root.glob(f"{PREFIX}*"):
        try:
            lock = os.open(path / LOCK, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            continue  # just being made, or just being removed
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            continue  # its owner lives
        else:
            _remove(path)
        finally:
            os.close(lock)


def _remove(path: Path) -> None:
    """The lock goes last: whoever dies halfway leaves what a later neighbour still recognises."""
    with contextlib.suppress(OSError):  # another neighbour is at it too
        for content in path.iterdir():
            if content.is_dir():
                shutil.rmtree(content, ignore_errors=True)
            elif content.name != LOCK:
                content.unlink(missing_ok=True)
    shutil.rmtree(path, ignore_errors=True)
