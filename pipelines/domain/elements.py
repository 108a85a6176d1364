"""What travels in a channel: record batches and, between them, the marks of time.

Source: the stream elements of Flink (`StreamElement`, `CheckpointBarrier`), with one difference:
records travel as Arrow record batches, and marks only ever stand between two batches.
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
    confirmed_id: CheckpointId = NO_CHECKPOINT  # complete for certain when this was triggered
    overtakes: bool = False  # records before it may arrive after it, and are kept with the cut


@dataclass(frozen=True, slots=True)
class CancelCheckpoint:
    """In the place of a barrier: whoever sends it will never cut `checkpoint_id`."""

    checkpoint_id: CheckpointId


@dataclass(frozen=True, slots=True)
class Watermark:
    """No record with a timestamp at or below `timestamp_ms` (epoch, UTC) follows."""

    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class WatermarkStatus:
    """Whether the sender is idle: then event time does not wait for it until it says otherwise."""

    is_idle: bool


@dataclass(frozen=True, slots=True)
class EndOfInput:
    """The last element of a channel."""


Mark = Barrier | CancelCheckpoint | Watermark | WatermarkStatus | EndOfInput
Element = Records | Mark
