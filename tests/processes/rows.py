"""Numbers counted into a PostgreSQL table, by plain transactions or by prepared ones."""

from collections.abc import Mapping

from pipelines.connectors import PostgresInsert, PostgresTwoPhase
from pipelines.domain.run import Parameter
from pipelines.stream import Environment, Flow, Pipeline, count, sum, tumbling
from tests.processes.numbers import TOTAL, Numbers

TABLE = "totals"
KINDS = {"plain": PostgresInsert, "prepared": PostgresTwoPhase}


def assemble(parameters: Mapping[str, str]) -> Pipeline:
    env = Environment()
    pause_s = int(parameters["pause_ms"]) / 1000
    source = Numbers(int(parameters["total"]), pause_s=pause_s, hurry=parameters["hurry"])
    totals = (
        env.source(source, uid="numbers")
        .key_by("key")
        .window(tumbling(minutes=1))
        .aggregate(count=count(), total=sum("number"), uid="totals")
    )
    sink = KINDS[parameters["kind"]](parameters["output"], TABLE, pipeline="numbers_rows")
    totals.sink(sink, uid="rows")
    return env.build()


FLOW = Flow(
    name="numbers_rows",
    summary="Numbers counted per key and minute into PostgreSQL, for tests.",
    parameters=(
        Parameter("output", None, "address of the database"),
        Parameter("kind", "plain", "plain or prepared"),
        Parameter("total", str(TOTAL), "how many numbers there are"),
        Parameter("pause_ms", "0", "how long there is nothing to read before each batch"),
        Parameter("hurry", "", "a file; once it exists, there is always something to read"),
    ),
    assemble=assemble,
)
