"""The flow of a test of secrets: a function has one, and fails with it in the error's text."""

import logging
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa

from pipelines.connectors import ExactlyOnceFiles
from pipelines.domain.run import Parameter
from pipelines.operators.rows import Row
from pipelines.stream import (
    Environment,
    Flow,
    KeyedProcessFunction,
    Pipeline,
    RowContext,
    RuntimeContext,
    Secret,
    ValueStateDescriptor,
)
from tests.processes.numbers import SCHEMA, Numbers

FAILS_AT = 700
log = logging.getLogger(__name__)


class AskingFunction(KeyedProcessFunction):
    def __init__(self, token: Secret) -> None:
        self._token = token

    def open(self, runtime: RuntimeContext) -> None:
        self._revealed = self._token.reveal()
        self._seen = runtime.get_state(ValueStateDescriptor("seen", pa.int64()))
        log.info("It asks with %s.", self._revealed)

    def process_element(self, row: Row, context: RowContext) -> list[Row]:
        self._seen.update((self._seen.value() or 0) + 1)
        if row["number"] == FAILS_AT:
            log.warning("It fails with %s.", self._revealed)
            raise ConnectionRefusedError(f"the service refuses {self._revealed}")
        return [row]


def assemble(parameters: Mapping[str, str]) -> Pipeline:
    env = Environment()
    keyed = env.source(Numbers(1_000), uid="numbers").key_by("key")
    asked = keyed.process(AskingFunction(Secret(parameters["token"])), SCHEMA, uid="asking")
    asked.sink(ExactlyOnceFiles(Path(parameters["output"]), pipeline="secretive"), uid="files")
    return env.build()


FLOW = Flow(
    name="secretive",
    summary="A function that knows a secret, for tests.",
    parameters=(
        Parameter("output", None, "directory of the output"),
        Parameter("token", None, "where the secret is", is_secret=True),
    ),
    assemble=assemble,
)
