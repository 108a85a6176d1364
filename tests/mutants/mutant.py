"""One change to the code that breaks a guarantee, and the test that must fail for it."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Mutant:
    """`old` must occur exactly once in `file`. Paths are relative to the project."""

    file: str
    old: str
    new: str
    test: str  # `file::test` runs with all parameters, `file::test[parameters]` with these

    @property
    def test_file(self) -> str:
        return self.test.partition("::")[0]

    def applied_to(self, source: str) -> str:
        """Returns the changed source. Raises ValueError unless `old` occurs exactly once."""
        if source.count(self.old) != 1:
            raise ValueError(f"{self.file} holds {self.old!r} {source.count(self.old)} times")
        return source.replace(self.old, self.new)

    def apply(self, project: Path) -> None:
        path = project / self.file
        path.write_text(self.applied_to(path.read_text()))
