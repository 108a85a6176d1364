"""What an author writes to work with keyed state and timers, by batches or by rows.

A batch function gets Arrow batches and works on whole batches of keys and timers, as fast as the
built-in operators. A row function is called once per record and once per timer. It is shorter to
write and costs more: a count per key takes 4 times as long with a million keys, and 40 times with a
thousand (one core: 0.5 to 0.7 against 2 to 31 million records/s).

Source: Flink's `KeyedProcessFunction`; the flavour for batches is ours.
"""

from collections.abc import Iterable, Mapping

import pyarrow as pa

from pipelines.domain.ids import CheckpointId
from pipelines.operators.operator import SideOutput
from pipelines.operators.processing.process_context import ProcessContext
from pipelines.operators.processing.row_context import RowContext, RuntimeContext
from pipelines.operators.rows import Row
from pipelines.state.timers import FiredTimers


class BatchProcessFunction:
    """The default flavour. Each subtask has a copy; what it keeps outside of state is lost."""

    side_outputs: Mapping[str, SideOutput] = {}
    """The side outputs that `context.collect_side` accepts, by name."""

    def open(self, context: ProcessContext) -> None:
        """Ask for states here and nowhere else: restored rows are loaded after this call."""

    def initialize_state(self, context: ProcessContext) -> None:
        """States hold what was restored, or nothing; no record has come. Do not emit here.

        If you use a union list, keep only this subtask's part here, or the list grows with every
        restore: a cut may come before the first record. Source: Flink's `CheckpointedFunction`.
        """

    def snapshot_state(self, checkpoint_id: CheckpointId) -> None:
        """The state is cut right after this call, as you leave it here. Do not emit here.

        Write here what you gathered outside of state. Source: Flink's `CheckpointedFunction`.
        """

    def notify_checkpoint_complete(self, checkpoint_id: CheckpointId) -> None:
        """No failure goes back behind this checkpoint any more. Do not emit here.

        Called at most once: if a checkpoint completes while an attempt dies, no call follows.
        Source: Flink's `CheckpointListener`.
        """

    def notify_checkpoint_aborted(self, checkpoint_id: CheckpointId) -> None:
        """The checkpoint will never complete, whether this subtask has cut for it or not."""

    def process_batch(self, batch: pa.RecordBatch, context: ProcessContext) -> None:
        """Records of this subtask's keys. Emit with `context.collect`."""
        raise NotImplementedError

    def process_other_batch(self, batch: pa.RecordBatch, context: ProcessContext) -> None:
        """Records of the other stream, if this stream is connected to one."""
        raise NotImplementedError

    def on_timers(self, timers: FiredTimers, context: ProcessContext) -> None:
        """All due timers of all keys, sorted by timestamp; they have been removed already."""


class KeyedProcessFunction:
    """Row by row. States are read and written once per batch, however often the rows use them."""

    side_outputs: Mapping[str, SideOutput] = {}
    """The side outputs that `context.output` accepts, by name."""

    def open(self, runtime: RuntimeContext) -> None:
        """Ask for states here and nowhere else: restored rows are loaded after this call."""

    def initialize_state(self, runtime: RuntimeContext) -> None:
        """As in the other flavour, for states that belong to no key. Keyed states have no key yet
        and cannot be used."""

    def snapshot_state(self, checkpoint_id: CheckpointId) -> None:
        """As in the other flavour, like the next two methods; keyed states cannot be used."""

    def notify_checkpoint_complete(self, checkpoint_id: CheckpointId) -> None:
        pass

    def notify_checkpoint_aborted(self, checkpoint_id: CheckpointId) -> None:
        pass

    def process_element(self, row: Row, context: RowContext) -> Iterable[Row] | None:
        """Emits what it yields or returns."""
        raise NotImplementedError

    def process_other_element(self, row: Row, context: RowContext) -> Iterable[Row] | None:
        """A record of the other stream, if this stream is connected to one. A broadcast record has
        no key; only here may you write a broadcast state (Flink: `processBroadcastElement`)."""
        raise NotImplementedError

    def on_timer(self, timestamp_ms: int, context: RowContext) -> Iterable[Row] | None:
        """One timer of the key `context.get_current_key()`. Emits what it yields or returns."""
        return None
