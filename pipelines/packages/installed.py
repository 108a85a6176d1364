"""Says which code an installed module is: where, with which digest, and of which commit."""

import hashlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from pipelines.domain.run import DIGITS_SHOWN

FILES_MAX = 5_000
GIT_TIMEOUT_S = 5.0


def described(module: str) -> str:
    """`module` was imported. The digest is that of all modules of its package."""
    file = getattr(sys.modules[module], "__file__", None)
    if file is None:
        return module
    top = _top(Path(file).resolve(), module)
    known = [f"sha256 {_digest(top)[:DIGITS_SHOWN]}", *_commit(top)]
    return f"{module} in {top} ({', '.join(known)})"


def _top(file: Path, module: str) -> Path:
    """The directory of the topmost package; of a module without one, its file."""
    place = file.parent if file.name == "__init__.py" else file
    for _ in range(module.count(".")):
        place = place.parent
    return place


def _digest(top: Path) -> str:
    files = [top] if top.is_file() else sorted(top.rglob("*.py"))[:FILES_MAX]
    found = hashlib.sha256()
    for each in files:
        found.update(f"{each.relative_to(top)}\0".encode())
        found.update(hashlib.sha256(each.read_bytes()).digest())
    return found.hexdigest()


def _commit(top: Path) -> Iterator[str]:
    """Nothing where no Git repository holds it."""
    commit = _git(top, "log", "-1", "--format=%h", "--", ".")
    if commit:
        changes = _git(top, "status", "--porcelain", "--", ".")
        yield f"commit {commit}{' with changes' if changes else ''}"


def _git(top: Path, *words: str) -> str:
    directory = top if top.is_dir() else top.parent
    try:
        ended = subprocess.run(
            ["git", "-C", str(directory), *words],
            capture_output=True,
            text=True,
            timeout=GIT_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):  # no Git here: the digest is enough
        return ""
    return ended.stdout.strip() if ended.returncode == 0 else ""
