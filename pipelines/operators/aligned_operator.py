"""Base of operators over tumbling or sliding windows of one input: decides which rows may enter."""

import pyarrow as pa

from pipelines.operators.keyed_time import KeyedTime
from pipelines.operators.lateness import WindowEntry
from pipelines.operators.operator import OperatorContext
from pipelines.operators.window_operator import WindowOperator
from pipelines.operators.windows import AlignedWindows


class AlignedOperator(WindowOperator):
    def __init__(
        self, keys: tuple[str, ...], time_column: str, windows: AlignedWindows, lateness_ms: int
    ) -> None:
        super().__init__(keys, time_column, lateness_ms)
        self._windows = windows

    def open(self, context: OperatorContext, inputs: list[pa.Schema]) -> None:
        super().open(context, inputs)
        self._entry = WindowEntry(
            self._windows,
            self._time_column,
            context,
            KeyedTime(context, self._keys),
            self._lateness_ms,
        )
