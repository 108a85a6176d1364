"""Reads a wheel: what it is called, what it holds, and whether this Python can run it.

Imports nothing of it. Source: PEP 427 (wheels), PEP 425 (tags), PEP 345 (Requires-Python).
"""

import configparser
import hashlib
import platform
import sys
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from email.parser import HeaderParser
from pathlib import Path, PurePosixPath

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.tags import Tag, sys_tags
from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from pipelines.domain.errors import Rejected
from pipelines.domain.run import ShippedCode

GROUP = "ftdash.pipelines"
"""The group of entry points in which a package declares its pipelines."""

OWN = frozenset({"pipelines", "ftdash"})


@dataclass(frozen=True, slots=True)
class Wheel:
    """`modules` are the names that it adds to the top level; `flows` is {name: module:NAME}."""

    path: Path
    code: ShippedCode
    is_pure: bool  # it can be imported from the archive
    modules: frozenset[str]
    flows: dict[str, str]


def read_wheel(path: Path) -> Wheel:
    """Raises Rejected: there is no such file, it is no wheel, or it was built for another Python or
    another platform."""
    _, _, tags = _named(path)
    _check_tags(path, tags)
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            metadata = _text(archive, names, "METADATA")
            entry_points = _text(archive, names, "entry_points.txt")
    except (zipfile.BadZipFile, UnicodeDecodeError, NotImplementedError, RuntimeError) as error:
        raise Rejected(f"{path} cannot be read as a wheel: {error}. Build it again.") from error
    _check_python(path, HeaderParser().parsestr(metadata).get("Requires-Python", ""))
    modules = frozenset(_modules(names))
    _check_modules(path, modules)
    code = code_named(path, digest_of(path))
    is_pure = all(tag.platform == "any" for tag in tags)
    return Wheel(path, code, is_pure, modules, _flows(path, entry_points))


def code_named(path: Path, sha256: str) -> ShippedCode:
    """What the file's name says of a wheel with that digest."""
    package, version, _ = _named(path)
    return ShippedCode(package=package, version=version, file=path.name, sha256=sha256)


def digest_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _named(path: Path) -> tuple[str, str, frozenset[Tag]]:
    if not path.is_file():
        raise Rejected(f"There is no file {path}; name a wheel, or the folder of a package.")
    try:
        package, version, _, tags = parse_wheel_filename(path.name)
    except InvalidWheelFilename as error:
        raise Rejected(
            f"{path} is no wheel: its name does not look like shop-1.0-py3-none-any.whl. Build one"
            " with `pip wheel . --no-deps`, or name the folder of the package."
        ) from error
    return str(package), str(version), tags


def _check_tags(path: Path, tags: frozenset[Tag]) -> None:
    if tags.isdisjoint(sys_tags()):
        built_for = ", ".join(sorted(str(tag) for tag in tags))
        here = f"Python {platform.python_version()} on {platform.system()} {platform.machine()}"
        raise Rejected(f"{path.name} was built for {built_for}, and ftdash runs {here}.")


def _check_python(path: Path, required: str) -> None:
    here = platform.python_version()
    try:
        fits = SpecifierSet(required).contains(here, prereleases=True)
    except InvalidSpecifier as error:
        raise Rejected(f"{path.name} requires the Python {required!r}: {error}.") from error
    if not fits:
        raise Rejected(f"{path.name} requires Python {required}, and ftdash runs Python {here}.")


def _text(archive: zipfile.ZipFile, names: Iterable[str], file: str) -> str:
    """A file of the wheel's metadata; empty if it has none."""
    for name in names:
        parts = PurePosixPath(name).parts
        if len(parts) == 2 and parts[0].endswith(".dist-info") and parts[1] == file:
            return archive.read(name).decode()
    return ""


def _modules(names: Iterable[str]) -> Iterator[str]:
    for name in names:
        first, *rest = PurePosixPath(name).parts or ("",)
        module = first if rest else first.partition(".")[0]
        is_code = bool(rest) or first.endswith((".py", ".so", ".pyd"))
        if is_code and module.isidentifier():
            yield module


def _check_modules(path: Path, modules: frozenset[str]) -> None:
    if not modules:
        raise Rejected(f"{path.name} holds no module, so there is no pipeline in it.")
    if taken := sorted(modules & (OWN | sys.stdlib_module_names)):
        raise Rejected(
            f"{path.name} holds a module {taken[0]!r}, which would replace the one of that name in"
            " ftdash or Python; rename it."
        )


def _flows(path: Path, text: str) -> dict[str, str]:
    parser = configparser.ConfigParser(delimiters=("=",), interpolation=None)
    parser.optionxform = str  # type: ignore[method-assign,assignment]  # names keep their case
    try:
        parser.read_string(text)
    except configparser.Error as error:
        first = str(error).splitlines()[0].rstrip(".")
        raise Rejected(f"The entry points of {path.name} cannot be read: {first}.") from error
    return dict(parser[GROUP]) if parser.has_section(GROUP) else {}
