"""A flow over a directory that grows: the keys of all its files, as they are, into files."""

import json
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.connectors.files.growing_directory import json_lines_directory
from pipelines.connectors.files.sink import ExactlyOnceFiles
from pipelines.flows.registry import Flow, Parameter
from pipelines.stream import Environment, Pipeline

SCHEMA = pa.schema([("key", pa.int64())])
LOOK_EVERY = timedelta(milliseconds=50)


def assemble(parameters: Mapping[str, str]) -> Pipeline:
    output = Path(parameters["output"])
    env = Environment()
    source = json_lines_directory(inbox_of(output), schema=SCHEMA, look_every=LOOK_EVERY)
    keys = env.source(source, uid="inbox")
    keys.sink(ExactlyOnceFiles(output, pipeline="growing"), uid="files")
    return env.build()


def inbox_of(output: Path) -> Path:
    return output.parent / "inbox"


def put(output: Path, name: str, keys: range) -> None:
    """A whole file at once."""
    inbox = inbox_of(output)
    inbox.mkdir(exist_ok=True)
    new = inbox / f".{name}"
    new.write_text("".join(f"{json.dumps({'key': key})}\n" for key in keys))
    new.rename(inbox / f"{name}.jsonl")


def committed_keys(output: Path) -> list[int]:
    """In order, so that one that is missing or there twice is seen."""
    files = [path for path in output.glob("*.parquet") if path.name[0] not in "._"]
    return sorted(key for file in files for key in pq.read_table(file)["key"].to_pylist())


FLOW = Flow(
    name="growing",
    summary="A directory that grows, for tests.",
    parameters=(Parameter("output", None, "directory of the output; the input lies beside it"),),
    assemble=assemble,
)
