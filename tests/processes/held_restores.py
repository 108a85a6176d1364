"""The flow `numbers` with a sink that, after a failure, opens only when the test lets it.

To a slot, this looks like a download of a large state, or a commit that a server delays.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa

from pipelines.connectors import ExactlyOnceFiles
from pipelines.connectors.contract import SinkContext, SinkWriter
from pipelines.stream import Flow, Pipeline
from tests.processes import numbers

OPENING = "opening-{attempt}-{subtask}"
LET_GO = "let-go"
POLL_S = 0.002


@dataclass(frozen=True, slots=True)
class HeldFiles(ExactlyOnceFiles):
    """Opens at once in the first attempt; in a later one, only once the file `let-go` exists."""

    def open(self, context: SinkContext, schema: pa.Schema) -> SinkWriter:
        if context.attempt > 1:
            script = Path(self.directory).parent
            (script / OPENING.format(attempt=context.attempt, subtask=context.subtask)).touch()
            while not (script / LET_GO).exists():
                time.sleep(POLL_S)
        return ExactlyOnceFiles.open(self, context, schema)


def assemble(parameters: Mapping[str, str]) -> Pipeline:
    pipeline = numbers.assemble(parameters)
    sinks = {
        uid: HeldFiles(Path(parameters["output"]), pipeline="numbers") for uid in pipeline.sinks
    }
    return replace(pipeline, sinks=sinks)


FLOW = Flow(
    name="numbers_held",
    summary="Numbers whose sink opens slowly after a failure, for tests.",
    parameters=numbers.FLOW.parameters,
    assemble=assemble,
)
