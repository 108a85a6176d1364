"""Hosts one operator as a subtask would: it collects output and can be killed and restored."""

from collections.abc import Callable

import pyarrow as pa

from pipelines.domain.event_time import MIN_WATERMARK_MS
from pipelines.domain.ids import Uid
from pipelines.domain.key_groups import KeyGroupRange
from pipelines.operators.operator import Operator, OperatorContext
from pipelines.state.in_memory.hashmap import HashMapBackend

MAX_PARALLELISM = 128
Row = dict[str, object]


class Host:
    """`emitted` holds the rows of each collected batch; batches must have the declared schema."""

    def __init__(
        self,
        create: Callable[[], Operator],
        inputs: list[pa.Schema],
        watermark_ms: int = MIN_WATERMARK_MS,
    ) -> None:
        self._create = create
        self._inputs = inputs
        self.operator = create()
        self.output_schema = self.operator.output_schema(inputs)
        self.emitted: list[list[Row]] = []
        self.state = HashMapBackend(KeyGroupRange(0, MAX_PARALLELISM - 1), MAX_PARALLELISM)
        self.context = OperatorContext(
            uid=Uid("under-test"),
            subtask=0,
            parallelism=1,
            state=self.state,
            collect=self._collect,
            collect_side=self._collect_side,
            now_ms=lambda: self.now_ms,
            restored_watermark_ms=watermark_ms,
        )
        self.now_ms = 0
        self._sides: dict[str, list[Row]] = {}
        self._watermark_ms = watermark_ms
        self.operator.open(self.context, inputs)

    @property
    def rows(self) -> list[Row]:
        return [row for batch in self.emitted for row in batch]

    @property
    def counters(self) -> dict[str, int]:
        return self.context.counters

    def side_rows(self, name: str) -> list[Row]:
        return self._sides.get(name, [])

    def send(self, rows: list[Row], port: int = 0) -> None:
        self.operator.on_batch(port, pa.RecordBatch.from_pylist(rows, schema=self._inputs[port]))

    def advance(self, watermark_ms: int) -> None:
        self._watermark_ms = watermark_ms
        self.operator.on_watermark(watermark_ms)

    def pass_time(self, now_ms: int) -> None:
        """Sets processing time to `now_ms` and fires the due timers, as the runtime does."""
        self.now_ms = now_ms
        if self.operator.awaits_processing_time:
            self.operator.on_processing_time(now_ms)

    def recovered(self) -> "Host":
        """Returns a host of a new operator, restored from a cut made now. Both share the output."""
        frozen = [(state.name, list(state.batches)) for state in self.state.cut()]
        of_operator = [(s.name, list(s.batches)) for s in self.context.operator_state.cut()]
        successor = Host(self._create, self._inputs, self._watermark_ms)
        for name, batches in frozen:
            successor.state.restore(name, batches)
        for name, batches in of_operator:
            successor.context.operator_state.restore(name, batches)
        successor.emitted = self.emitted
        successor._sides = self._sides
        successor.now_ms = self.now_ms
        successor.context.counters = self.context.counters
        return successor

    def _collect(self, batch: pa.RecordBatch) -> None:
        batch.validate(full=True)
        assert batch.schema.equals(self.output_schema), "output has the schema it declared"
        self.emitted.append(batch.to_pylist())

    def _collect_side(self, name: str, batch: pa.RecordBatch) -> None:
        declared = self.operator.side_outputs(self._inputs).get(name)
        if declared is None:
            return  # not declared, so nothing reads it
        assert batch.schema.equals(declared.schema), "a side output has the schema it declared"
        self._sides.setdefault(name, []).extend(batch.to_pylist())
