"""The elements of a channel: record batches and, between them, the marks of time.

A batch carries its origin, so that a failure can name the records that were being processed. That
is one small value per batch, never one per record. A batch computed from another keeps its origin;
after an exchange or a window, that is the input batch that was being processed. Joined batches have
several origins, one for each split.

A changelog has a column that says what each row does; its name and values are here, and
`operators.changelog` says what they mean.

Source: the stream elements of Flink (`StreamElement`, `CheckpointBarrier`), with one difference:
records travel as Arrow record batches, and marks only come between two batches.
"""

from dataclasses import dataclass
from functools import cache

import pyarrow as pa

from pipelines.domain.ids import NO_CHECKPOINT, CheckpointId
from pipelines.domain.origins import Origins

ROW_KIND = "row_kind"
INSERT, UPDATE_BEFORE, UPDATE_AFTER, DELETE = "+I", "-U", "+U", "-D"

TAKE_BACK = (DELETE, UPDATE_BEFORE)
"""The kinds of rows that are taken back; all others are added."""


@cache
def take_back_column() -> pa.Array:
    """Returns `TAKE_BACK` as an array to look kinds up in.

    Made when it is first needed: the first array that a process makes imports pandas, which takes a
    third of a second.
    """
    return pa.array(TAKE_BACK)


@dataclass(frozen=True, slots=True)
class Records:
    batch: pa.RecordBatch
    origins: Origins = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Barrier:
    """Separates the records before checkpoint `checkpoint_id` from those after it."""

    checkpoint_id: CheckpointId
    trigger_ms: int  # wall clock of the coordinator, for display only
    is_savepoint: bool = False
    is_native: bool = False  # a savepoint in the backend's own files
    is_final: bool = False  # the pipeline stops once this one is complete
    confirmed_id: CheckpointId = NO_CHECKPOINT  # certainly complete when this was triggered
    overtakes: bool = False  # records before it may arrive after it; the cut then keeps them
    location: str = ""  # where the files of the checkpoint go


@dataclass(frozen=True, slots=True)
class CancelCheckpoint:
    """Replaces a barrier: the sender will never cut `checkpoint_id`."""

    checkpoint_id: CheckpointId


@dataclass(frozen=True, slots=True)
class Watermark:
    """No record with a timestamp at or below `timestamp_ms` (epoch, UTC) follows."""

    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class WatermarkStatus:
    """Says if the sender is idle; event time does not wait for an idle sender."""

    is_idle: bool


@dataclass(frozen=True, slots=True)
class EndOfInput:
    """The last element of a channel."""


Mark = Barrier | CancelCheckpoint | Watermark | WatermarkStatus | EndOfInput
Element = Records | Mark
