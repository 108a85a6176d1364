"""The count of `pv` as a Pathway program, persisted every second.

Usage: pathway_count.py DIRECTORY app_id|user_id hashmap|rocksdb SCRATCH, with a Python that has
pathway. It has two worker threads. Counts are in memory with either backend. It persists the input,
Pathway's default, because persisting the state of operators needs a licence key. Pathway reads only
CSV with a header, so it gets copies that have one. As in ours, only the key is read. The clock runs
from the start of the engine, without imports and copies, to its end.
"""

import json
import os
import shutil
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

PARALLELISM = 2
os.environ["PATHWAY_THREADS"] = str(PARALLELISM)  # Pathway reads it on import

import pathway as pw  # noqa: E402

COLUMNS = ("app_id", "user_id", "ts")
POLL_S = 0.1


def main(directory: str, key: str, backend: str, scratch: str) -> None:
    events = Path(scratch) / "events"
    copy_with_headers(Path(directory), events)
    table = pw.io.csv.read(events, schema=pw.schema_from_types(**{key: int}), mode="static")
    pw.io.null.write(table.groupby(table[key]).reduce(table[key], pv=pw.reducers.count()))
    persisted = Path(scratch) / "persisted"
    with CheckpointCounter(persisted) as counter:
        began_s = time.monotonic()
        pw.run(
            monitoring_level=pw.MonitoringLevel.NONE,
            persistence_config=pw.persistence.Config(
                pw.persistence.Backend.filesystem(persisted), snapshot_interval_ms=1_000
            ),
        )
        seconds = time.monotonic() - began_s
    print(json.dumps({"seconds": seconds, "checkpoints": len(counter.seen)}))


def copy_with_headers(directory: Path, target: Path) -> None:
    target.mkdir()
    for path in directory.iterdir():
        with path.open("rb") as source, (target / path.name).open("wb") as copy:
            copy.write(",".join(COLUMNS).encode() + b"\n")
            shutil.copyfileobj(source, copy)
    os.sync()  # nothing is left to write when the clock starts


class CheckpointCounter:
    """Reads the first worker's progress from two files that the worker writes in turn."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.seen: set[str] = set()

    def __enter__(self) -> "CheckpointCounter":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._look()  # the last checkpoint is written when the run ends

    def _watch(self) -> None:
        while not self._over.wait(POLL_S):
            self._look()

    def _look(self) -> None:
        for path in self._directory.glob("*-0-?"):
            with suppress(FileNotFoundError, json.JSONDecodeError):  # it is being replaced
                self.seen.add(str(json.loads(path.read_text())["last_advanced_timestamp"]))


if __name__ == "__main__":
    main(*sys.argv[1:])
