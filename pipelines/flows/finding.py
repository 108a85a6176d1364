"""Finds a pipeline by the name under which it is declared, or by `package.module:NAME`.

Names come from entry points of the group `ftdash.pipelines` and from FTDASH_PIPELINES, which lists
`package.module:NAME` or `name=package.module:NAME`, separated by commas, and takes precedence. The
project's own pipelines are declared as entry points too. A checkout is not installed, so this
module reads the same table from its `pyproject.toml`.

A shipped package (`pipelines.packages`) declares its own names; for it, only its own names and
modules count.
"""

import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from functools import cache, partial
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType

from pipelines.domain.errors import BrokenCode, Rejected
from pipelines.packages.loading import LoadedCode
from pipelines.packages.wheel import GROUP
from pipelines.stream import Pipeline
from pipelines.stream.declaration import Flow as Flow
from pipelines.stream.declaration import described, traceback_of, unknown

VARIABLE = "FTDASH_PIPELINES"
CHECKOUT = Path(__file__).parents[2] / "pyproject.toml"

_REFERENCE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")


def declared_flows() -> dict[str, str]:
    """Returns {name: `package.module:NAME`}. Imports no module, so any name may be unusable."""
    return installed_flows() | _listed(os.environ.get(VARIABLE, ""))


def find_flow(name: str, code: LoadedCode | None = None) -> Flow:
    """Finds a declared name, or any `package.module:NAME`; with `code`, in that package alone.

    Raises Rejected if there is no such pipeline, and BrokenCode, with the author's traceback, if
    its module cannot be imported.
    """
    if code is not None:
        return _shipped(name, code)
    declared = declared_flows()
    if name not in declared and not _REFERENCE.fullmatch(name):
        raise Rejected(unknown("pipeline", name, list(declared), "here"))
    return _loaded(declared.get(name, name))


def installed_module(name: str) -> str:
    """Returns the module that declares the flow, or the one that `package.module:NAME` names."""
    return declared_flows().get(name, name).partition(":")[0]


def modules_of_flows() -> list[str]:
    """Returns the modules of all declared pipelines, even if they cannot be imported."""
    return sorted({reference.partition(":")[0] for reference in declared_flows().values()})


@cache
def installed_flows() -> dict[str, str]:
    """Returns the installed packages' declarations, as {name: `package.module:NAME`}."""
    found = {each.name: each.value for each in entry_points(group=GROUP)}
    return _of_checkout() | found


def _of_checkout() -> dict[str, str]:
    if not CHECKOUT.exists():
        return {}
    declared: dict[str, str] = tomllib.loads(CHECKOUT.read_text())["project"]["entry-points"][GROUP]
    return declared


def _listed(text: str) -> dict[str, str]:
    entries = [entry.strip() for entry in text.split(",") if entry.strip()]
    named = [entry.rpartition("=") for entry in entries]
    return {(name or reference).strip(): reference.strip() for name, _, reference in named}


def _shipped(name: str, code: LoadedCode) -> Flow:
    flows, place = code.wheel.flows, code.code.described
    if name not in flows and not _REFERENCE.fullmatch(name):
        raise Rejected(unknown("pipeline", name, list(flows), f"in {place}"))
    reference = flows.get(name, name)
    module = reference.partition(":")[0]
    if module.partition(".")[0] not in code.wheel.modules:
        held = ", ".join(sorted(code.wheel.modules))
        raise Rejected(f"There is no module {module} in {place}; it holds {held}.")
    with code.in_use():
        found = _loaded(reference, place)
    return replace(found, assemble=partial(_assembled, found, code))


def _assembled(flow: Flow, code: LoadedCode, texts: Mapping[str, str]) -> Pipeline:
    """Keeps the package in use, because the author's function may import more of it."""
    with code.in_use():
        return flow.assemble(texts)


def _loaded(reference: str, package: str = "") -> Flow:
    if not _REFERENCE.fullmatch(reference):
        raise Rejected(
            f"The pipeline declared as {reference!r} cannot be found; write package.module:NAME."
        )
    path, _, attribute = reference.partition(":")
    module = _imported(path, package)
    if not hasattr(module, attribute):
        flows = [name for name, each in vars(module).items() if isinstance(each, Flow)]
        raise Rejected(unknown("pipeline", attribute, flows, f"in {path}"))
    found = getattr(module, attribute)
    if not isinstance(found, Flow):
        kind = type(found).__name__
        raise Rejected(f"{reference} is no pipeline, it is of type {kind}; declare one with @flow.")
    return found


def _imported(path: str, package: str) -> ModuleType:
    try:
        return import_module(path)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{path}.".startswith(f"{error.name}."):
            raise Rejected(f"There is no module {path}{_where_to_look(package)}") from error
        raise _broken(path, error) from error
    except (Exception, SystemExit) as error:
        raise _broken(path, error) from error


def _where_to_look(package: str) -> str:
    """If `package` is empty, the module may be anywhere among the installed packages."""
    if package:
        return f" in {package}; name one that it holds."
    return "; install its package, or put its folder on PYTHONPATH."


def _broken(path: str, error: BaseException) -> BrokenCode:
    sentence = f"The module {path} cannot be imported: {described(error)}."
    return BrokenCode(sentence, traceback_of(error, below=__file__))
