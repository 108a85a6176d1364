"""A flow that writes one Kafka record per number, for tests of records published again."""

from collections.abc import Mapping

from pipelines.connectors import ExactlyOnceKafka, KafkaAddress
from pipelines.domain.run import Parameter
from pipelines.stream import Environment, Flow, Pipeline
from tests.processes.numbers import Numbers


def assemble(parameters: Mapping[str, str]) -> Pipeline:
    env = Environment()
    source = Numbers(
        int(parameters["total"]), held_at=int(parameters["held_at"]), hurry=parameters["hurry"]
    )
    kafka = KafkaAddress(parameters["address"])
    sink = ExactlyOnceKafka(kafka, parameters["output"], pipeline="published", key="number")
    env.source(source, uid="numbers").sink(sink, uid="topic")
    return env.build()


FLOW = Flow(
    name="published",
    summary="Numbers in a topic, for tests.",
    parameters=(
        Parameter("total", None, "how many numbers there are"),
        Parameter("held_at", None, "the number from which on there is nothing to read"),
        Parameter("hurry", None, "a file; once it exists, there is always something to read"),
        Parameter("address", None, "of the brokers"),
        Parameter("output", None, "the topic that the numbers go to"),
    ),
    assemble=assemble,
)
