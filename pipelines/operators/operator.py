"""The contract of an operator: batches and watermarks in, batches out, state by descriptor.

One thread calls an operator, so it needs no locks. Operators of one chain call each other through
`Collector`; barriers never reach them: the runtime cuts their state between two elements.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import pyarrow as pa

from pipelines.domain.elements import MIN_WATERMARK_MS
from pipelines.domain.ids import CheckpointId, Uid
from pipelines.domain.origin import Firing
from pipelines.operators.columns import Longs
from pipelines.operators.lineage import Lineage
from pipelines.operators.side_output import SideOutput
from pipelines.state.backend import StateBackend
from pipelines.state.operator_states import OperatorStates

Collector = Callable[[pa.RecordBatch], None]
"""Passes a batch to whatever follows in the graph."""

SideCollector = Callable[[str, pa.RecordBatch], None]
"""Passes a batch to whatever reads the side output of that name; lost if nobody does."""


@dataclass(slots=True)
class OperatorContext:
    """What an operator may use. Counters are part of every snapshot; a rescale adds them up."""

    uid: Uid
    subtask: int
    parallelism: int
    state: StateBackend
    collect: Collector
    counters: dict[str, int] = field(default_factory=dict)
    collect_side: SideCollector = lambda name, batch: None
    operator_state: OperatorStates = field(default_factory=OperatorStates)
    # Processing time: milliseconds since the epoch, never going back. Stands still by default.
    now_ms: Callable[[], int] = lambda: 0
    # Event time at the restored cut: what was late before a failure is late after it.
    restored_watermark_ms: int = MIN_WATERMARK_MS
    # By key group, where subtasks had come unequally far at the cut; see `keyed_time`.
    restored_times_ms: Longs | None = None
    # Where to say which rows a batch descends from; None: nobody asks.
    lineage: Lineage | None = None

    def count(self, name: str, increment: int) -> None:
        self.counters[name] = self.counters.get(name, 0) + increment


class Operator:
    """Base with the defaults of a stateless operator. Subclasses override what they need.

    `output_schema` is asked while the graph is built, in the driver, so that a wrong column is
    refused before anything runs.
    """

    def output_schema(self, inputs: list[pa.Schema]) -> pa.Schema:
        """Raises Rejected naming the column that is missing or has the wrong type."""
        raise NotImplementedError

    def side_outputs(self, inputs: list[pa.Schema]) -> dict[str, SideOutput]:
        """What `context.collect_side` may be given, by name."""
        return {}

    def open(self, context: OperatorContext, inputs: list[pa.Schema]) -> None:
        """Declare states; restored rows are loaded after this and before the first element."""
        self.context = context

    def on_restored(self) -> None:
        """All restored rows are loaded, if there are any; nothing may be emitted yet."""

    def on_cut(self, checkpoint_id: CheckpointId) -> None:
        """State is cut right after this; nothing may be emitted."""

    def on_checkpoint_completed(self, checkpoint_id: CheckpointId) -> None:
        """Told once at most, in order; nothing may be emitted."""

    def on_checkpoint_aborted(self, checkpoint_id: CheckpointId) -> None:
        """It will never complete, whether it was cut here or not; nothing may be emitted."""

    def on_batch(self, port: int, batch: pa.RecordBatch) -> None:
        """`port` tells the inputs of a join apart; 0 elsewhere."""
        raise NotImplementedError

    def failing_row(self, batch: pa.RecordBatch) -> int:
        """Asked once, after `on_batch` has raised: the row at fault; -1 when it is not known."""
        return -1

    def on_watermark(self, timestamp_ms: int) -> None:
        """Event time has reached `timestamp_ms`; it never goes back. The runtime forwards it."""

    def firing(self) -> Firing | None:
        """Asked once, after `on_watermark` or `on_processing_time` has raised: the timers at work;
        None when there are none, or it is not known."""
        return None

    @property
    def awaits_processing_time(self) -> bool:
        """Whether there is something to do once processing time has come."""
        return False

    def on_processing_time(self, now_ms: int) -> None:
        """Called every few milliseconds while `awaits_processing_time`."""

    def on_end(self) -> None:
        """All inputs have ended; the watermark has already been set to its maximum."""
