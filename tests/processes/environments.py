"""The flow of a test of environments: each process that builds it notes what its code can read."""

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from pipelines.connectors import ExactlyOnceFiles
from pipelines.disk.files import create_if_absent
from pipelines.domain.run import Parameter
from pipelines.stream import Environment, Flow, Pipeline
from tests.processes.numbers import Numbers


def assemble(parameters: Mapping[str, str]) -> Pipeline:
    started_with = Path("/proc/self/environ").read_text().split("\0")
    noted = {
        "environ": dict(each.split("=", 1) for each in started_with if each),
        "now": dict(os.environ),
        "words": Path("/proc/self/cmdline").read_text(),
        "input": sys.stdin.read(),
    }
    note = Path(parameters["notes"]) / f"{os.getpid()}.json"
    create_if_absent(note, json.dumps(noted).encode())
    env = Environment()
    sink = ExactlyOnceFiles(Path(parameters["output"]), pipeline="environments")
    env.source(Numbers(100), uid="numbers").sink(sink, uid="files")
    return env.build()


FLOW = Flow(
    name="environments",
    summary="Notes the environment of its processes, for tests.",
    parameters=(
        Parameter("output", None, "directory of the output"),
        Parameter("notes", None, "directory of the notes"),
    ),
    assemble=assemble,
)
