"""A named second output of an operator, with a schema and an event time of its own."""

from dataclasses import dataclass

import pyarrow as pa


@dataclass(frozen=True, slots=True)
class SideOutput:
    """Source: Flink's `OutputTag`. `time_column` None: its records have no event time."""

    schema: pa.Schema
    time_column: str | None
