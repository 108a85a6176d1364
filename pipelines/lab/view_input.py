"""The seeded input of the lab: page views as lines of text, and the places where a slot is killed.

Each view has a time of its own. Views and places follow from a seed, never from the clock.
"""

import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.connectors import Draws
from pipelines.disk.files import create_if_absent

FROM, TO = 0.4, 0.8
"""The part of its stretch of the input in which a fault lies. So no two faults come close
together, and the run has begun to take checkpoints before the first one."""


def kill_places(seed: int, records: int, faults: int) -> tuple[int, ...]:
    """Numbers of views, ascending: the first slot to parse one of these, or a later one, dies."""
    rng = random.Random(seed)
    stretch = records / max(faults, 1)
    return tuple(int((index + rng.uniform(FROM, TO)) * stretch) for index in range(faults))


SCHEMA = pa.schema([("line", pa.string()), ("happened_ms", pa.int64())])
APPS = 100
BATCH_ROWS = 1_000
BEGAN = "began"
READ = "read-"

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ViewInput:
    """`rate` 0: all views have happened when the run begins. Split i of n holds the views i, i + n,
    i + 2n, ...; `directory` keeps the time of the beginning and what was read."""

    directory: Path
    seed: int
    records: int
    rate: int
    splits: int

    @property
    def schema(self) -> pa.Schema:
        return SCHEMA

    @property
    def timestamp_column(self) -> None:
        return None

    @property
    def out_of_orderness_ms(self) -> int:
        return 0

    def validate(self) -> None:
        pass

    def split_id(self, index: int) -> str | None:
        return f"views-{index}" if index < self.splits else None

    def event_time_ms(self, index: int, offset: int) -> None:
        return None

    def read(self, index: int, offset: int) -> Iterator[pa.RecordBatch]:
        began_ms = _begun_ms(self.directory)
        end = len(range(index, self.records, self.splits))
        with open(self.directory / f"{READ}{index}", "ab", buffering=0) as read:
            while offset < end:
                due = min(end, self._due(index, began_ms), offset + BATCH_ROWS)
                due = max(due, offset)
                if due > offset:
                    read.write(np.array([offset, due], np.int64).tobytes())
                yield self._views(index, offset, due, began_ms)
                offset = due

    def _due(self, index: int, began_ms: int) -> int:
        """The offset in the split up to which views have happened by now."""
        if not self.rate:
            return self.records
        happened = int((wall_ms() - began_ms) * self.rate / 1000)
        return len(range(index, happened, self.splits))

    def _views(self, index: int, offset: int, end: int, began_ms: int) -> pa.RecordBatch:
        numbers = np.arange(offset, end, dtype=np.int64) * self.splits + index
        since_ms = numbers * 1000 // self.rate if self.rate else np.zeros_like(numbers)
        lines = pc.binary_join_element_wise(
            "/app/",
            pa.array(apps_of(self.seed, numbers)).cast(pa.string()),
            "?view=",
            pa.array(numbers).cast(pa.string()),
            "",
        )
        return pa.record_batch([lines, pa.array(began_ms + since_ms)], schema=SCHEMA)


def apps_of(seed: int, numbers: Numbers) -> Numbers:
    """The application of each view."""
    return Draws(seed, 0, numbers).integers("app", 0, APPS)


def began_ms(directory: Path) -> int:
    """When the first view was asked for, wall clock."""
    return int((directory / BEGAN).read_text())


def reads(directory: Path) -> list[tuple[int, Numbers]]:
    """For each split, the ranges [from, to) of offsets that were given out, one a row."""
    found = sorted(directory.glob(f"{READ}*"))
    return [
        (int(path.name.removeprefix(READ)), np.fromfile(path, np.int64).reshape(-1, 2))
        for path in found
    ]


def wall_ms() -> int:
    return time.time_ns() // 1_000_000


def _begun_ms(directory: Path) -> int:
    """The first caller sets the time of the beginning."""
    create_if_absent(directory / BEGAN, str(wall_ms()).encode())
    return began_ms(directory)
