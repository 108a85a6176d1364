"""A flow that asks a slow service for each number, and counts the answers of each minute."""

import asyncio
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa

from pipelines.domain.run import Parameter
from pipelines.stream import Environment, Flow, Pipeline, bounded_out_of_orderness, count, tumbling
from tests.processes.event_times import DISORDER_MS, LEFT, STRAGGLER_MS, Disordered, write

ANSWERED = LEFT.append(pa.field("answer", pa.int64()))


async def answer(row: dict[str, Any]) -> dict[str, Any]:
    await asyncio.sleep(0.002 * (row["number"] % 9))
    return {**row, "answer": row["number"] * 3}


def assemble(parameters: Mapping[str, str]) -> Pipeline:
    pace, output = parameters["hours_per_s"], Path(parameters["output"])
    env = Environment(pace=float(pace) if pace else None)
    patient = bounded_out_of_orderness(timedelta(milliseconds=STRAGGLER_MS + 2 * DISORDER_MS))
    numbers = env.source(
        Disordered(int(parameters["total"]), True), uid="numbers", watermarks=patient
    )
    answers = numbers.map_async(
        answer, ANSWERED, uid="answers", capacity=20, ordered=parameters["ordered"] == "yes"
    )
    minutes = answers.key_by("key").window(tumbling(minutes=1)).aggregate(n=count(), uid="minutes")
    write(answers, output, "answers")
    write(minutes, output, "minutes")
    return env.build()


FLOW = Flow(
    name="asking",
    summary="Asks a service, for tests.",
    parameters=(
        Parameter("output", None, "directory of the output"),
        Parameter("total", "3600", "how many numbers there are"),
        Parameter("hours_per_s", "", "event-hours per second; empty: as fast as possible"),
        Parameter("ordered", "yes", "yes: results leave as their rows came"),
    ),
    assemble=assemble,
)
