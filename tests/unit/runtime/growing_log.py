"""A growing source in memory: splits appear while it is read, and logs have gaps."""

from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from pipelines.connectors.contract import LoggedRecords
from pipelines.connectors.split_progress import SplitProgress
from pipelines.domain.errors import Rejected, Retryable
from tests.unit.runtime.fakes import SCHEMA, batch_of


@dataclass(slots=True)
class GrowingLog:
    """A log in memory: `logs` has the (offset, key, event time) of each split's records.

    Records before `oldest_offset` are gone. A split in `ended` gets no more records.
    """

    logs: dict[str, list[tuple[int, int, int]]]
    ended: set[str] = field(default_factory=set)
    batch_rows: int = 3
    concurrent_splits: int = 2
    discovery_interval_ms: int | None = 1_000
    starts_at_the_end: bool = False
    oldest_offset: dict[str, int] = field(default_factory=dict)
    is_away: bool = False
    timestamp_column: str | None = "at"
    out_of_orderness_ms: int = 0
    schema: pa.Schema = field(default_factory=lambda: SCHEMA)

    def validate(self) -> None:
        pass

    def find(self, known: Collection[str], *, is_start: bool) -> list[SplitProgress]:
        if self.is_away:
            raise Retryable("the log does not answer")
        at_end = is_start and self.starts_at_the_end
        is_bounded = self.discovery_interval_ms is None
        if is_bounded and not is_start:
            return []
        return [
            SplitProgress(
                name,
                offset=end_of(log) if at_end else 0,
                end_offset=end_of(log) if is_bounded else None,
            )
            for name, log in self.logs.items()
            if name not in known
        ]

    def owner(self, name: str, parallelism: int) -> int:
        return sum(name.encode()) % parallelism

    def oldest(self, split: SplitProgress) -> int:
        if self.is_away:
            raise Retryable("the log does not answer")
        return self.oldest_offset.get(split.name, 0)

    def range_gone(self, split: SplitProgress, oldest: int) -> str:
        return f"{split.name}: offsets {split.offset} to {oldest - 1} are gone."

    def open(self) -> "GrowingLog":
        return self

    def read(self, split: SplitProgress) -> Iterator[LoggedRecords]:
        offset = split.offset
        while True:
            rows = [row for row in self.logs[split.name] if row[0] >= offset][: self.batch_rows]
            rows = [r for r in rows if split.end_offset is None or r[0] < split.end_offset]
            if not rows and (split.name in self.ended or split.end_offset is not None):
                return
            offset = rows[-1][0] + 1 if rows else offset
            yield LoggedRecords(
                batch_of([(key, at) for _, key, at in rows]),
                np.array([row[0] for row in rows], np.int64),
            )

    def close(self) -> None:
        pass


@dataclass(slots=True)
class NamedAgainLog(GrowingLog):
    """A log whose names may pass to other splits.

    `versions` maps a name to the version of the split that has it now, if that is known. `asked`
    has the names of each call.
    """

    versions: dict[str, str] = field(default_factory=dict)
    asked: list[list[str]] = field(default_factory=list)

    def confirmed(self, splits: Sequence[SplitProgress]) -> dict[str, str]:
        self.asked.append([split.name for split in splits])
        for split in splits:
            now = self.versions.get(split.name, split.version)
            if split.version not in (None, now):
                raise Rejected(f"{split.name} is {now} and was {split.version}.")
        names = {split.name for split in splits}
        return {name: version for name, version in self.versions.items() if name in names}


class AtOnce(Executor):
    """Runs each call at once, on the caller's thread."""

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> "Future[Any]":
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


def end_of(log: list[tuple[int, int, int]]) -> int:
    return log[-1][0] + 1 if log else 0
