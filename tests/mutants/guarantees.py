"""The rows of ARCHITECTURE.md's table of guarantees: claim, places and tests."""

import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

PROJECT = Path(__file__).parents[2]
HEADING = "\n## Guarantees\n"
_QUOTED = re.compile(r"`([^`]+)`")


@dataclass(frozen=True, slots=True)
class Guarantee:
    """`tests` has the files that the row names, relative to the project."""

    claim: str
    tests: tuple[str, ...]


def guarantees(document: Path = PROJECT / "ARCHITECTURE.md") -> list[Guarantee]:
    """Returns the rows in the order of the table."""
    table = document.read_text().partition(HEADING)[2].partition("\n## ")[0]
    rows = [line for line in table.splitlines() if line.startswith("| ")][1:]
    return [_guarantee(row) for row in rows]


def _guarantee(row: str) -> Guarantee:
    claim, _, _, tests = (cell.strip() for cell in row.strip("|").split("|"))
    return Guarantee(claim, tuple(_files(_QUOTED.findall(tests))))


def _files(names: list[str]) -> list[str]:
    """Returns the named files, without commands. A bare name is in the previous one's directory."""
    files: list[str] = []
    for name in (name for name in names if " " not in name):
        is_bare = "/" not in name and files
        files.append(str(PurePosixPath(files[-1]).with_name(name)) if is_bare else name)
    return files
