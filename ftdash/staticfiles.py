"""Finds plotly.min.js in the plotly wheel and offers it as `vendor/plotly.min.js`.

The wheel's folder holds much more; only this one file is served.
"""

from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from django.contrib.staticfiles.finders import BaseFinder
from django.core.checks import CheckMessage
from django.core.files.storage import FileSystemStorage, Storage

from pipelines.domain.errors import check

PREFIX = "vendor"
NAME = "plotly.min.js"


class PlotlyFinder(BaseFinder):
    def check(self, **_: Any) -> list[CheckMessage]:
        return []

    def find(self, path: str, find_all: bool = False, **_: Any) -> Any:
        found = [str(wheel_folder() / NAME)] if path == f"{PREFIX}/{NAME}" else []
        return found if find_all else next(iter(found), None)

    def list(self, ignore_patterns: Iterable[str] | None) -> Iterator[tuple[str, Storage]]:
        storage = FileSystemStorage(location=wheel_folder())
        storage.prefix = PREFIX  # type: ignore[attr-defined]  # collectstatic reads it
        yield NAME, storage


def wheel_folder() -> Path:
    """Finds it without importing plotly, which would take a second."""
    spec = find_spec("plotly")
    check(spec is not None and spec.origin is not None, "the plotly wheel is installed")
    return Path(str(spec and spec.origin)).parent / "package_data"
