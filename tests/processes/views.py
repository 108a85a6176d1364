"""The flow of the lab with the sink that ships: views come at a rate and are counted into files."""

from collections.abc import Mapping
from pathlib import Path

from pipelines.connectors import ExactlyOnceFiles
from pipelines.domain.run import Parameter
from pipelines.lab.page_views import ViewInput, counted_views
from pipelines.stream import Environment, Flow, Pipeline

SPLITS = 2
SEED = 1
FILES = "files"


def assemble(parameters: Mapping[str, str]) -> Pipeline:
    output = Path(parameters["output"])
    records, rate = int(parameters["records"]), int(parameters["rate"])
    env = Environment()
    views = ViewInput(output, SEED, records, rate, SPLITS)
    counted_views(env, views).sink(ExactlyOnceFiles(output / FILES, pipeline="views"), uid="files")
    return env.build()


FLOW = Flow(
    name="views",
    summary="Page views at a rate, counted by application into files, for measuring latency.",
    parameters=(
        Parameter("output", None, "directory of files and of the input's notes"),
        Parameter("records", None, "how many views"),
        Parameter("rate", "0", "views a second; 0: all have happened"),
    ),
    assemble=assemble,
)
