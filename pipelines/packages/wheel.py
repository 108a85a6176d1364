"""Wheels of authors' packages: reads one, and packs the folder of a package into one.

Reading a wheel imports nothing from it. A folder is a project with a `pyproject.toml`, whose
packages lie in it or in `src`, or it is the package itself. The same files give the same bytes. No
build backend runs: code that has to be compiled needs a wheel.

Also packs the engine that runs here, for the machines of a cluster. They need the libraries that it
imports, but not the engine: the slots of a run use their driver's version, whatever is installed on
their machines. The archive declares the pipelines that ship with the engine.

Source: PEP 427 (wheels), PEP 425 (tags), PEP 345 (Requires-Python).
"""

import configparser
import hashlib
import platform
import sys
import tomllib
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from email.parser import HeaderParser
from pathlib import Path, PurePosixPath
from typing import Any

from packaging.specifiers import SpecifierSet
from packaging.tags import Tag, sys_tags
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import Version

from pipelines import __version__
from pipelines.disk.archives import BROKEN_ARCHIVE, read_file
from pipelines.domain.errors import Rejected
from pipelines.domain.run import ShippedCode

GROUP = "ftdash.pipelines"
"""The group of entry points in which a package declares its pipelines."""

OWN = frozenset({"pipelines", "ftdash"})
METADATA_BYTES_MAX = 1 << 20
NAME_LENGTH_MAX = 100
"""Of a project and its version, which become the name of a file."""


@dataclass(frozen=True, slots=True)
class Wheel:
    """`modules` are the names that it adds to the top level; `flows` is {name: module:NAME}."""

    path: Path
    code: ShippedCode
    is_pure: bool  # it can be imported from the archive
    modules: frozenset[str]
    flows: dict[str, str]


def read_wheel(path: Path) -> Wheel:
    """Raises Rejected if the file is missing, is no wheel, or is for another Python or platform."""
    _, _, tags = _named(path)
    _check_tags(path, tags)
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            metadata = _text(archive, names, "METADATA")
            entry_points = _text(archive, names, "entry_points.txt")
    except BROKEN_ARCHIVE as error:
        raise Rejected(f"{path} cannot be read as a wheel: {error}. Build it again.") from error
    _check_python(path, HeaderParser().parsestr(metadata).get("Requires-Python", ""))
    modules = frozenset(_modules(names))
    _check_modules(path, modules)
    code = code_named(path, digest_of(path))
    is_pure = all(tag.platform == "any" for tag in tags)
    return Wheel(path, code, is_pure, modules, _flows(path, entry_points))


def code_named(path: Path, sha256: str) -> ShippedCode:
    """Reads package and version from the file name of a wheel with that digest."""
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
    except ValueError as error:
        raise Rejected(f"{path.name} requires the Python {required!r}: {error}.") from error
    if not fits:
        raise Rejected(f"{path.name} requires Python {required}, and ftdash runs Python {here}.")


def _text(archive: zipfile.ZipFile, names: Iterable[str], file: str) -> str:
    """Returns a file of the wheel's metadata, or an empty text if it has none.

    Raises one of BROKEN_ARCHIVE.
    """
    for name in names:
        parts = PurePosixPath(name).parts
        if len(parts) == 2 and parts[0].endswith(".dist-info") and parts[1] == file:
            return read_file(archive, name, METADATA_BYTES_MAX).decode()
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


NO_CODE = frozenset({"tests", "test", "docs", "build", "dist", "__pycache__"})
NO_MODULES = frozenset({"setup.py", "conftest.py"})
UNKNOWN_VERSION = "0"


@dataclass(frozen=True, slots=True)
class _Project:
    name: str
    version: str
    requires_python: str = ""
    entry_points: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


def pack(folder: Path, into: Path) -> Path:
    """Packs the folder into a wheel in the directory `into`.

    Raises Rejected if there is no package in the folder, or its `pyproject.toml` cannot be read.
    """
    folder = folder.absolute()
    is_package = (folder / "__init__.py").is_file()
    root = folder.parent if is_package else _root_of(folder)
    roots = [folder] if is_package else list(_code_in(root))
    if not roots:
        raise Rejected(
            f"There is no package in {folder}; name a folder that holds one, or a `src` with one."
        )
    project = _project_of(folder, default=folder.name if is_package else roots[0].stem)
    name = canonicalize_name(project.name).replace("-", "_")
    wheel = into / f"{name}-{project.version}-py3-none-any.whl"
    metadata = f"{name}-{project.version}.dist-info"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(each for top in roots for each in files_in(top)):
            add_file(archive, path.relative_to(root).as_posix(), path.read_bytes())
        for file, text in _metadata(project):
            add_file(archive, f"{metadata}/{file}", text.encode())
    return wheel


def files_in(top: Path) -> Iterator[Path]:
    """Yields the files of a package or module, without hidden ones and those that Python makes."""
    if top.is_file():
        yield top
        return
    for path in top.rglob("*"):
        hidden = any(part.startswith(".") for part in path.relative_to(top).parts)
        is_made = "__pycache__" in path.parts or path.suffix == ".pyc"
        if path.is_file() and not hidden and not is_made:
            yield path


def add_file(archive: zipfile.ZipFile, name: str, content: bytes) -> None:
    """Adds a file without its time and owner, which say nothing about the code."""
    entry = zipfile.ZipInfo(name)
    entry.compress_type = zipfile.ZIP_DEFLATED
    entry.external_attr = 0o644 << 16
    archive.writestr(entry, content)


def _root_of(folder: Path) -> Path:
    source = folder / "src"
    return source if source.is_dir() and not (source / "__init__.py").exists() else folder


def _code_in(root: Path) -> Iterator[Path]:
    for each in sorted(root.iterdir()):
        if each.name.startswith(".") or each.name in NO_CODE | NO_MODULES:
            continue
        if each.suffix == ".py" or (each / "__init__.py").is_file():
            yield each


def _project_of(folder: Path, default: str) -> _Project:
    file = folder / "pyproject.toml"
    if not file.is_file():
        return _Project(default, UNKNOWN_VERSION)
    try:
        declared: dict[str, Any] = tomllib.loads(file.read_text()).get("project", {})
        name = str(declared.get("name", default))
        if "name" in declared:
            canonicalize_name(name, validate=True)
        version = str(Version(str(declared.get("version", UNKNOWN_VERSION))))
        if max(len(name), len(version)) > NAME_LENGTH_MAX:
            raise ValueError(f"its name or version has more than {NAME_LENGTH_MAX} letters")
        entry_points = {
            str(group): {str(name): str(value) for name, value in entries.items()}
            for group, entries in declared.get("entry-points", {}).items()
        }
    except (ValueError, AttributeError, RecursionError) as error:  # tomllib's are ValueErrors
        raise Rejected(f"{file} cannot be read: {error}.") from error
    requires = str(declared.get("requires-python", ""))
    return _Project(name, version, requires, entry_points)


def _metadata(project: _Project) -> Iterator[tuple[str, str]]:
    requires = f"Requires-Python: {project.requires_python}\n" if project.requires_python else ""
    head = f"Metadata-Version: 2.1\nName: {project.name}\nVersion: {project.version}\n"
    yield "METADATA", head + requires
    yield (
        "WHEEL",
        "Wheel-Version: 1.0\nGenerator: ftdash\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    )
    groups = (
        "".join((f"[{group}]\n", *(f"{name} = {value}\n" for name, value in entries.items())))
        for group, entries in project.entry_points.items()
    )
    yield "entry_points.txt", "\n".join(groups)


ENGINE = Path(__file__).parents[1]
FILE = "ftdash-engine.zip"
METADATA = f"ftdash-{__version__}.dist-info"
"""Python finds entry points with it. It hides those of an ftdash installed on that machine."""
HEAD = f"Metadata-Version: 2.1\nName: ftdash\nVersion: {__version__}\n"


def pack_engine(into: Path, flows: dict[str, str]) -> Path:
    """Packs the engine into an archive in the directory `into`.

    `flows` is {name: `package.module:NAME`}; those that the archive does not hold are left out.
    """
    archive = into / FILE
    names = [f"{name} = {flow}" for name, flow in flows.items() if flow.startswith("pipelines.")]
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as packed:
        for path in sorted(files_in(ENGINE)):
            add_file(packed, path.relative_to(ENGINE.parent).as_posix(), path.read_bytes())
        add_file(packed, f"{METADATA}/METADATA", HEAD.encode())
        add_file(packed, f"{METADATA}/entry_points.txt", "\n".join([f"[{GROUP}]", *names]).encode())
    return archive
