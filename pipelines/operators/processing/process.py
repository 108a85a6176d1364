"""Process functions for authors, and the operator that hosts them with states and timers.

A batch function gets Arrow batches and works on whole batches of keys and timers, as fast as the
built-in operators. A row function is called once per record and once per timer, in one pass over
the rows, with state read and written once. It is shorter to write and costs more: a count per key
takes 4 times as long with a million keys, and 40 times with a thousand (one core: 0.5 to 0.7
against 2 to 31 million records/s).

All due timers fire together. Timers that they register fire next if they are due too, and so on
until none is due. Event-time timers fire before the watermark is passed on. Processing-time timers
fire until the input has ended; the final snapshot keeps those that are pending then.

`Reduce` calls its function once per record, with Python dictionaries. An aggregate, if there is
one, is much faster. State is read and written once per key and batch.

Source: Flink's `KeyedProcessFunction`, `KeyedProcessOperator` and `KeyedStream.reduce`; the flavour
for batches is ours.
"""

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

import numpy as np
import pyarrow as pa

from pipelines.domain.errors import Rejected
from pipelines.domain.ids import CheckpointId
from pipelines.domain.origins import Firing
from pipelines.operators.columns import field_of, group
from pipelines.operators.operator import Operator, OperatorContext, SideOutput
from pipelines.operators.processing.row_context import ProcessContext, RowContext, RuntimeContext
from pipelines.operators.processing.row_states import CurrentKeys
from pipelines.operators.ranking.ranked_rows import ranked_table
from pipelines.operators.rows import Row, RowOutput, rows_of
from pipelines.operators.side_outputs import RowSides
from pipelines.state.arrow_types import check_key_type
from pipelines.state.backend import NO_ROW
from pipelines.state.timers import FiredTimers, Timers


class BatchProcessFunction:
    """The default flavour. Each subtask has a copy; a restore loses all it has outside of state."""

    side_outputs: Mapping[str, SideOutput] = {}
    """The side outputs that `context.output` accepts, by name."""

    def open(self, context: ProcessContext) -> None:
        """Ask for states here and nowhere else: restored rows are loaded after this call."""

    def initialize_state(self, context: ProcessContext) -> None:
        """Called before the first record, when states have any restored content. Do not emit here.

        If you use a union list, keep only this subtask's part here, or the list grows with every
        restore: a cut may come before the first record. Source: Flink's `CheckpointedFunction`.
        """

    def snapshot_state(self, checkpoint_id: CheckpointId) -> None:
        """The state is cut right after this call, as you leave it. Do not emit here.

        Write the data that you gathered outside of state. Source: Flink's `CheckpointedFunction`.
        """

    def notify_checkpoint_complete(self, checkpoint_id: CheckpointId) -> None:
        """No recovery goes back before this checkpoint any more. Do not emit here.

        Called at most once: if a checkpoint completes while an attempt dies, no call follows.
        Source: Flink's `CheckpointListener`.
        """

    def notify_checkpoint_aborted(self, checkpoint_id: CheckpointId) -> None:
        """The checkpoint will never complete, whether this subtask has cut for it or not."""

    def process_batch(self, batch: pa.RecordBatch, context: ProcessContext) -> None:
        """Processes records of this subtask's keys. Emit with `context.collect`."""
        raise NotImplementedError

    def process_other_batch(self, batch: pa.RecordBatch, context: ProcessContext) -> None:
        """Processes records of the other stream, if this stream is connected to one."""
        raise NotImplementedError

    def on_timers(self, timers: FiredTimers, context: ProcessContext) -> None:
        """Gets all due timers of all keys, sorted by timestamp; they are already removed."""


class KeyedProcessFunction:
    """Works row by row. States are read and written once per batch, however often rows use them."""

    side_outputs: Mapping[str, SideOutput] = {}
    """The side outputs that `context.output` accepts, by name."""

    def open(self, runtime: RuntimeContext) -> None:
        """Ask for states here and nowhere else: restored rows are loaded after this call."""

    def initialize_state(self, runtime: RuntimeContext) -> None:
        """Like `BatchProcessFunction.initialize_state`, for states that belong to no key.

        You cannot use keyed states here, because they have no key yet.
        """

    def snapshot_state(self, checkpoint_id: CheckpointId) -> None:
        """Like the next two methods, works as in `BatchProcessFunction`, without keyed states."""

    def notify_checkpoint_complete(self, checkpoint_id: CheckpointId) -> None:
        pass

    def notify_checkpoint_aborted(self, checkpoint_id: CheckpointId) -> None:
        pass

    def process_element(self, row: Row, context: RowContext) -> Iterable[Row] | None:
        """Processes one record. The rows that it yields or returns are emitted."""
        raise NotImplementedError

    def process_other_element(self, row: Row, context: RowContext) -> Iterable[Row] | None:
        """Processes a record of the other stream, if this stream is connected to one.

        A broadcast record has no key; only here may you write a broadcast state (Flink:
        `processBroadcastElement`).
        """
        raise NotImplementedError

    def on_timer(self, timestamp_ms: int, context: RowContext) -> Iterable[Row] | None:
        """Handles one timer of `context.get_current_key()`; emits the rows it yields or returns."""
        return None


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
        sides = RowSides(context.uid, self.side_outputs, context.output)
        self._context = RowContext(context, current, sides)

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
        """Returns the index of each row's key among the keys of the batch; 0 for broadcast rows."""
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


MAX_ROUNDS = 100_000
"""The most rounds of timers that register timers due at once; more would never end."""


class Process(Operator):
    """`function` is the author's; each subtask works with a copy of it.

    `keys` are the key's columns in each input, paired in order. They are empty for an input whose
    records are broadcast and for a stream without a key.
    """

    def __init__(
        self,
        function: BatchProcessFunction | KeyedProcessFunction,
        keys: tuple[tuple[str, ...], ...],
        schema: pa.Schema,
        uid: str,
    ) -> None:
        self._function = _as_batches(copy.deepcopy(function), uid, schema)
        self._keys = keys
        self._schema = schema
        self._has_ended = False
        self._fired: FiredTimers | None = None  # while the function handles them

    def output_schema(self, inputs: list[pa.Schema]) -> pa.Schema:
        for field in self._key_schema(inputs):
            check_key_type("timers", field)
        return self._schema

    def side_outputs(self, inputs: list[pa.Schema]) -> dict[str, SideOutput]:
        return dict(self._function.side_outputs)

    def open(self, context: OperatorContext, inputs: list[pa.Schema]) -> None:
        super().open(context, inputs)
        self._process = ProcessContext(
            context, self._key_schema(inputs), self._schema, self._function.side_outputs
        )
        self._function.open(self._process)

    def on_restored(self) -> None:
        with self._process.emitting_nothing():
            self._function.initialize_state(self._process)

    def on_cut(self, checkpoint_id: CheckpointId) -> None:
        with self._process.emitting_nothing():
            self._function.snapshot_state(checkpoint_id)

    def on_checkpoint_completed(self, checkpoint_id: CheckpointId) -> None:
        with self._process.emitting_nothing():
            self._function.notify_checkpoint_complete(checkpoint_id)

    def on_checkpoint_aborted(self, checkpoint_id: CheckpointId) -> None:
        with self._process.emitting_nothing():
            self._function.notify_checkpoint_aborted(checkpoint_id)

    def on_batch(self, port: int, batch: pa.RecordBatch) -> None:
        process = self._process
        process.key_columns = self._keys[port]
        if port == 0:
            self._function.process_batch(batch, process)
        else:
            self._process_other(batch)
        if process.keyed is not None:
            process.keyed.states.remove_expired()

    def _process_other(self, batch: pa.RecordBatch) -> None:
        """Lets broadcast records change broadcast state: every subtask gets the same ones."""
        states = self.context.operator_state
        states.allow_broadcast_writes(not self._process.key_columns)
        try:
            self._function.process_other_batch(batch, self._process)
        finally:
            states.allow_broadcast_writes(False)

    def failing_row(self, batch: pa.RecordBatch) -> int:
        return self._function.row_in_work if isinstance(self._function, RowProcess) else -1

    def firing(self) -> Firing | None:
        if self._fired is None:
            return None
        function = self._function
        return self._fired.described(
            function.timer_in_work if isinstance(function, RowProcess) else -1
        )

    def on_watermark(self, timestamp_ms: int) -> None:
        self._process.watermark_ms = timestamp_ms
        if self._process.keyed is not None:
            self._fire(self._process.keyed.event_timers, timestamp_ms)

    @property
    def awaits_processing_time(self) -> bool:
        keyed = self._process.keyed
        return keyed is not None and not self._has_ended and len(keyed.processing_timers) > 0

    def on_processing_time(self, now_ms: int) -> None:
        self._fire(self._process.processing_timers, now_ms)

    def on_end(self) -> None:
        self._has_ended = True

    def _fire(self, timers: Timers, time_ms: int) -> None:
        self._process.key_columns = self._keys[0]
        for _ in range(MAX_ROUNDS):
            due = timers.take_due(time_ms)
            if due is None:
                return
            self._fired = due
            self._function.on_timers(due, self._process)
            self._fired = None
        raise Rejected(
            f"The timers of {self.context.uid!r} register ever new ones that are due at once"
            f" ({MAX_ROUNDS:,} rounds at {time_ms} ms); at the end of the input every event-time"
            " timer is due, so stop registering when the watermark is at its maximum."
        )

    def _key_schema(self, inputs: list[pa.Schema]) -> pa.Schema:
        return pa.schema([field_of(inputs[0], key) for key in self._keys[0]])


def _as_batches(
    function: BatchProcessFunction | KeyedProcessFunction, uid: str, schema: pa.Schema
) -> BatchProcessFunction:
    if isinstance(function, KeyedProcessFunction):
        return RowProcess(function, uid, schema)
    return function


ReduceFunction = Callable[[Row, Row], Row]
"""Takes the result for the earlier rows of a key, and the next row. Both have the columns of the
input, and so must the new result. The first row of a key is its own result."""

_STATE = "reduced"


class Reduce(Operator):
    """Guarantee: emits, for each record, the reduced row of all rows of its key so far."""

    def __init__(self, keys: tuple[str, ...], function: ReduceFunction) -> None:
        self._keys = keys
        self._function = function
        self._row_in_work = -1

    def output_schema(self, inputs: list[pa.Schema]) -> pa.Schema:
        ranked_table(_STATE, inputs[0], self._keys, self._keys, has_ranks=False)
        return inputs[0]

    def open(self, context: OperatorContext, inputs: list[pa.Schema]) -> None:
        super().open(context, inputs)
        self._schema = inputs[0]
        self._reduced = context.state.table(
            ranked_table(_STATE, self._schema, self._keys, self._keys, has_ranks=False)
        )
        self._output = RowOutput(context.uid, self._schema, context.collect)

    def on_batch(self, port: int, batch: pa.RecordBatch) -> None:
        groups = group(batch, list(self._keys))
        reduced = self._held(groups.keys)
        for number, row in enumerate(rows_of(batch)):
            self._row_in_work = number
            of_key = int(groups.index[number])
            if of_key in reduced:
                row = self._call(reduced[of_key], row)
            reduced[of_key] = row
            self._output.add([row])
        self._row_in_work = -1
        self._keep(groups.keys, [reduced[of_key] for of_key in range(groups.count)])
        self._output.flush()

    def failing_row(self, batch: pa.RecordBatch) -> int:
        return self._row_in_work

    def _call(self, before: Row, row: Row) -> Row:
        keys = [row[key] for key in self._keys]
        result = self._function(before, row)
        if [result.get(key) for key in self._keys] != keys:
            raise Rejected(
                f"The function of {self.context.uid!r} changed the key from {keys} to"
                f" {[result.get(key) for key in self._keys]}; a reduced row keeps its key."
            )
        return result

    def _held(self, keys: pa.RecordBatch) -> dict[int, Row]:
        """Returns the reduced row of each key that has one, by the key's position."""
        rows = self._reduced.find(keys)
        known = np.flatnonzero(rows != NO_ROW)
        held = self._reduced.keys(rows[known])
        columns = [
            held.column(name) if name in self._keys else self._reduced.read_arrow(name, rows[known])
            for name in self._schema.names
        ]
        batch = pa.RecordBatch.from_arrays(columns, schema=self._schema)
        return dict(zip(known.tolist(), rows_of(batch), strict=True))

    def _keep(self, keys: pa.RecordBatch, reduced: list[Row]) -> None:
        pieces: list[pa.RecordBatch] = []
        written = RowOutput(self.context.uid, self._schema, pieces.append)
        written.add(reduced)
        written.flush()
        rows = self._reduced.rows_for(keys)
        kept = pa.concat_batches(pieces)
        for name in self._schema.names:
            if name not in self._keys:
                self._reduced.write_arrow(name, rows, kept.column(name))
