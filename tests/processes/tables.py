"""A flow that writes the numbers of `numbers` to PostgreSQL, a row each, with both sinks.

An environment variable gives the address of the database, since it is a secret.
"""

import os
from collections.abc import Mapping

from pipelines.connectors import PostgresInsert, PostgresTwoPhase
from pipelines.domain.run import Parameter
from pipelines.stream import Environment, Flow, Pipeline
from tests.processes.numbers import TOTAL, Numbers

NAME = "numbers_tables"
DATABASE = "FTDASH_TEST_DATABASE"
TABLES = ("plain", "prepared")


def assemble(parameters: Mapping[str, str]) -> Pipeline:
    env = Environment()
    pause_s = int(parameters["pause_ms"]) / 1000
    source = Numbers(TOTAL, pause_s=pause_s, hurry=parameters["hurry"])
    numbers = env.source(source, uid="numbers")
    url = os.environ[DATABASE]
    numbers.sink(PostgresInsert(url, "plain", pipeline=NAME), uid="plain")
    numbers.sink(PostgresTwoPhase(url, "prepared", pipeline=NAME), uid="prepared")
    return env.build()


FLOW = Flow(
    name=NAME,
    summary="Numbers into tables, for tests.",
    parameters=(
        Parameter("output", "", "unused"),
        Parameter("pause_ms", "0", "how long there is nothing to read before each batch"),
        Parameter("hurry", "", "a file; once it exists, there is always something to read"),
    ),
    assemble=assemble,
)
