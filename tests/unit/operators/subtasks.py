"""Hosts all subtasks of one operator; any cut can be restored at any parallelism.

Each row goes to the subtask that owns its key and each watermark to all, as after a hash exchange.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import pyarrow as pa

from pipelines.domain.event_time import MIN_WATERMARK_MS
from pipelines.domain.ids import Uid
from pipelines.domain.key_groups import owner_of, range_of
from pipelines.operators.operator import Operator, OperatorContext
from pipelines.runtime.subtask.snapshots.in_flight import KeyTime, by_key_group, key_times
from pipelines.state.backend import BackendFactory
from pipelines.state.hashing import key_groups, key_hashes
from pipelines.state.in_memory.hashmap import HashMapBackend
from tests.unit.operators.harness import MAX_PARALLELISM, Row


@dataclass(slots=True)
class Emitted:
    """Everything that the subtasks have emitted since the last `take`."""

    rows: list[Row] = field(default_factory=list)
    sides: dict[str, list[Row]] = field(default_factory=dict)

    def take(self) -> list[Row]:
        """Returns the rows, and clears them and the side outputs."""
        rows, self.rows, self.sides = self.rows, [], {}
        return rows


class Subtasks:
    """`keys` are the key columns of each port."""

    def __init__(
        self,
        create: Callable[[], Operator],
        inputs: list[pa.Schema],
        keys: list[tuple[str, ...]],
        parallelism: int = 1,
        watermark_ms: int = MIN_WATERMARK_MS,
        now_ms: Callable[[], int] = lambda: 0,
        backends: BackendFactory = HashMapBackend,
    ) -> None:
        self._backends = backends
        self._now_ms = now_ms
        self._create = create
        self._inputs = inputs
        self._keys = keys
        self.emitted = Emitted()
        self.contexts: list[OperatorContext] = []
        self._operators: list[Operator] = []
        self._start(parallelism, watermark_ms, None, [], {})

    @property
    def counters(self) -> dict[str, int]:
        return total(context.counters for context in self.contexts)

    @property
    def state_rows(self) -> int:
        return sum(context.state.statistics().rows for context in self.contexts)

    def send(self, rows: list[Row], port: int = 0) -> None:
        batch = pa.RecordBatch.from_pylist(rows, schema=self._inputs[port])
        groups = key_groups(key_hashes(batch, self._keys[port]), MAX_PARALLELISM)
        owners = [owner_of(int(g), len(self._operators), MAX_PARALLELISM) for g in groups]
        for subtask, operator in enumerate(self._operators):
            part = batch.filter(pa.array([owner == subtask for owner in owners], pa.bool_()))
            if part.num_rows:
                operator.on_batch(port, part)
                self.contexts[subtask].state.settle()

    def advance(self, watermark_ms: int) -> None:
        for subtask in range(len(self._operators)):
            self.advance_one(subtask, watermark_ms)

    def advance_one(self, subtask: int, watermark_ms: int) -> None:
        """Advances one subtask: with unaligned barriers, watermarks may differ at a cut."""
        self.watermarks_ms[subtask] = watermark_ms
        self._operators[subtask].on_watermark(watermark_ms)
        self.contexts[subtask].state.settle()

    def owner_of(self, key_group: int) -> int:
        return owner_of(key_group, len(self._operators), MAX_PARALLELISM)

    def restore(self, parallelism: int) -> None:
        """Cuts the state of all subtasks, discards them, and starts new ones from the cut."""
        times = tuple(
            time
            for subtask, watermark_ms in enumerate(self.watermarks_ms)
            for time in self._key_times(subtask, watermark_ms)
        )
        states = [
            (state.name, list(state.batches))
            for context in self.contexts
            for state in context.state.cut()
        ]
        self._start(parallelism, min(self.watermarks_ms), times, states, self.counters)

    def _key_times(self, subtask: int, watermark_ms: int) -> list[KeyTime]:
        """Returns the key times in the form that a snapshot stores and a restore reads."""
        own = range_of(subtask, len(self._operators), MAX_PARALLELISM)
        restored = self.contexts[subtask].restored_times_ms
        whole = (own.first, own.last, watermark_ms)
        return key_times(restored, own, watermark_ms) or [whole]

    def _start(
        self,
        parallelism: int,
        watermark_ms: int,
        times: tuple[KeyTime, ...] | None,
        states: list[tuple[str, list[pa.RecordBatch]]],
        counters: dict[str, int],
    ) -> None:
        self.watermarks_ms = [watermark_ms] * parallelism
        self.contexts, self._operators = [], []
        for subtask in range(parallelism):
            operator = self._create()
            schema = operator.output_schema(self._inputs)
            state = self._backends(range_of(subtask, parallelism, MAX_PARALLELISM), MAX_PARALLELISM)
            context = OperatorContext(
                uid=Uid("under-test"),
                subtask=subtask,
                parallelism=parallelism,
                state=state,
                collect=lambda batch, schema=schema: self._collect(batch, schema),
                collect_side=self._collect_side,
                counters=dict(counters) if subtask == 0 else {},
                now_ms=self._now_ms,
                restored_watermark_ms=watermark_ms,
                restored_times_ms=by_key_group(times or (), MAX_PARALLELISM),
            )
            operator.open(context, self._inputs)
            for name, batches in states:
                state.restore(name, batches)
            self.contexts.append(context)
            self._operators.append(operator)

    def _collect(self, batch: pa.RecordBatch, schema: pa.Schema) -> None:
        batch.validate(full=True)
        assert batch.schema.equals(schema), "output has the schema it declared"
        self.emitted.rows += batch.to_pylist()

    def _collect_side(self, name: str, batch: pa.RecordBatch) -> None:
        assert batch.schema in self._inputs
        self.emitted.sides.setdefault(name, []).extend(batch.to_pylist())


def total(each: Iterable[dict[str, int]]) -> dict[str, int]:
    totals: dict[str, int] = {}
    for counters in each:
        for name, count in counters.items():
            totals[name] = totals.get(name, 0) + count
    return totals
