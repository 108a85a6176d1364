"""The elements of a channel: record batches and, between them, the marks of time.

Source: the stream elements of Flink (`StreamElement`, `CheckpointBarrier`), with one difference:
records travel as Arrow record batches, and marks only stand between two batches.
"""

from dataclasses import dataclass

import pyarrow as pa

from pipelines.domain.ids import NO_CHECKPOINT, CheckpointId
from pipelines.domain.origin import Origins

MAX_WATERMARK_MS = 2**62
"""Event time has ended: every window may fire."""

MIN_WATERMARK_MS = -(2**62)
"""Nothing is known about event time yet."""


@dataclass(frozen=True, slots=True)
class Records:
    batch: pa.RecordBatch
    origins: Origins = ()


@dataclass(frozen=True, slots=True)
class Barrier:
    """Separates the records before checkpoint `checkpoint_id` from those after it."""

    checkpoint_id: CheckpointId
    trigger_ms: int  # wall clock of the coordinator, for display only
    is_savepoint: bool = False
    is_native: bool = False  # a savepoint in the backend's own files
    is_final: bool = False  # the pipeline stops once this one is complete
    confirmed_id: CheckpointId = NO_CHECKPOINT  # certainly complete when this was triggered
    overtakes: bool = False  # records before it may arrive after it; the cut then keeps them


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
