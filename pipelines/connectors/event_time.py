"""Checks and reads the event time column of sources whose author declares a schema."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipelines.domain.errors import Rejected

EVENT_TIME = pa.timestamp("ms", tz="UTC")


def check_event_time(schema: pa.Schema, column: str | None) -> None:
    """Raises Rejected if the column is missing or holds no time."""
    if column is None:
        return
    if column not in schema.names or schema.field(column).type != EVENT_TIME:
        raise Rejected(f"The event time column {column} must be a column of type {EVENT_TIME}.")


class NoEventTime(Rejected):
    """`row` counts from 0 in the batch."""

    def __init__(self, sentence: str, row: int) -> None:
        super().__init__(sentence)
        self.row = row


def check_has_event_time(
    batch: pa.RecordBatch, column: str | None, place_of: Callable[[int], str]
) -> None:
    """Raises NoEventTime for the first record without time; `place_of` names a row's place."""
    if column is None or batch.column(column).null_count == 0:
        return
    row = batch.column(column).is_null().index(True).as_py()
    raise NoEventTime(f"{place_of(row)} has no {column}: no event time.", row)


def times_of_batch(batch: pa.RecordBatch, column: str) -> npt.NDArray[np.int64]:
    """Milliseconds since 1970."""
    return np.asarray(batch.column(column).cast(pa.int64()))
