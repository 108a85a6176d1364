"""One operator by itself: push rows, watermarks and time into it, read output and state.

The harness hosts all its subtasks as if they were behind their exchanges. A row goes to the subtask
that owns its key; rows of a broadcast stream and watermarks go to all. A snapshot can be restored
at any parallelism.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa

from pipelines.domain.elements import Watermark, WatermarkStatus
from pipelines.domain.errors import Rejected
from pipelines.domain.event_time import MIN_WATERMARK_MS
from pipelines.domain.events import MetricSample
from pipelines.domain.ids import CheckpointId, Uid
from pipelines.domain.key_groups import Redistribution, owner_of, range_of, taken_by
from pipelines.domain.nodes import EdgeKind
from pipelines.operators.operator import AsyncOperator, Operator, OperatorContext
from pipelines.state.hashing import key_groups, key_hashes
from pipelines.state.in_memory.hashmap import HashMapBackend
from pipelines.state.operator_states import elements_taken
from pipelines.stream import Pipeline

Row = dict[str, Any]
Batches = tuple[pa.RecordBatch, ...]
States = tuple[tuple[str, Batches], ...]
OperatorStateParts = tuple[tuple[str, Redistribution, tuple[Batches, ...]], ...]
ONE_MS = timedelta(milliseconds=1)
WAIT_S = 0.1


@dataclass(frozen=True, slots=True)
class OperatorSnapshot:
    """The state of an operator, and its watermark.

    `states` are keyed states and timers, by name. `operator_states` are list, union and broadcast
    states, by name and kind, with the batches of each subtask.
    """

    states: States
    operator_states: OperatorStateParts
    watermark_ms: int
    now_ms: int


class OperatorHarness:
    """Hosts the operator `uid` of a pipeline. Uses the state backend in memory.

    Raises Rejected if the pipeline has no such operator.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        uid: str,
        *,
        parallelism: int = 1,
        restore: OperatorSnapshot | None = None,
    ) -> None:
        """With `restore`, continues from a snapshot of the same operator, at any parallelism."""
        node = Uid(uid)
        if node not in pipeline.operators:
            known = ", ".join(map(repr, pipeline.operators))
            raise Rejected(f"There is no operator {uid!r}; there are: {known}.")
        self._node = node
        self._create = pipeline.operators[node]
        self._inputs = pipeline.input_schemas(node)
        self._edges = pipeline.graph.node(node).inputs
        self._maximum = pipeline.graph.max_parallelism
        self._rows: list[Row] = []
        self._sides: dict[str, list[Row]] = {}
        self._watermark_ms = MIN_WATERMARK_MS if restore is None else restore.watermark_ms
        self._now_ms = 0 if restore is None else restore.now_ms
        self._cuts = 0
        self._woken = threading.Event()
        self._marked_ms = [self._watermark_ms] * parallelism
        self._contexts: list[OperatorContext] = []
        self._operators: list[Operator] = []
        for subtask in range(parallelism):
            self._open(subtask, parallelism, restore)

    # The input.

    def push(self, rows: Sequence[Mapping[str, Any]], port: int = 0) -> None:
        """Pushes one batch of rows into input `port`.

        Each row goes to the subtask that owns its key, or to all if the stream is broadcast.
        """
        schema = self._inputs[port]
        batch = pa.RecordBatch.from_pylist([dict(row) for row in rows], schema=schema)
        is_for_all = self._edges[port].kind is EdgeKind.BROADCAST
        owners = [] if is_for_all else self._owners(batch, port)
        for subtask, operator in enumerate(self._operators):
            own = pa.array([owner == subtask for owner in owners], pa.bool_())
            part = batch if is_for_all else batch.filter(own)
            if part.num_rows:
                operator.on_batch(port, part)
                self._contexts[subtask].state.settle()

    def watermark(self, at: datetime | int) -> None:
        """Advances event time to `at`, a time or milliseconds since 1970; windows and timers fire.

        Event time never goes back.
        """
        self._watermark_ms = int(at.timestamp() * 1_000) if isinstance(at, datetime) else at
        for operator, context in zip(self._operators, self._contexts, strict=True):
            operator.on_watermark(self._watermark_ms)
            context.state.settle()

    def pass_time(self, by: timedelta) -> None:
        """Advances processing time; its timers fire."""
        self._now_ms += by // ONE_MS
        for operator, context in zip(self._operators, self._contexts, strict=True):
            if operator.awaits_processing_time:
                operator.on_processing_time(self._now_ms)
                context.state.settle()

    def await_results(self, within: timedelta = timedelta(seconds=10)) -> None:
        """Waits until every request under way has its result, or has failed.

        Raises the error of a request, and TimeoutError if results are missing after `within`.
        """
        self._await(lambda: not any(each.awaits_results for each in self._asynchronous), within)

    def await_output(self, within: timedelta = timedelta(seconds=10)) -> None:
        """Waits until a request has given at least one row. Raises the same as `await_results`."""
        self._await(lambda: bool(self._rows), within)

    def close(self) -> None:
        """Closes the operators; an asynchronous one gives up its requests."""
        for operator in self._operators:
            operator.close()

    # The output.

    @property
    def watermark_ms(self) -> int:
        """Returns the watermark behind the operator: an asynchronous operator holds it back."""
        return min(self._marked_ms) if self._asynchronous else self._watermark_ms

    def _on_mark(self, subtask: int, mark: Watermark | WatermarkStatus) -> None:
        if isinstance(mark, Watermark):
            self._marked_ms[subtask] = mark.timestamp_ms

    def _await(self, is_there: Callable[[], bool], within: timedelta) -> None:
        ends = time.monotonic() + within.total_seconds()
        while True:
            for operator in self._asynchronous:
                operator.on_results()
            if is_there():
                return
            if time.monotonic() > ends:
                raise TimeoutError(f"{self._node!r} has requests without a result after {within}.")
            self._woken.wait(WAIT_S)
            self._woken.clear()

    @property
    def _asynchronous(self) -> list[AsyncOperator]:
        return [each for each in self._operators if isinstance(each, AsyncOperator)]

    def output(self) -> list[Row]:
        """Returns the rows since the last call."""
        rows, self._rows = self._rows, []
        return rows

    def side_output(self, name: str) -> list[Row]:
        """Returns the rows of a side output, such as `late`, since the last call."""
        return self._sides.pop(name, [])

    def state(self, name: str) -> list[Row]:
        """Returns the rows of one state, or of timers, from all subtasks.

        A broadcast state comes once from each subtask. Raises Rejected if there is no such state.
        """
        states = self._rows_by_state()
        if name not in states:
            known = ", ".join(map(repr, states)) or "none"
            raise Rejected(f"{self._node!r} keeps no state {name!r}; there are: {known}.")
        return [row for batch in states[name] for row in batch.to_pylist()]

    @property
    def state_names(self) -> list[str]:
        """Returns the names of the states and timers that hold anything."""
        return list(self._rows_by_state())

    def metric(self, name: str) -> list[MetricSample]:
        """Returns a metric of the function from each subtask. Raises Rejected if none has it."""
        samples = [each for one in self._contexts for each in one.metrics.samples(self._node)]
        found = [each for each in samples if each.name == name]
        if not found:
            known = ", ".join(sorted({repr(each.name) for each in samples})) or "none"
            raise Rejected(f"{self._node!r} keeps no metric {name!r}; there are: {known}.")
        return found

    def snapshot(self) -> OperatorSnapshot:
        """Returns the state of all subtasks, as a checkpoint takes it.

        It calls the function's `snapshot_state` first. The operator continues afterwards.
        """
        self._cuts += 1
        for operator in self._operators:
            operator.on_cut(CheckpointId(self._cuts))
        return OperatorSnapshot(
            tuple(self._keyed_states().items()),
            tuple((*state, tuple(parts)) for state, parts in self._operator_states().items()),
            self.watermark_ms,
            self._now_ms,
        )

    def _rows_by_state(self) -> dict[str, Batches]:
        found = self._keyed_states()
        for (name, _), parts in self._operator_states().items():
            found[name] = tuple(batch for part in parts for batch in part)
        return found

    def _keyed_states(self) -> dict[str, Batches]:
        found: dict[str, Batches] = {}
        for context in self._contexts:
            for state in context.state.cut():
                found[state.name] = (*found.get(state.name, ()), *state.batches)
        return found

    def _operator_states(self) -> dict[tuple[str, Redistribution], list[Batches]]:
        found: dict[tuple[str, Redistribution], list[Batches]] = {}
        for context in self._contexts:
            for state in context.operator_state.cut():
                found.setdefault((state.name, Redistribution(state.kind)), []).append(
                    tuple(state.batches)
                )
        return found

    def _owners(self, batch: pa.RecordBatch, port: int) -> list[int]:
        count, edge = len(self._operators), self._edges[port]
        keys = edge.hash_by or edge.keeps_order_of
        if not keys:
            return [row % count for row in range(batch.num_rows)]
        groups = key_groups(key_hashes(batch, keys), self._maximum)
        return [owner_of(int(group), count, self._maximum) for group in groups]

    def _open(self, subtask: int, parallelism: int, restore: OperatorSnapshot | None) -> None:
        """Opens the operator as a chain does: states are restored before `on_restored`."""
        operator = self._create()
        operator.output_schema(self._inputs)
        own = range_of(subtask, parallelism, self._maximum)
        context = OperatorContext(
            uid=self._node,
            subtask=subtask,
            parallelism=parallelism,
            max_parallelism=self._maximum,
            state=HashMapBackend(own, self._maximum),
            collect=lambda batch: self._rows.extend(batch.to_pylist()),
            collect_side=lambda name, batch: self._sides.setdefault(name, []).extend(
                batch.to_pylist()
            ),
            now_ms=lambda: self._now_ms,
            restored_watermark_ms=self._watermark_ms,
            mark=lambda mark: self._on_mark(subtask, mark),
            wake=self._woken.set,
        )
        operator.open(context, self._inputs)
        if restore is not None:
            for name, batches in restore.states:
                context.state.restore(name, list(batches))
            for name, kind, parts in restore.operator_states:
                held = [sum(batch.num_rows for batch in part) for part in parts]
                for taken in taken_by(subtask, parallelism, kind, held):
                    own_part = elements_taken(parts[taken.old_subtask], taken)
                    context.operator_state.restore(name, own_part)
        operator.on_restored()
        self._contexts.append(context)
        self._operators.append(operator)
