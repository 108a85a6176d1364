"""A growing source without records; the test sets where it begins."""

from dataclasses import dataclass
from typing import Any

from pipelines.connectors.split_progress import SplitProgress


@dataclass(frozen=True)
class EmptyLog:
    """Each split has lost the records before offset `first`."""

    first: int = 0

    schema: Any = None
    timestamp_column: str | None = None
    out_of_orderness_ms: int = 0
    concurrent_splits: int = 1
    discovery_interval_ms: int | None = None

    def validate(self) -> None: ...

    def find(self, known: object, *, is_start: bool) -> list[SplitProgress]:
        return []

    def owner(self, name: str, parallelism: int) -> int:
        return 0

    def oldest(self, split: SplitProgress) -> int:
        return self.first

    def range_gone(self, split: SplitProgress, oldest: int) -> str:
        return f"{split.name}: {split.offset} to {oldest - 1} are gone."

    def open(self) -> Any: ...
