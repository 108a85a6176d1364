"""The flow `numbers` with operators of four parallelisms: one reads, three digest, five count."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from pipelines.connectors import ExactlyOnceFiles
from pipelines.stream import Environment, Pipeline, count, sum, tumbling
from tests.processes.numbers import FLOW as NUMBERS
from tests.processes.numbers import SCHEMA, Numbers

SLOTS = 5


def assemble(parameters: Mapping[str, str]) -> Pipeline:
    env = Environment()
    pause_s = int(parameters["pause_ms"]) / 1000
    source = Numbers(int(parameters["total"]), pause_s=pause_s, hurry=parameters["hurry"])
    numbers = env.source(source, uid="numbers").parallelism(1)
    digested = numbers.map_batches(lambda batch: batch, SCHEMA, uid="digest").parallelism(3)
    totals = (
        digested.key_by("key")
        .window(tumbling(minutes=1))
        .aggregate(count=count(), total=sum("number"), uid="totals")
        .parallelism(SLOTS)
    )
    totals.sink(ExactlyOnceFiles(Path(parameters["output"]), pipeline="mixed"), uid="files")
    return env.build()


FLOW = replace(NUMBERS, name="numbers_mixed", assemble=assemble)
