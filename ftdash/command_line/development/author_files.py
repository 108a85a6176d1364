"""The files of an author's package, and whether they have changed.

Source: Django's StatReloader, which looks at modification times; here of one package, whose code
this process never imports.
"""

import sys
from collections.abc import Iterator
from importlib.machinery import PathFinder
from pathlib import Path

from django.utils.autoreload import StatReloader

from pipelines.domain.errors import Rejected

EVERY_MODULE = "**/*.py"


class AuthorFiles(StatReloader):
    """The modules of the package that `reference` (package.module:NAME) begins with."""

    def __init__(self, reference: str, directory: Path) -> None:
        """Raises Rejected when there is no such package in `directory` or on the path."""
        super().__init__()
        package = reference.partition(":")[0].partition(".")[0]
        spec = PathFinder.find_spec(package, [str(directory), *sys.path])
        if spec is None:
            raise Rejected(
                f"There is no module {package}; start the command in the folder that holds it,"
                " install its package, or put its folder on PYTHONPATH."
            )
        places = [Path(each) for each in spec.submodule_search_locations or ()]
        for place in places:
            self.watch_dir(place, EVERY_MODULE)
        if not places and spec.origin is not None:
            self.extra_files.add(Path(spec.origin))
        self._seen = self._newest = self.now()

    def now(self) -> dict[Path, float]:
        """{file: when it was changed}"""
        return dict(self.snapshot_files())

    def watched_files(self, include_globs: bool = True) -> Iterator[Path]:
        """No modules of this process, unlike Django's."""
        yield from self.extra_files
        for directory, patterns in self.directory_globs.items():
            for pattern in patterns:
                yield from directory.glob(pattern)

    def have_changed(self) -> bool:
        """Whether a file was changed, added or removed since the last call that returned True.

        False while files are still being written: two looks must agree.
        """
        found = self.now()
        is_settled, self._newest = found == self._newest, found
        if found == self._seen or not is_settled:
            return False
        self._seen = found
        return True
