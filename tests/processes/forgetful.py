"""A flow whose target keeps transactions, but has given up each one before it is committed."""

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from pipelines.connectors.contract import (
    SinkContext,
    Superseded,
    TransactionLost,
    TwoPhaseCommitWriter,
)
from pipelines.domain.ids import CheckpointId, RunId
from pipelines.domain.run import Parameter
from pipelines.domain.snapshots import Json
from pipelines.stream import Environment, Flow, Pipeline
from tests.processes.numbers import TOTAL, Numbers

NAME = "forgetful"


@dataclass(frozen=True, slots=True)
class ForgetfulSink:
    guarantee: str = "exactly-once"

    def validate(self, schema: pa.Schema) -> None:
        pass

    def open(self, context: SinkContext, schema: pa.Schema) -> TwoPhaseCommitWriter:
        return TwoPhaseCommitWriter(ForgetfulTarget(), context, schema)

    def rewind(
        self, ancestors: list[tuple[RunId, CheckpointId]], run_id: RunId
    ) -> Superseded | None:
        return None


class ForgetfulTarget:
    def begin(
        self, context: SinkContext, schema: pa.Schema, after: CheckpointId
    ) -> "ForgottenTransaction":
        return ForgottenTransaction()

    def commit(self, handle: Json) -> None:
        raise TransactionLost("it was open for too long")

    def end_orphans(self, context: SinkContext, keep: list[Json]) -> None:
        pass

    def close(self) -> None:
        pass


class ForgottenTransaction:
    def write(self, batch: pa.RecordBatch) -> None:
        pass

    def prepare(self, checkpoint_id: CheckpointId) -> Json:
        return "forgotten"

    def abandon(self) -> None:
        pass


def assemble(parameters: Mapping[str, str]) -> Pipeline:
    env = Environment()
    env.source(Numbers(TOTAL), uid="numbers").sink(ForgetfulSink(), uid="out")
    return env.build()


FLOW = Flow(
    name=NAME,
    summary="Numbers into a target that forgets, for tests.",
    parameters=(
        Parameter("output", "", "unused"),
        Parameter("hurry", "", "unused"),
    ),
    assemble=assemble,
)
