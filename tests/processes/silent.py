"""A flow whose splits mostly have nothing: one ends at once, one has ended, one stays silent.

The silent one continues until a file says that it is over.
"""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from pipelines.connectors import ExactlyOnceFiles
from pipelines.domain.run import Parameter
from pipelines.stream import Environment, Flow, Pipeline
from tests.processes.numbers import BATCH_RECORDS, SCHEMA, Numbers

SPLITS = ("ended", "empty", "silent")
OVER = "over"
POLL_S = 0.002
NOTHING = pa.RecordBatch.from_pylist([], SCHEMA)


@dataclass(frozen=True, slots=True)
class SilentNumbers(Numbers):
    """`total` numbers in the first split, none in the others."""

    directory: Path = Path()

    def split_id(self, index: int) -> str | None:
        return SPLITS[index] if index < len(SPLITS) else None

    def read(self, index: int, offset: int) -> Iterator[pa.RecordBatch]:
        match SPLITS[index]:
            case "ended" if offset < self.total:
                yield from Numbers(self.total).read(0, offset)
            case "silent":
                while not (self.directory / OVER).exists():
                    time.sleep(POLL_S)
                    yield NOTHING


def assemble(parameters: Mapping[str, str]) -> Pipeline:
    env = Environment()
    source = SilentNumbers(int(parameters["total"]), Path(parameters["script"]))
    numbers = env.source(source, uid="numbers")
    passed_on = numbers.rebalance().map_batches(lambda batch: batch, SCHEMA, uid="passed-on")
    output = ExactlyOnceFiles(Path(parameters["output"]), pipeline="silent")
    passed_on.sink(output, uid="files")
    return env.build()


FLOW = Flow(
    name="silent",
    summary="Splits with next to nothing in them, for tests.",
    parameters=(
        Parameter("output", None, "directory of the output"),
        Parameter("script", None, "directory of the file that ends it"),
        Parameter("total", str(BATCH_RECORDS), "how many numbers there are"),
    ),
    assemble=assemble,
)
