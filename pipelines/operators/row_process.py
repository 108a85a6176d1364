"""Runs a row function as a batch function: one pass over the rows, state read and written once."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import pyarrow as pa

from pipelines.domain.ids import CheckpointId
from pipelines.operators.operator import Collector
from pipelines.operators.process_context import ProcessContext
from pipelines.operators.process_function import BatchProcessFunction, KeyedProcessFunction
from pipelines.operators.row_context import RowContext, RuntimeContext
from pipelines.operators.row_states import CurrentKeys
from pipelines.operators.rows import Row, RowOutput, rows_of
from pipelines.state.timers import FiredTimers

ProcessElement = Callable[[Row, RowContext], Iterable[Row] | None]


class RowProcess(BatchProcessFunction):
    """Guarantee: has the effect of processing one row after the other."""

    def __init__(self, function: KeyedProcessFunction, uid: str, output: pa.Schema) -> None:
        self.side_outputs = function.side_outputs
        self._function = function
        self._uid = uid
        self._schema = output
        self.row_in_work = -1
        self.timer_in_work = -1

    def open(self, context: ProcessContext) -> None:
        current = CurrentKeys()
        self._current = current
        self._runtime = RuntimeContext(context, current)
        self._function.open(self._runtime)
        self._output = RowOutput(self._uid, self._schema, context.collect)
        self._context = RowContext(context, current, self._side_outputs(context))

    def initialize_state(self, context: ProcessContext) -> None:
        with self._no_key():
            self._function.initialize_state(self._runtime)

    def snapshot_state(self, checkpoint_id: CheckpointId) -> None:
        with self._no_key():
            self._function.snapshot_state(checkpoint_id)

    def notify_checkpoint_complete(self, checkpoint_id: CheckpointId) -> None:
        with self._no_key():
            self._function.notify_checkpoint_complete(checkpoint_id)

    def notify_checkpoint_aborted(self, checkpoint_id: CheckpointId) -> None:
        with self._no_key():
            self._function.notify_checkpoint_aborted(checkpoint_id)

    def process_batch(self, batch: pa.RecordBatch, context: ProcessContext) -> None:
        self._process(batch, context, self._function.process_element)

    def process_other_batch(self, batch: pa.RecordBatch, context: ProcessContext) -> None:
        self._process(batch, context, self._function.process_other_element)

    def on_timers(self, timers: FiredTimers, context: ProcessContext) -> None:
        self._context.time_domain = timers.domain
        owners = self._begin(timers.keys, context)
        moments = zip(owners, timers.timestamps_ms.tolist(), strict=True)
        for number, (index, timestamp_ms) in enumerate(moments):
            self.timer_in_work = number
            self._current.index = index
            emitted = self._function.on_timer(timestamp_ms, self._context)
            if emitted is not None:
                self._output.add(emitted)
        self.timer_in_work = -1
        self._flush()

    def _process(
        self, batch: pa.RecordBatch, context: ProcessContext, process: ProcessElement
    ) -> None:
        self._context.time_domain = None
        owners = self._begin(batch, context)
        for number, (index, row) in enumerate(zip(owners, rows_of(batch), strict=True)):
            self.row_in_work = number
            self._current.index = index
            emitted = process(row, self._context)
            if emitted is not None:
                self._output.add(emitted)
        self.row_in_work = -1
        self._flush()

    @contextmanager
    def _no_key(self) -> Iterator[None]:
        """Refuses any use of a keyed state, instead of keeping it for the next key."""
        self._context.begin_without_keys()
        yield
        self._flush()

    def _begin(self, batch: pa.RecordBatch, context: ProcessContext) -> list[int]:
        """The index of each row's key among the keys of the batch; broadcast rows have none."""
        if not context.key_columns:
            self._context.begin_without_keys()
            return [0] * batch.num_rows
        groups = context.group(batch)
        self._context.begin(groups.keys)
        owners: list[int] = groups.index.tolist()
        return owners

    def _flush(self) -> None:
        for state in self._runtime.states:
            state.flush()
        self._context.flush()
        self._output.flush()

    def _side_outputs(self, context: ProcessContext) -> dict[str, RowOutput]:
        return {
            name: RowOutput(self._uid, side.schema, _into(context, name))
            for name, side in self.side_outputs.items()
        }


def _into(context: ProcessContext, side: str) -> Collector:
    return lambda batch: context.collect_side(side, batch)
