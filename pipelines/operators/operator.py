"""The contract of an operator: batches and watermarks in, batches out, state by descriptor.

One thread calls an operator, so it needs no locks. Operators of a chain call each other through
`Collector`. Barriers never reach them: the runtime cuts their state between two elements. A side
output is a named second output, with a schema and an event time of its own.

An operator may say from which input rows an emitted batch descends (`Lineage`). Only a run that
follows every record uses this. If an operator does not say, the run assumes that the whole output
descends from the whole input. That is right for any operator but costs more, because each record is
then followed into every part of the output.
"""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import pyarrow as pa

from pipelines.domain.elements import Watermark, WatermarkStatus
from pipelines.domain.event_time import MIN_WATERMARK_MS
from pipelines.domain.ids import CheckpointId, Uid
from pipelines.domain.key_groups import DEFAULT_MAX_PARALLELISM
from pipelines.domain.origins import Firing, Origins, Part
from pipelines.operators.changelog import refuse_changelogs
from pipelines.operators.columns import Longs
from pipelines.operators.user_metrics import OperatorMetrics
from pipelines.state.backend import StateBackend
from pipelines.state.operator_states import OperatorStates


@dataclass(frozen=True, slots=True)
class SideOutput:
    """If `time_column` is None, its records have no event time. Source: Flink's `OutputTag`."""

    schema: pa.Schema
    time_column: str | None = None


class Lineage:
    """The origin of the next batch. Set it before you emit; it applies to that batch only."""

    def __init__(self) -> None:
        self._parents: Longs | None = None

    def descend_from(self, parents: Longs) -> None:
        """`parents` gives, for each row of the next batch, the input row from which it was made."""
        self._parents = parents

    def take(self) -> Longs | None:
        """Returns the parents, or None if the batch descends from all rows."""
        parents, self._parents = self._parents, None
        return parents


Collector = Callable[[pa.RecordBatch], None]
"""Passes a batch to the next operators of the graph."""

SideCollector = Callable[[str, pa.RecordBatch], None]
"""Passes a batch to the readers of the side output of that name; drops it if there are none."""


MarkCollector = Callable[[Watermark | WatermarkStatus], None]
"""Passes event time to the next operators of the graph."""


class WorkInHand:
    """The batch that a chain works on. By default its origin is unknown."""

    def parts(self, batch: pa.RecordBatch) -> Sequence[Part]:
        """Returns the parts of the batch that the head of the chain just got, in order."""
        return (((), batch.num_rows),)

    def resume(self, rows: pa.RecordBatch, origins: Origins) -> None:
        """Notes that the next output was made from these rows, which arrived earlier."""


@dataclass(slots=True, kw_only=True)
class OperatorContext:
    """The services an operator may use. Snapshots include its counters; a rescale adds them up."""

    uid: Uid
    subtask: int
    parallelism: int
    state: StateBackend
    collect: Collector
    max_parallelism: int = DEFAULT_MAX_PARALLELISM  # of the run, which need not be the flow's
    counters: dict[str, int] = field(default_factory=dict)
    metrics: OperatorMetrics = field(default_factory=OperatorMetrics)  # in no snapshot
    collect_side: SideCollector = lambda name, batch: None
    # Only an operator that assigns event time calls this.
    mark: MarkCollector = lambda mark: None
    operator_state: OperatorStates = field(default_factory=OperatorStates)
    # Processing time: milliseconds since the epoch; never goes back. By default it stands still.
    now_ms: Callable[[], int] = lambda: 0
    # Event time at the restored cut: records that were late before a failure are late after it. For
    # an operator that assigns event time, the time that it had assigned.
    restored_watermark_ms: int = MIN_WATERMARK_MS
    # Times by key group, if the subtasks were at different times at the cut; see `event_time`.
    restored_times_ms: Longs | None = None
    # The operator says here from which rows a batch descends. None: the run does not need it.
    lineage: Lineage | None = None
    # For operators whose results come later. Set once the chain is built.
    work: WorkInHand = field(default_factory=WorkInHand)
    # Makes the subtask look for results; any thread may call it.
    wake: Callable[[], None] = lambda: None

    def count(self, name: str, increment: int) -> None:
        self.counters[name] = self.counters.get(name, 0) + increment


class Operator:
    """Base with the defaults of a stateless operator. Subclasses override what they need.

    The driver calls `output_schema` while it builds the graph, so that a wrong column is refused
    before anything runs.
    """

    # True: its input's watermarks end here; the operators after it get those of `context.mark`.
    assigns_event_time: ClassVar[bool] = False
    # True: if its input rows replace older ones, as running totals do, so do its output rows.
    passes_updates: ClassVar[bool] = False
    # True: it must be the head of its subtask. Source: Flink's `ChainingStrategy.HEAD`.
    starts_chain: ClassVar[bool] = False

    def output_schema(self, inputs: list[pa.Schema]) -> pa.Schema:
        """Raises Rejected naming the column that is missing or has the wrong type."""
        raise NotImplementedError

    def emits_changes(self, inputs: list[bool]) -> bool:
        """True if the output is a changelog (`operators.changelog`); `inputs` flags such inputs.

        Raises Rejected for an input that the operator cannot read correctly. This default refuses
        any changelog.
        """
        return refuse_changelogs(inputs)

    def side_outputs(self, inputs: list[pa.Schema]) -> dict[str, SideOutput]:
        """The side outputs that `context.collect_side` accepts, by name."""
        return {}

    def open(self, context: OperatorContext, inputs: list[pa.Schema]) -> None:
        """Declares states; restored rows are loaded after this call, before the first element."""
        self.context = context

    def on_restored(self) -> None:
        """Called when all restored rows, if any, are loaded; the operator must not emit yet."""

    def on_cut(self, checkpoint_id: CheckpointId) -> None:
        """Called right before the state is cut; the operator must not emit."""

    def on_checkpoint_completed(self, checkpoint_id: CheckpointId) -> None:
        """Called at most once per checkpoint, in order; the operator must not emit."""

    def on_checkpoint_aborted(self, checkpoint_id: CheckpointId) -> None:
        """The checkpoint will never complete, even if cut here; the operator must not emit."""

    def on_batch(self, port: int, batch: pa.RecordBatch) -> None:
        """`port` is the number of a join's input; otherwise 0."""
        raise NotImplementedError

    def failing_row(self, batch: pa.RecordBatch) -> int:
        """Called once, after `on_batch` has raised; returns the row at fault, or -1 if unknown."""
        return -1

    def on_watermark(self, timestamp_ms: int) -> None:
        """Event time has reached `timestamp_ms`; it never goes back. The runtime forwards it."""

    def on_status(self, *, is_idle: bool) -> None:
        """The input is idle, or active again. Only operators that assign event time need this."""

    def firing(self) -> Firing | None:
        """Called once, after `on_watermark` or `on_processing_time` has raised.

        Returns the timers that were firing, or None if there were none or they are unknown.
        """
        return None

    @property
    def awaits_processing_time(self) -> bool:
        """True if there is work to do once processing time has come."""
        return False

    def on_processing_time(self, now_ms: int) -> None:
        """Called every few milliseconds while `awaits_processing_time` is True."""

    def on_end(self) -> None:
        """All inputs have ended; the watermark has already been set to its maximum."""

    def close(self) -> None:
        """The subtask has ended: release everything but memory. Not called when a process dies."""


class AsyncOperator(Operator):
    """An operator whose results come later than its input; it is the head of its chain.

    It decides when the operators after it see event time advance: it calls `context.mark` after the
    results of all earlier rows.
    """

    assigns_event_time: ClassVar[bool] = True
    starts_chain: ClassVar[bool] = True

    @abstractmethod
    def on_results(self) -> None:
        """Emits results that have arrived. Called before each element and after `context.wake`."""

    @property
    @abstractmethod
    def is_full(self) -> bool:
        """True if the operator must get no further input now."""

    @property
    @abstractmethod
    def awaits_results(self) -> bool:
        """True while any result is still to come."""


def knows_processing_time(operator: Operator) -> bool:
    """Returns False if the operator never awaits processing time, so its chain need not ask."""
    return type(operator).awaits_processing_time is not Operator.awaits_processing_time
