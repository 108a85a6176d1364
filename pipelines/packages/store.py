"""Keeps the wheels of an installation under their digests, below the directory of all jobs.

A wheel in the store never changes, so a run can be started again with the code that it was started
with. Its path is `<jobs root>/.code/<sha256>/<file name>`; no pipeline's name begins with a dot.
"""

import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

from pipelines.disk.files import create_if_absent, entries_of, make_directory, make_durable
from pipelines.domain.errors import Rejected
from pipelines.domain.run import ShippedCode
from pipelines.packages.loading import LoadedCode, load
from pipelines.packages.wheel import Wheel, code_named, pack, read_wheel

DIRECTORY = ".code"
_DIGEST = re.compile(r"[0-9a-f]{64}")
_START_OF_DIGEST = re.compile(r"[0-9a-f]{8,64}")


class CodeStore:
    def __init__(self, jobs_root: Path) -> None:
        self._directory = jobs_root / DIRECTORY

    def add(self, given: Path) -> ShippedCode:
        """Keeps a wheel, or the package in a folder; adding it again changes nothing.

        Raises Rejected if it is neither, or cannot run here.
        """
        if not given.is_dir():
            return self._add(given)
        with tempfile.TemporaryDirectory(prefix="ftdash-package-") as place:
            return self._add(pack(given, Path(place)))

    def place_of(self, code: ShippedCode) -> Path:
        """Returns the directory that holds the wheel, and nothing else."""
        return self._directory / code.sha256

    def file_of(self, code: ShippedCode) -> Path:
        return self.place_of(code) / code.file

    def wheel(self, code: ShippedCode) -> Wheel:
        return read_wheel(self.file_of(code))

    def listed(self) -> Iterator[ShippedCode]:
        """Yields the packages in the store, by name and version.

        Reads no wheel, so it includes those that this Python can no longer run. Leaves out a
        directory that does not belong to the store.
        """
        digests = [each for each in entries_of(self._directory) if _DIGEST.fullmatch(each.name)]
        wheels = [file for each in digests for file in entries_of(each) if file.suffix == ".whl"]
        found = [code_named(file, file.parent.name) for file in wheels]
        yield from sorted(found, key=lambda code: (code.package, code.version, code.sha256))

    def find(self, given: str) -> ShippedCode:
        """Returns the package that a person names. Raises Rejected.

        `given` is the path of a wheel or folder, which is added, or the beginning of a digest in
        the store.
        """
        if _START_OF_DIGEST.fullmatch(given) and not Path(given).exists():
            return self.known(given)
        return self.add(Path(given).expanduser())

    def known(self, given: str) -> ShippedCode:
        """Finds a package by how its digest begins. Raises Rejected unless exactly one matches."""
        known = [code for code in self.listed() if code.sha256.startswith(given)]
        if not _START_OF_DIGEST.fullmatch(given) or len(known) != 1:
            how_many = "no package" if not known else f"{len(known)} packages"
            raise Rejected(f"There is {how_many} here whose sha256 begins with {given}.")
        return known[0]

    def added_s(self, code: ShippedCode) -> float:
        """When it was first added, in seconds since the epoch."""
        return self.file_of(code).stat().st_mtime

    def remove(self, code: ShippedCode) -> None:
        """Removes it at once, or not at all. First make sure that nothing needs it."""
        place = self.place_of(code)
        if not place.is_dir():
            return
        with tempfile.TemporaryDirectory(prefix=".removed-", dir=self._directory) as bin_:
            place.rename(Path(bin_) / place.name)
            make_durable(self._directory)

    def _add(self, wheel: Path) -> ShippedCode:
        code = read_wheel(wheel).code
        place = self.place_of(code)
        make_directory(place)
        create_if_absent(self.file_of(code), wheel.read_bytes())
        make_durable(place)
        return code


def stored_code(code: ShippedCode | None, jobs_root: Path) -> LoadedCode | None:
    """Loads code to build a pipeline here, unless it is installed. Raises Rejected, see `load`."""
    return None if code is None else load(code, CodeStore(jobs_root).place_of(code))
