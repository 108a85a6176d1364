"""A flow over a directory that grows: it copies the keys of all files to its output.

With a fixed directory, each process that builds the flow lists the files and then adds one, before
the next process lists them.
"""

import json
import os
import uuid
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.connectors import ExactlyOnceFiles, JsonLinesFiles, json_lines_directory
from pipelines.connectors.source import AnySource
from pipelines.domain.run import Parameter
from pipelines.stream import Environment, Flow, Pipeline

SCHEMA = pa.schema([("key", pa.int64())])
LATE = 1_000_000
"""The first key of files added after the driver had looked."""

LOOK_EVERY = timedelta(milliseconds=50)


def assemble(parameters: Mapping[str, str]) -> Pipeline:
    output = Path(parameters["output"])
    env = Environment()
    keys = env.source(_source(output, is_fixed=parameters["fixed"] == "true"), uid="inbox")
    keys.sink(ExactlyOnceFiles(output, pipeline="growing"), uid="files")
    return env.build()


def _source(output: Path, *, is_fixed: bool) -> AnySource:
    inbox = inbox_of(output)
    if not is_fixed:
        return json_lines_directory(inbox, schema=SCHEMA, look_every=LOOK_EVERY)
    source = JsonLinesFiles(inbox, schema=SCHEMA)
    put(output, f"a-{os.getpid()}-{uuid.uuid4().hex}", range(LATE, LATE + 10))
    return source


def inbox_of(output: Path) -> Path:
    return output.parent / "inbox"


def put(output: Path, name: str, keys: range) -> None:
    """Writes a whole file at once."""
    inbox = inbox_of(output)
    inbox.mkdir(exist_ok=True)
    new = inbox / f".{name}"
    new.write_text("".join(f"{json.dumps({'key': key})}\n" for key in keys))
    new.rename(inbox / f"{name}.jsonl")


def committed_keys(output: Path) -> list[int]:
    """Returns the keys in order, so that a missing or doubled key shows."""
    files = [path for path in output.glob("*.parquet") if path.name[0] not in "._"]
    return sorted(key for file in files for key in pq.read_table(file)["key"].to_pylist())


FLOW = Flow(
    name="growing",
    summary="A directory that grows, for tests.",
    parameters=(
        Parameter("output", None, "directory of the output; the input lies beside it"),
        Parameter("fixed", "false", "true: with the files that were there at the start"),
    ),
    assemble=assemble,
)
