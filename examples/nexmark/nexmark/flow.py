"""The pipeline: one query over the events of Nexmark, which are generated or read from files."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

from pipelines.connectors import BlackHole, ExactlyOnceFiles
from pipelines.stream import Environment, Rejected, flow

from nexmark.generator import EVENTS_PER_S, Kind, Model
from nexmark.queries import QUERIES
from nexmark.sources import generated, stored
from nexmark.tables import Source, Tables


@dataclass(frozen=True, kw_only=True)
class Parameters:
    query: Annotated[str, "q0 to q5 or q7 to q23"]
    data: Annotated[str, "directory of `python -m nexmark parquet`; empty: events are made"] = ""
    output: Annotated[str, "directory of the result's Parquet files; empty: it is dropped"] = ""
    events: Annotated[int, "how many events are made"] = 1_000_000
    seed: Annotated[int, "decides the events that are made"] = 1
    per_s: Annotated[int, "how many events there are in a second of event time"] = EVENTS_PER_S
    splits: Annotated[int, "how many sequences of events are made side by side"] = 8
    rate: Annotated[int, "how many events are made in a second; 0: as many as possible"] = 0


@flow
def nexmark(env: Environment, parameters: Parameters) -> None:
    """Answers one query of Nexmark."""
    if parameters.query not in QUERIES:
        raise Rejected(f"There is no query {parameters.query!r}; choose one of {[*QUERIES]}.")
    tables = Tables(env, partial(source_of, parameters))
    result = QUERIES[parameters.query].build(tables)
    if parameters.output:
        files = ExactlyOnceFiles(Path(parameters.output), pipeline=f"nexmark-{parameters.query}")
        result.sink(files, uid="result")
    else:
        result.sink(BlackHole(), uid="nowhere")


def source_of(parameters: Parameters, kind: Kind, columns: Sequence[str]) -> Source:
    if parameters.data:
        return stored(kind, Path(parameters.data), columns)
    return generated(
        kind,
        Model(parameters.seed, parameters.per_s),
        events=parameters.events,
        splits=parameters.splits,
        columns=columns,
        events_per_s=parameters.rate or None,
    )
