"""The operator behind `map_async`: asks a service for each row, or for each batch.

Its state is the rows whose results have not left, in the order of the input. After a restore it
asks for them again, before anything new. So a service sees a request again after a failure, but the
output has each result once. At another parallelism the rows are dealt to the subtasks in turn.

Source: Flink's `AsyncDataStream` and `AsyncWaitOperator`.
"""

import copy
from abc import abstractmethod
from collections.abc import Iterator
from itertools import groupby
from typing import Any

import msgspec
import pyarrow as pa

from pipelines.domain.elements import Watermark, WatermarkStatus
from pipelines.domain.errors import Rejected
from pipelines.domain.event_time import MIN_WATERMARK_MS
from pipelines.domain.ids import CheckpointId
from pipelines.domain.key_groups import Redistribution
from pipelines.domain.origins import Origins
from pipelines.operators.asynchronous.request_loop import (
    AsyncCall,
    AsyncFunction,
    RequestLoop,
    RequestPolicy,
    check_async,
)
from pipelines.operators.asynchronous.request_queue import Answer, RequestQueue, Results, Work
from pipelines.operators.operator import AsyncOperator, OperatorContext
from pipelines.operators.rows import Row, RowOutput, rows_of
from pipelines.operators.stateless import check_declared
from pipelines.state.descriptors import ListStateDescriptor

IN_FLIGHT = "in_flight"
"""The state: rows that the operator has asked for, or has yet to ask for."""

ORIGINS = "__origins"
TIMED_OUT = "requests_timed_out"
"""Counts the results that the author's `timed_out` gave."""


class AsyncMap(AsyncOperator):
    """Guarantee: the output has the result of each input row once, and event time waits for it.

    Needs a function that may be called again for a row.
    """

    def __init__(
        self, function: AsyncCall | AsyncFunction, schema: pa.Schema, policy: RequestPolicy
    ) -> None:
        self._function = copy.deepcopy(function)
        self._schema = schema
        self._policy = policy
        self._queue = RequestQueue(policy.capacity, in_order=policy.is_ordered)
        self._loop: RequestLoop | None = None  # from the first request on
        self._row_in_work = -1

    def output_schema(self, inputs: list[pa.Schema]) -> pa.Schema:
        self._policy.check()
        check_async(self._function)
        if ORIGINS in inputs[0].names:
            raise Rejected(f"The column {ORIGINS!r} must have another name.")
        return self._schema

    def open(self, context: OperatorContext, inputs: list[pa.Schema]) -> None:
        """Raises Rejected in the mode ACKED, which follows each record instead of keeping state."""
        super().open(context, inputs)
        if context.lineage is not None:
            raise Rejected(
                "In the checkpointing mode ACKED a record counts as done before its result is"
                " there; use map_async in another mode."
            )
        self._input = inputs[0]
        if context.restored_watermark_ms > MIN_WATERMARK_MS:  # what was in flight was not kept
            self._queue.add_mark(Watermark(context.restored_watermark_ms))
        kept = pa.struct([*inputs[0], pa.field(ORIGINS, pa.string())])
        self._kept = context.operator_state.list_of(
            ListStateDescriptor(IN_FLIGHT, kept), Redistribution.SPLIT
        )

    def on_restored(self) -> None:
        """Queues the restored rows, but asks for nothing before the subtask runs."""
        rows = self._kept.get()
        self._kept.clear()
        fields = dict(zip((field.name for field in rows.type), rows.flatten(), strict=True))
        origins = fields.pop(ORIGINS).to_pylist()
        batch = pa.RecordBatch.from_arrays(list(fields.values()), schema=self._input)
        begin = 0
        for text, same in groupby(origins):
            count = len(list(same))
            self._add(batch.slice(begin, count), msgspec.json.decode(text, type=Origins))
            begin += count

    def on_cut(self, checkpoint_id: CheckpointId) -> None:
        self._kept.clear()
        for work in self._queue.unfinished():
            rows = self._unfinished_rows(work)
            text = msgspec.json.encode(work.origins).decode()
            columns = [*rows.columns, pa.array([text] * rows.num_rows, pa.string())]
            self._kept.add(pa.StructArray.from_arrays(columns, fields=list(self._kept_fields())))

    def on_batch(self, port: int, batch: pa.RecordBatch) -> None:
        begin = 0
        for origins, count in self.context.work.parts(batch):
            self._add(batch.slice(begin, count), origins)
            begin += count
        self._ask()

    def on_watermark(self, timestamp_ms: int) -> None:
        self._queue.add_mark(Watermark(timestamp_ms))
        self._give_out()

    def on_status(self, *, is_idle: bool) -> None:
        self._queue.add_mark(WatermarkStatus(is_idle))
        self._give_out()

    def on_results(self) -> None:
        if self._loop is not None:
            for work, number, answer in self._loop.answered():
                work.answer(number, answer)
        self._give_out()
        self._ask()

    @property
    def is_full(self) -> bool:
        return self._queue.is_full

    @property
    def awaits_results(self) -> bool:
        return not self._queue.is_empty

    def failing_row(self, batch: pa.RecordBatch) -> int:
        return self._row_in_work

    def close(self) -> None:
        if self._loop is not None:
            self._loop.close()

    def _add(self, rows: pa.RecordBatch, origins: Origins) -> None:
        if rows.num_rows:
            self._queue.add(Work(rows, origins, self._count(rows)))

    def _ask(self) -> None:
        requests = self._queue.take_to_ask()
        if not requests:
            return
        if self._loop is None:
            context = self.context
            name = f"{context.uid}[{context.subtask}]"
            self._loop = RequestLoop(name, self._function, self._policy, context.wake)
        self._loop.ask((each, self._argument(each[0])) for each in requests)

    def _give_out(self) -> None:
        for due in self._queue.take_due():
            if isinstance(due, Results):
                self.context.work.resume(due.work.rows, due.work.origins)
                self._emit_all(due)
            else:
                self.context.mark(due)

    def _emit_all(self, results: Results) -> None:
        """Raises the error that a request raised; `failing_row` then knows its row."""
        for number, answer in results.answers:
            self._row_in_work = number
            if answer.error is not None:
                raise answer.error
            if answer.is_late:
                self.context.count(TIMED_OUT, 1)
            self._emit(answer)
        self._row_in_work = -1
        self._flush()

    def _kept_fields(self) -> Iterator[pa.Field]:
        yield from self._input
        yield pa.field(ORIGINS, pa.string())

    @abstractmethod
    def _count(self, rows: pa.RecordBatch) -> int:
        """Returns how many requests the rows need."""

    @abstractmethod
    def _argument(self, work: Work) -> Any:
        """Returns the argument of this work's next request."""

    @abstractmethod
    def _unfinished_rows(self, work: Work) -> pa.RecordBatch:
        """Returns the rows without a result."""

    @abstractmethod
    def _emit(self, answer: Answer) -> None: ...

    def _flush(self) -> None:
        """Called when all due answers of one work were emitted."""


class AsyncMapRows(AsyncMap):
    """Makes one request for each row; the row and the result are dictionaries."""

    def open(self, context: OperatorContext, inputs: list[pa.Schema]) -> None:
        super().open(context, inputs)
        self._output = RowOutput(context.uid, self._schema, context.collect)
        self._asking: tuple[Work, Iterator[Row]] | None = None

    def _count(self, rows: pa.RecordBatch) -> int:
        return int(rows.num_rows)

    def _argument(self, work: Work) -> Row:
        if self._asking is None or self._asking[0] is not work:
            self._asking = (work, rows_of(work.rows))
        return next(self._asking[1])

    def _unfinished_rows(self, work: Work) -> pa.RecordBatch:
        return work.rows.filter(pa.array(~work.is_given))

    def _emit(self, answer: Answer) -> None:
        self._output.add([answer.value])

    def _flush(self) -> None:
        self._output.flush()


class AsyncMapBatches(AsyncMap):
    """Makes one request for all rows that arrived together; the result is a batch of any length."""

    def failing_row(self, batch: pa.RecordBatch) -> int:
        return -1

    def _count(self, rows: pa.RecordBatch) -> int:
        return 1

    def _argument(self, work: Work) -> pa.RecordBatch:
        return work.rows

    def _unfinished_rows(self, work: Work) -> pa.RecordBatch:
        return work.rows

    def _emit(self, answer: Answer) -> None:
        check_declared(self.context.uid, answer.value.schema, self._schema)
        if answer.value.num_rows:
            self.context.collect(answer.value)
