"""Base of all operators over windows of one input: the key, event time, and late rows.

Subclasses decide which windows there are and what they emit: aligned windows or sessions, with
aggregates or with an author's function.
"""

import pyarrow as pa

from pipelines.operators.columns import check_event_time, field_of
from pipelines.operators.lateness import LATE
from pipelines.operators.operator import Operator
from pipelines.operators.side_output import SideOutput


class WindowOperator(Operator):
    """Rows that are too late for every window go to the side output `late`."""

    def __init__(self, keys: tuple[str, ...], time_column: str, lateness_ms: int) -> None:
        self._keys = keys
        self._time_column = time_column
        self._lateness_ms = lateness_ms

    def side_outputs(self, inputs: list[pa.Schema]) -> dict[str, SideOutput]:
        return {LATE: SideOutput(inputs[0], self._time_column)}

    def _check_input(self, schema: pa.Schema) -> None:
        """Raises Rejected naming a column that is missing or holds no event time."""
        check_event_time(schema, self._time_column)
        for key in self._keys:
            field_of(schema, key)
