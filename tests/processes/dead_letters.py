"""A flow over a topic with records that cannot be decoded: those go to a topic of their own."""

import os
from collections.abc import Mapping

import pyarrow as pa

from pipelines.connectors import ExactlyOnceKafka, JsonValues, KafkaAddress, KafkaTopics
from pipelines.domain.run import Parameter
from pipelines.stream import Environment, Flow, Pipeline

SERVER = "DEAD_LETTERS_SERVER"
NAME = "dead_letters"
EVENTS = pa.schema([("n", pa.int64()), ("at", pa.timestamp("ms", "UTC"))])


def assemble(parameters: Mapping[str, str]) -> Pipeline:
    topic, address = parameters["topic"], KafkaAddress(os.environ[SERVER])
    env = Environment()
    events = env.source(
        KafkaTopics(
            address,
            (topic,),
            format=JsonValues(EVENTS),
            timestamp_column="at",
            dead_letters=True,
        ),
        uid="events",
    )
    events.sink(ExactlyOnceKafka(address, f"{topic}-good", pipeline=NAME), uid="good")
    letters = events.side_output("dead_letters", uid="letters")
    letters.sink(ExactlyOnceKafka(address, f"{topic}-bad", pipeline=NAME), uid="bad")
    return env.build()


FLOW = Flow(
    name=NAME,
    summary="A topic with records that cannot be decoded, for tests.",
    parameters=(
        Parameter("output", None, "not used"),
        Parameter("topic", None, "the topic to read"),
    ),
    assemble=assemble,
)
