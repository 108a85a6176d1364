"""Imports a shipped package in this process, instead of any other package under its names.

A driver and a slot belong to one run: they `activate` its code for good. A process of the control
plane works for many runs, whose packages may have the same names and different versions. It imports
each of them separately (`LoadedCode.in_use`).

`described` says where an imported module is, and gives its digest and commit.
"""

import hashlib
import subprocess
import sys
import tempfile
import threading
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

from pipelines.disk.archives import BROKEN_ARCHIVE
from pipelines.domain.errors import Rejected, check
from pipelines.domain.run import DIGITS_SHOWN, ShippedCode
from pipelines.packages.wheel import Wheel, digest_of, read_wheel

LOADED_MAX = 16
"""How many packages one process of the control plane keeps imported."""

_switching = threading.RLock()
_in_use: list["LoadedCode"] = []  # imports go to the last one


class LoadedCode:
    """A finder for the modules of one wheel.

    Guarantee: while it is in use, each name that the wheel has at its top level means the module in
    the wheel, even if a package of that name is installed or was imported before. No other name is
    affected.
    """

    def __init__(self, wheel: Wheel) -> None:
        self.wheel = wheel
        self._entry = str(wheel.path if wheel.is_pure else _unpacked(wheel.path))
        self._modules: dict[str, ModuleType] = {}  # those imported, while it is not in use

    @property
    def code(self) -> ShippedCode:
        return self.wheel.code

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Imports in the block go to the wheel; after it, the names mean what they meant before."""
        with _switching:
            if _in_use and _in_use[-1] is self:
                yield
                return
            hidden = self._enter()
            try:
                yield
            finally:
                self._leave(hidden)

    def _enter(self) -> dict[str, ModuleType]:
        hidden = _taken(self.wheel.modules)
        sys.modules.update(self._modules)
        sys.meta_path.insert(0, self)
        _in_use.append(self)
        return hidden

    def _leave(self, hidden: dict[str, ModuleType]) -> None:
        _in_use.pop()
        sys.meta_path.remove(self)
        self._modules = _taken(self.wheel.modules)
        sys.modules.update(hidden)

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        """Answers imports through `sys.meta_path`; a package finds its own modules."""
        if path is not None or fullname not in self.wheel.modules:
            return None
        return PathFinder.find_spec(fullname, [self._entry], target)


@lru_cache(LOADED_MAX)
def load(code: ShippedCode, directory: Path) -> LoadedCode:
    """Loads that wheel from `directory`. Raises Rejected if there is no such wheel."""
    file = directory / code.file
    if not file.is_file():
        raise Rejected(
            f"The package {code.described} is not in {directory}; add it again with"
            " `manage.py package add`."
        )
    found = digest_of(file)
    if found != code.sha256:
        raise Rejected(
            f"{file} is not the package of this run: its sha256 is {found}, and that of"
            f" {code.package} {code.version} is {code.sha256}. Delete the file and add the package"
            " again."
        )
    return LoadedCode(read_wheel(file))


def activate(code: ShippedCode, directory: Path) -> LoadedCode:
    """Makes this process run the code from now on. Raises Rejected, see `load`."""
    with _switching:
        if _in_use and _in_use[-1].code == code:
            return _in_use[-1]
        check(not _in_use, "a process runs the code of one run", code=code.described)
        loaded = load(code, directory)
        loaded._enter()
        return loaded


def _taken(names: Iterable[str]) -> dict[str, ModuleType]:
    """Removes the modules of these names, and those within them, from the imported modules."""
    top = frozenset(names)
    found = {name for name in sys.modules if name.partition(".")[0] in top}
    return {name: sys.modules.pop(name) for name in found}


def _unpacked(wheel: Path) -> Path:
    """Unpacks a wheel: compiled modules cannot be imported from an archive.

    Another process may do the same at the same time. Raises Rejected if the archive is broken.
    """
    place = wheel.with_name(f"{wheel.name}.unpacked")
    if place.is_dir():
        return place
    with tempfile.TemporaryDirectory(prefix=".", dir=wheel.parent) as unfinished:
        whole = Path(unfinished) / place.name
        try:
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(whole)
        except BROKEN_ARCHIVE as error:
            raise Rejected(f"{wheel} cannot be unpacked: {error}. Build it again.") from error
        try:
            whole.rename(place)
        except OSError:
            if not place.is_dir():
                raise
    return place


FILES_MAX = 5_000
GIT_TIMEOUT_S = 5.0


def described(module: str) -> str:
    """Describes an imported module. The digest is that of all modules of its package."""
    file = getattr(sys.modules[module], "__file__", None)
    if file is None:
        return module
    top = _top(Path(file).resolve(), module)
    known = [f"sha256 {_digest(top)[:DIGITS_SHOWN]}", *_commit(top)]
    return f"{module} in {top} ({', '.join(known)})"


def _top(file: Path, module: str) -> Path:
    """Returns the directory of the topmost package, or the file of a module without one."""
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
    """Yields nothing if no Git repository has it."""
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
