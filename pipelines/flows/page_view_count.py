"""The flow `page_view_count`: counts views per key in CSV files, for measuring the engine."""

from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa

from pipelines.connectors import BlackHole, CsvFiles
from pipelines.stream import Environment, Flow, Parameter, Pipeline, Rejected, count

COLUMNS = ("app_id", "user_id", "ts")
KEYS = COLUMNS[:2]


def assemble(parameters: Mapping[str, str]) -> Pipeline:
    key, repeat = parameters["key"], parameters["repeat"]
    if key not in KEYS:
        raise Rejected(f"The parameter 'key' cannot be {key!r}; choose one of {', '.join(KEYS)}.")
    if not repeat.isdecimal() or int(repeat) < 1:
        raise Rejected(f"The parameter 'repeat' cannot be {repeat!r}; give a number from 1 on.")
    env = Environment()
    schema = pa.schema([(key, pa.int64())])
    data = Path(parameters["data"])
    files = CsvFiles(data, schema=schema, file_columns=COLUMNS, repeat=int(repeat))
    events = env.source(files, uid="events")
    totals = events.key_by(key).aggregate(pv=count(), uid="views")
    totals.sink(BlackHole(), uid="nowhere")
    return env.build()


FLOW = Flow(
    name="page_view_count",
    summary="Page views per application or user, from CSV files, into nothing.",
    parameters=(
        Parameter("data", None, "directory of CSV files: app_id, user_id, ts"),
        Parameter("key", "app_id", "column to count by: app_id or user_id"),
        Parameter("repeat", "1", "how often the files are read"),
    ),
    assemble=assemble,
)
