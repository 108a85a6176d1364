"""The benchmark's input: page-view events as CSV without header, written once per seed."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pc

COLUMNS = ("app_id", "user_id", "ts")
EVENTS = 10_000_000
FILES = 4
SEED = 1


def event_files(events: int = EVENTS) -> Path:
    """Writes four files once: app_id (1,000 keys, Zipf), user_id (a million), ts in ms."""
    directory = Path(tempfile.gettempdir()) / f"ftdash-events-{events}-{SEED}"
    if not directory.is_dir():
        partial = Path(tempfile.mkdtemp(dir=directory.parent))
        _write(partial, events)
        partial.rename(directory)
    for path in directory.iterdir():
        path.read_bytes()  # so that the page cache is warm before any clock starts
    return directory


@contextmanager
def repeated_files(directory: Path, rounds: int) -> Iterator[Path]:
    """Links each file under `rounds` names, for programs that read every name once."""
    with tempfile.TemporaryDirectory(dir=directory.parent, prefix="ftdash-events-") as repeated:
        for path in directory.iterdir():
            for number in range(rounds):
                os.link(path, Path(repeated) / f"{number}-{path.name}")
        yield Path(repeated)


def _write(directory: Path, events: int) -> None:
    generator = np.random.default_rng(SEED)
    table = pa.table(
        {
            "app_id": (generator.zipf(1.3, events) % 1000).astype(np.int64),
            "user_id": generator.integers(0, 1_000_000, events),
            "ts": 1_700_000_000_000 + np.arange(events),
        }
    )
    share = events // FILES
    for index in range(FILES):
        path = directory / f"part-{index}.csv"
        pc.write_csv(table.slice(index * share, share), path, pc.WriteOptions(include_header=False))
