"""What a column of event time is, for sources that an author gives a schema."""

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipelines.domain.errors import Rejected

EVENT_TIME = pa.timestamp("ms", tz="UTC")


def check_event_time(schema: pa.Schema, column: str | None) -> None:
    """Raises Rejected: the column is not there, or is no time."""
    if column is None:
        return
    if column not in schema.names or schema.field(column).type != EVENT_TIME:
        raise Rejected(f"The event time column {column} must be a column of type {EVENT_TIME}.")


def times_of_batch(batch: pa.RecordBatch, column: str) -> npt.NDArray[np.int64]:
    """Milliseconds since 1970."""
    return np.asarray(batch.column(column).cast(pa.int64()))
