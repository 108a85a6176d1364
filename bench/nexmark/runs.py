"""Runs of Nexmark's queries: their events in files, the start of a run, and its output."""

import os
import re
import tempfile
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from nexmark.generator import EPOCH_EVENTS, KINDS, Kind, Model
from nexmark.queries import QUERIES
from nexmark.sources import generated
from nexmark.tables import Source, Tables
from nexmark.writing import write_parquet

from bench import EXAMPLES
from pipelines.domain.ids import RunId
from pipelines.stream import Environment
from tests.driven_run import StartedRun, started_run
from tests.processes.host import hosted_run

SEED, FILES = 1, 4
PIPELINE = "nexmark"
ENVIRONMENT = {
    "FTDASH_PIPELINES": f"{PIPELINE}=nexmark.flow:nexmark",
    "PYTHONPATH": os.pathsep.join([*map(str, EXAMPLES), os.environ.get("PYTHONPATH", "")]),
}
COMMITTED = re.compile(r"part-.+-(?P<checkpoint>\d{8,})-(?P<subtask>\d+)-(?P<number>\d+)\.parquet")

Begin = Callable[[Path, dict[str, str], dict[str, str], RunId], AbstractContextManager[StartedRun]]
"""Starts a run, or continues it with another driver, from its root, parameters, settings and id."""


@dataclass(frozen=True, slots=True)
class Events:
    """The first `count` events, `per_s` of them in a second of event time.

    `rounds` is how often each file is there, for queries that treat repeated events like new ones.
    """

    count: int
    per_s: int
    rounds: int = 1

    @property
    def read(self) -> int:
        """Returns how many events a run reads."""
        return self.count * self.rounds

    @property
    def model(self) -> Model:
        return Model(SEED, self.per_s)

    def files(self, kinds: Sequence[Kind] = KINDS) -> Path:
        """Returns a directory that has a folder of Parquet files for each kind, written once."""
        place = Path(tempfile.gettempdir())
        directory = place / f"ftdash-nexmark-{self.count}-{self.per_s}-{SEED}-x{self.rounds}"
        for kind in (each for each in kinds if not (directory / each.name).is_dir()):
            directory.mkdir(exist_ok=True)
            with tempfile.TemporaryDirectory(dir=place) as partial:
                self._write(Path(partial), kind)
                (Path(partial) / kind.name).rename(directory / kind.name)
        for kind in kinds:
            for path in (directory / kind.name).iterdir():
                path.read_bytes()  # so that the page cache is warm before any clock starts
        return directory

    def _write(self, directory: Path, kind: Kind) -> None:
        if self.rounds == 1:
            write_parquet(directory, self.model, events=self.count, files=FILES, kinds=[kind])
            return
        (directory / kind.name).mkdir()
        for path in (replace(self, rounds=1).files([kind]) / kind.name).iterdir():
            for number in range(self.rounds):
                os.link(path, directory / kind.name / f"{number}-{path.name}")

    def made(self, splits: int = FILES) -> dict[str, str]:
        """Returns the parameters of a run that generates the events itself."""
        numbers = {"events": self.count, "per_s": self.per_s, "seed": SEED, "splits": splits}
        return {name: str(value) for name, value in numbers.items()}


def on_spark(
    root: Path, parameters: dict[str, str], settings: dict[str, str], run_id: RunId
) -> AbstractContextManager[StartedRun]:
    return started_run(
        root, PIPELINE, parameters, settings=settings, run_id=run_id, environment=ENVIRONMENT
    )


def on_processes(
    root: Path, parameters: dict[str, str], settings: dict[str, str], run_id: RunId
) -> AbstractContextManager[StartedRun]:
    """Runs the same driver and slots as plain processes, which start sooner than on Spark."""
    spec_fields: dict[str, object] = {"pipeline": PIPELINE, "parameters": parameters}
    return hosted_run(
        root, settings=settings, spec_fields=spec_fields, run_id=run_id, environment=ENVIRONMENT
    )


HOSTS: dict[str, Begin] = {"processes": on_processes, "spark": on_spark}


def known_queries(names: list[str] | None) -> list[str]:
    """Returns the given queries, or all. Raises ValueError, naming the existing ones."""
    unknown = sorted(set(names or ()) - set(QUERIES))
    if unknown:
        raise ValueError(f"there is no query {unknown[0]}; choose from {', '.join(QUERIES)}")
    return [name for name in QUERIES if names is None or name in names]


def kinds_of(query: str) -> list[Kind]:
    """Returns the kinds of events that the query reads."""
    read: list[Kind] = []

    def source(kind: Kind, columns: Sequence[str]) -> Source:
        read.append(kind)
        return generated(kind, Model(SEED, 1), events=EPOCH_EVENTS, splits=1, columns=columns)

    QUERIES[query].build(Tables(Environment(), source))
    return read


def committed(output: Path) -> pa.Table:
    """Returns the committed rows of a run; the rows of a key are in order of commit."""
    found = {path: COMMITTED.fullmatch(path.name) for path in output.iterdir()}
    order = {path: tuple(map(int, match.groups())) for path, match in found.items() if match}
    return pa.concat_tables(pq.read_table(path) for path in sorted(order, key=order.__getitem__))
