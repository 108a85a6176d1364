"""Files that appear whole or not at all, on one file system."""

import os
import tempfile
from pathlib import Path


def replace_atomically(path: Path, content: bytes) -> None:
    """Afterwards `path` holds `content`; a reader sees the old file or the new one."""
    temporary = _write_beside(path, content)
    temporary.replace(path)


def create_if_absent(path: Path, content: bytes) -> bool:
    """False when `path` is there already; it is then left as it is."""
    temporary = _write_beside(path, content)
    try:
        os.link(temporary, path)
    except FileExistsError:
        return False
    finally:
        temporary.unlink()
    return True


def _write_beside(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(prefix=".", dir=path.parent)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    return Path(name)
