"""Disks for tests, which number every call that changes them.

Any such call may fail or be the last one. A loss of power may lose what was not made durable.
"""

import builtins
import io
import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pipelines.storage import filesystem

STEPS_MAX = 500


class Killed(BaseException):
    """The process is gone and cannot handle this exception."""


class Disk:
    """Numbers the calls that change the disk, and makes one of them fail or be the last."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        self._kill_at = self._fail_at = STEPS_MAX * 10
        self._code = 0
        self.calls: list[str] = []
        self.failed_call: str | None = None

    def kill_at(self, step: int, act: Callable[[], object]) -> bool:
        """Kills `act` at this step. Returns True if `act` got that far."""
        self._kill_at, self._fail_at = step, STEPS_MAX * 10
        try:
            self._run(act)
        except Killed:
            return True
        return False

    def fail_at(self, step: int, code: int, act: Callable[[], object]) -> Exception | None:
        """Fails this step of `act` and returns what `act` raises. `failed_call` names the call."""
        self._kill_at, self._fail_at, self._code = STEPS_MAX * 10, step, code
        try:
            self._run(act)
        except Exception as error:
            return error
        return None

    def _run(self, act: Callable[[], object]) -> None:
        self.calls, self.failed_call = [], None
        with self._monkeypatch.context() as patch:
            for name in ("rename", "link", "fsync", "unlink", "rmdir", "mkdir"):
                patch.setattr(os, name, self._counted(name, getattr(os, name)))
            patch.setattr(os, "open", self._counted("open directory", os.open))
            patch.setattr(builtins, "open", self._open)
            patch.setattr(filesystem, "native_file", self._native_file)
            act()

    def _counted(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **options: Any) -> Any:
            self._step(name)
            return call(*args, **options)

        return counted

    def _open(self, path: Path, mode: str = "r", buffering: int = -1) -> Any:
        if "x" not in mode:
            return io.open(path, mode, buffering)  # noqa: UP020 - the builtin is replaced by this
        self._step("open")
        return Recording(self, path, "x+")

    def _native_file(self, path: Path) -> pa.NativeFile:
        """Routes the writes of Arrow through Python, so that each is a step."""
        return pa.PythonFile(Recording(self, path, "w"), mode="w")

    def _step(self, name: str) -> None:
        self.calls.append(name)
        if len(self.calls) >= self._kill_at:
            raise Killed(name)
        if len(self.calls) == self._fail_at:
            self.failed_call = name
            raise OSError(self._code, os.strerror(self._code))

    def on_created(self, descriptor: int) -> None:
        """Called for each new file. Its inode number may be that of a deleted file."""

    def on_write(self, file: io.FileIO, content: bytes) -> int:
        """Writes `content` as one step. A write that is cut short leaves half of its bytes."""
        try:
            self._step("write")
        except BaseException:
            file.write(bytes(content)[: len(content) // 2])
            raise
        return file.write(content)


class Recording(io.FileIO):
    """An unbuffered file whose writes are steps."""

    def __init__(self, disk: Disk, path: Path, mode: str) -> None:
        super().__init__(path, mode)
        self._disk = disk
        disk.on_created(self.fileno())

    def write(self, content: Any) -> int:
        return self._disk.on_write(super(), content)  # type: ignore[arg-type]


class DurableDisk(Disk):
    """Knows what a loss of power would leave below `root` in the worst case.

    That is each file and each directory as it was when it was last synced.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
        super().__init__(monkeypatch)
        self._root = root
        self._contents: dict[int, bytes] = {}  # by inode
        self._entries: dict[int, dict[str, int]] = {}  # of each directory, by its inode
        monkeypatch.setattr(os, "fsync", self._sync)
        make = os.mkdir

        def forget_and_make(path: Path, *args: Any, **options: Any) -> None:
            make(path, *args, **options)
            self._entries[os.stat(path).st_ino] = {}

        monkeypatch.setattr(os, "mkdir", forget_and_make)
        for directory in (root, *(path for path in root.rglob("*") if path.is_dir())):
            self._sync_directory(directory)

    def on_created(self, descriptor: int) -> None:
        self._contents.pop(os.fstat(descriptor).st_ino, None)

    def lose_power(self) -> None:
        left = self._root.with_name(self._root.name + "-after")
        self._put_back(dict(self._entries), self._root.stat().st_ino, left)
        shutil.rmtree(self._root)
        left.rename(self._root)

    def _put_back(self, entries: dict[int, dict[str, int]], directory: int, target: Path) -> None:
        """Needs a copy of `entries`: new directories may get the inode numbers of deleted files."""
        target.mkdir()
        for name, inode in entries.get(directory, {}).items():
            if inode in entries:
                self._put_back(entries, inode, target / name)
            else:
                (target / name).write_bytes(self._contents.get(inode, b""))

    def _sync(self, descriptor: int) -> None:
        found = os.fstat(descriptor)
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        if stat.S_ISDIR(found.st_mode):
            self._sync_directory(path)
        else:
            self._contents[found.st_ino] = path.read_bytes()
            self._entries.pop(found.st_ino, None)

    def _sync_directory(self, directory: Path) -> None:
        found = {path.name: path.stat().st_ino for path in directory.iterdir()}
        self._entries[directory.stat().st_ino] = found
