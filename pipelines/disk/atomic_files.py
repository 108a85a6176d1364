"""Files that appear whole or not at all, on one file system."""

import os
import tempfile
from pathlib import Path

FOR_OWNER, FOR_ALL = 0o600, 0o644
"""Permissions: who may read a file; its owner may write it."""


def replace_atomically(path: Path, content: bytes, mode: int = FOR_OWNER) -> None:
    """On return `path` holds `content`; a reader sees the old file or the new one."""
    temporary = _write_beside(path, content, mode)
    temporary.replace(path)


def create_if_absent(path: Path, content: bytes, mode: int = FOR_OWNER) -> bool:
    """False if `path` exists already; it is then left as it is."""
    temporary = _write_beside(path, content, mode)
    try:
        os.link(temporary, path)
    except FileExistsError:
        return False
    finally:
        temporary.unlink()
    return True


def _write_beside(path: Path, content: bytes, mode: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(prefix=".", dir=path.parent)
    with os.fdopen(descriptor, "wb") as file:
        os.fchmod(file.fileno(), mode)
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    return Path(name)
