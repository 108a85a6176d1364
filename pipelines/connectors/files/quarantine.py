"""The quarantine of a source: JSON lines, one for each poison record, exactly once.

Owns where the files are and what a line holds. The files are those of `sink.ExactlyOnceFiles`:
prepared at the barrier, visible when the checkpoint completes, and set aside when a run is restored
to an earlier point. Each source has a directory of its own, because a file's name gives only the
subtask.

The quarantine of a source as more splits of that source, to read its records once more.

Owns which files belong to it, and their names among the source's own splits. `quarantined_records`
reads the files; positions see to it that each is read once.
"""

from collections.abc import Collection, Iterator
from dataclasses import KW_ONLY, dataclass
from pathlib import Path

import msgspec
import pyarrow as pa

from pipelines.connectors.files.formats import JSON_LINES
from pipelines.connectors.files.growing_directory import GrowingDirectory
from pipelines.connectors.files.quarantined_records import quarantined_records
from pipelines.connectors.files.sink import ExactlyOnceFiles
from pipelines.connectors.files.target import FINAL
from pipelines.connectors.source import AnySource, Batch, ReadsText
from pipelines.connectors.split_progress import SplitProgress
from pipelines.domain.ids import RunId, Uid
from pipelines.domain.poison import REPLAYED_PREFIX, PoisonRecord

QUARANTINED = pa.schema(
    [
        ("source", pa.string()),
        ("split", pa.string()),
        ("offset", pa.int64()),
        ("operator", pa.string()),
        ("error_type", pa.string()),
        ("error", pa.string()),
        ("trace", pa.string()),
        ("record", pa.string()),
    ]
)
"""The columns of a line. `record` is the row as the source gave it, a JSON object as text; if the
source could not read the record, the text that it found."""


def quarantine_of(home: str | Path, source: Uid, pipeline: str) -> ExactlyOnceFiles:
    """`home` holds the quarantines of all sources of the pipeline."""
    return ExactlyOnceFiles(Path(home) / source, pipeline=pipeline, format=JSON_LINES)


def quarantined(poison: PoisonRecord, record: str) -> pa.RecordBatch:
    """The line of one record."""
    line = {**msgspec.structs.asdict(poison), "record": record}
    return pa.RecordBatch.from_pylist([line], schema=QUARANTINED)


@dataclass(frozen=True, slots=True)
class ReplayedQuarantine:
    """Guarantee: finds each file that existed when the run began, and none that the run itself
    adds: a record that fails again waits for the next replay. Implements `GrowingSource`. There is
    no event time, so that old records hold no window back.

    Needs a directory in which exactly the files of the starting point are visible.
    """

    directory: GrowingDirectory
    run_id: RunId
    _: KW_ONLY
    looks: bool
    """False: finds no new files, and only reads those that the point had begun to their end."""

    timestamp_column: None = None
    out_of_orderness_ms: int = 0
    concurrent_splits: int = 1
    discovery_interval_ms: None = None

    @classmethod
    def of(
        cls, home: str | Path, uid: Uid, source: AnySource, run_id: RunId, *, looks: bool
    ) -> "ReplayedQuarantine":
        """Raises Rejected naming a column whose values do not come back from a line unchanged."""
        records = quarantined_records(
            Path(home) / uid,
            schema=source.schema,
            timestamp_column=source.timestamp_column,
            row_of_text=source.row_of_text if isinstance(source, ReadsText) else None,
        )
        return cls(records, run_id, looks=looks)

    @property
    def schema(self) -> pa.Schema:
        return self.directory.schema

    def validate(self) -> None:
        pass  # the files are ours

    def find(self, known: Collection[str], *, is_start: bool) -> list[SplitProgress]:
        del is_start  # each run looks once, from whatever point it starts
        if not self.looks or not self.directory.directory.exists():
            return []
        names = {name.removeprefix(REPLAYED_PREFIX) for name in known}
        found = self.directory.find(names, is_start=True)
        return [_named(split) for split in found if self._is_of_others(split.name)]

    def owner(self, name: str, parallelism: int) -> int:
        return self.directory.owner(name, parallelism)

    def oldest(self, split: SplitProgress) -> int:
        return self.directory.oldest(_of_file(split))

    def range_gone(self, split: SplitProgress, oldest: int) -> str:
        return self.directory.range_gone(_of_file(split), oldest)

    def open(self) -> "ReplayedQuarantine":
        return self

    def read(self, split: SplitProgress) -> Iterator[Batch]:
        return self.directory.read(_of_file(split))

    def close(self) -> None:
        self.directory.close()

    def _is_of_others(self, file: str) -> bool:
        name = FINAL.fullmatch(file)
        return name is not None and name["run"] != self.run_id


def _named(split: SplitProgress) -> SplitProgress:
    return msgspec.structs.replace(split, name=REPLAYED_PREFIX + split.name)


def _of_file(split: SplitProgress) -> SplitProgress:
    return msgspec.structs.replace(split, name=split.name.removeprefix(REPLAYED_PREFIX))
