"""If an author's function raises, the message names operator, subtask, split and offsets.

It names one record where a function of rows gets the source's own rows, and otherwise the batch in
work. It names a timer by its key and time, and other work that time triggers (a window) by that
time, because the records that moved event time on are not at fault. Without a batch in work, it
names no record. A key is a column, so there is no function of keys. Joins and aggregates of columns
have no function either.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pipelines.domain.elements import Barrier
from pipelines.domain.errors import Rejected
from pipelines.domain.ids import Attempt, CheckpointId, RunId, Uid
from pipelines.domain.key_groups import KeyGroupRange
from pipelines.domain.origins import RecordOrigin
from pipelines.operators.rows import Row
from pipelines.runtime.control import Failed
from pipelines.runtime.master.attempt.failures import failure_of
from pipelines.runtime.subtask.chains.chain import ChainPlace, OperatorChain
from pipelines.runtime.subtask.operator_failure import OperatorFailed, described, is_fatal
from pipelines.runtime.subtask.snapshots.restoring import NOTHING
from pipelines.state.in_memory.hashmap import HashMapBackend
from pipelines.stream import (
    AggregateFunction,
    AggregatingStateDescriptor,
    BatchProcessFunction,
    Environment,
    FiredTimers,
    KeyedProcessFunction,
    ProcessContext,
    ReducingStateDescriptor,
    RowContext,
    RuntimeContext,
    Stream,
    WatermarkStrategy,
    generated_by,
    session,
    tumbling,
)
from tests.unit.runtime.fakes import SCHEMA, ListSource, batch_of, keys_of
from tests.unit.runtime.hosted import MAX_PARALLELISM, MemorySink, ReadingSubtask
from tests.unit.runtime.permits import permit

FIRST = 100
BATCH = [(5, 1), (6, 2), (13, 3), (7, 4)]
ORIGIN = RecordOrigin(
    source=Uid("in"), subtask=1, split="split-0", first_offset=FIRST, last_offset=FIRST + 3
)
A_ROW = " at in[1], split split-0, offset 102: ValueError: 13 is bad"
THE_BATCH = " at in[1], split split-0, offsets 100 to 103: ValueError: 13 is bad"
ITSELF = ": ValueError: 13 is bad"
NO_RECORD = ITSELF
AS_TIME_CAME = " when event time reached 1970-01-01T00:00:01.000Z"
BARRIER = Barrier(checkpoint_id=CheckpointId(1), trigger_ms=0)


def fail_on_13(batch: pa.RecordBatch) -> None:
    if 13 in keys_of(batch):
        raise ValueError("13 is bad")


def checked(value: Any, key: int) -> Any:
    if key == 13:
        raise ValueError("13 is bad")
    return value


def passed(batch: pa.RecordBatch) -> pa.RecordBatch:
    fail_on_13(batch)
    return batch


class InElement(KeyedProcessFunction):
    def process_element(self, row: Row, context: RowContext) -> None:
        checked(None, row["key"])


class InTimer(KeyedProcessFunction):
    def __init__(self, domain: str) -> None:
        self._domain = domain

    def process_element(self, row: Row, context: RowContext) -> None:
        getattr(context.timer_service(), f"register_{self._domain}_time_timer")(5)

    def on_timer(self, timestamp_ms: int, context: RowContext) -> None:
        checked(None, context.get_current_key())


class InReduce(KeyedProcessFunction):
    def open(self, runtime: RuntimeContext) -> None:
        reduce = lambda left, right: checked(left + right, right)  # noqa: E731
        self._sum = runtime.get_reducing_state(ReducingStateDescriptor("sum", reduce, pa.int64()))

    def process_element(self, row: Row, context: RowContext) -> None:
        self._sum.add(1)
        self._sum.add(row["key"])


class Adding(AggregateFunction):
    def create_accumulator(self) -> int:
        return 0

    def add(self, accumulator: int, value: int) -> int:
        return checked(accumulator + value, value)  # type: ignore[no-any-return]

    def get_result(self, accumulator: int) -> int:
        return accumulator


class InAggregate(KeyedProcessFunction):
    def open(self, runtime: RuntimeContext) -> None:
        descriptor = AggregatingStateDescriptor("sum", Adding(), pa.int64())
        self._sum = runtime.get_aggregating_state(descriptor)

    def process_element(self, row: Row, context: RowContext) -> None:
        self._sum.add(row["key"])


class InBatch(BatchProcessFunction):
    def process_batch(self, batch: pa.RecordBatch, context: ProcessContext) -> None:
        fail_on_13(batch)


class InTimers(BatchProcessFunction):
    def process_batch(self, batch: pa.RecordBatch, context: ProcessContext) -> None:
        context.event_timers.register(context.keys(batch), batch["at"].cast(pa.int64()).to_numpy())

    def on_timers(self, timers: FiredTimers, context: ProcessContext) -> None:
        checked(None, 13)


class InOpen(BatchProcessFunction):
    def open(self, context: ProcessContext) -> None:
        checked(None, 13)


class OtherBatch(InBatch):
    def process_other_batch(self, batch: pa.RecordBatch, context: ProcessContext) -> None:
        fail_on_13(batch)


@dataclass(slots=True)
class FailingSink(MemorySink):
    fails_in: str = ""

    def write(self, batch: pa.RecordBatch) -> None:
        if self.fails_in == "write":
            fail_on_13(batch)

    def prepare(self, checkpoint_id: CheckpointId) -> list[Any]:
        return [checked("file", 13 if self.fails_in == "prepare" else 0)]

    def commit(self, checkpoint_id: CheckpointId, committables: list[Any]) -> None:
        checked(None, 13)


def all_of(batch: pa.RecordBatch) -> pa.BooleanArray:
    return pa.array([True] * passed(batch).num_rows, pa.bool_())


def flat(row: Row) -> Iterator[Row]:
    yield checked(row, row["key"])


Build = Callable[[Stream], Any]
CASES: dict[str, tuple[Build, str]] = {
    "map": (lambda s: s.map(lambda r: checked(r, r["key"]), SCHEMA, uid="f"), A_ROW),
    "flat map": (lambda s: s.flat_map(flat, SCHEMA, uid="f"), A_ROW),
    "row filter": (lambda s: s.filter_rows(lambda r: checked(True, r["key"]), uid="f"), A_ROW),
    "filter": (lambda s: s.filter(all_of, uid="f"), A_ROW),
    "batch function": (lambda s: s.map_batches(passed, SCHEMA, uid="f"), A_ROW),
    "process without a key": (lambda s: s.process(InBatch(), SCHEMA, uid="f"), THE_BATCH),
    "process": (lambda s: s.key_by("key").process(InElement(), SCHEMA, uid="f"), A_ROW),
    "batch process": (lambda s: s.key_by("key").process(InBatch(), SCHEMA, uid="f"), THE_BATCH),
    "reduce": (lambda s: s.key_by("key").process(InReduce(), SCHEMA, uid="f"), A_ROW),
    "aggregate": (lambda s: s.key_by("key").process(InAggregate(), SCHEMA, uid="f"), A_ROW),
    "event timer": (
        lambda s: s.key_by("key").process(InTimer("event"), SCHEMA, uid="f"),
        " in a timer of key 13 at time 1970-01-01T00:00:00.005Z" + ITSELF,
    ),
    "event timers": (
        lambda s: s.key_by("key").process(InTimers(), SCHEMA, uid="f"),
        " in one of 4 timers at time 1970-01-01T00:00:00.001Z to 1970-01-01T00:00:00.004Z" + ITSELF,
    ),
    "processing timer": (
        lambda s: s.key_by("key").process(InTimer("processing"), SCHEMA, uid="f"),
        " in a timer of key 13 at processing time 1970-01-01T00:00:00.005Z" + ITSELF,
    ),
    "window function": (
        lambda s: (
            s.key_by("key")
            .window(tumbling(milliseconds=5))
            .apply(lambda window, rows: passed(rows), SCHEMA, uid="f")
        ),
        AS_TIME_CAME + ITSELF,
    ),
    "session function": (
        lambda s: (
            s.key_by("key")
            .window(session(milliseconds=5))
            .apply(lambda window, rows: passed(rows), SCHEMA, uid="f")
        ),
        AS_TIME_CAME + ITSELF,
    ),
    "connected batch function": (
        lambda s: s.rebalance().connect(s).map_batches(passed, passed, SCHEMA, uid="f"),
        THE_BATCH,
    ),
    "connected process": (
        lambda s: s.key_by("key").connect(s.broadcast()).process(OtherBatch(), SCHEMA, uid="f"),
        THE_BATCH,
    ),
    "opening": (lambda s: s.process(InOpen(), SCHEMA, uid="f"), NO_RECORD),
    "sink, writing": (lambda s: s.sink(FailingSink(fails_in="write"), uid="f"), THE_BATCH),
    "sink, preparing": (lambda s: s.sink(FailingSink(fails_in="prepare"), uid="f"), NO_RECORD),
    "sink, committing": (lambda s: s.sink(FailingSink(fails_in="commit"), uid="f"), NO_RECORD),
}

AT_ANOTHER_TIME = ("sink, writing",)  # the bad record may have been buffered before


@pytest.mark.parametrize("kind", CASES)
def test_a_failure_of_every_kind_of_function_names_its_place(kind: str) -> None:
    build, place = CASES[kind]
    env = Environment()
    built = build(env.source(ListSource([]), uid="in"))
    if built.node == "f":
        built.sink(MemorySink(), uid="out")

    with pytest.raises(OperatorFailed) as failed:
        use(env)

    assert sentence(failed.value, "in") == f"f[1] failed{place}"
    is_given_records = place in (A_ROW, THE_BATCH) and kind not in AT_ANOTHER_TIME
    assert described(failed.value).is_of_record is is_given_records


def test_a_failure_on_fired_windows_does_not_blame_the_triggering_records() -> None:
    env = Environment()
    windows = env.source(ListSource([]), uid="in").key_by("key").window(tumbling(milliseconds=5))
    fired = windows.apply(lambda window, rows: rows, SCHEMA, uid="windows")
    fired.map_batches(passed, SCHEMA, uid="f").sink(MemorySink(), uid="out")

    with pytest.raises(OperatorFailed) as failed:
        use(env)

    assert failed.value.origin == ORIGIN.as_moment()
    assert not described(failed.value).is_of_record
    assert sentence(failed.value, "in") == (
        "f[1] failed at the time of in[1], split split-0, offsets 100 to 103: ValueError: 13 is bad"
    )


def test_a_failing_timer_does_not_name_the_batch_that_advanced_event_time() -> None:
    env = Environment()
    stream = env.source(ListSource([]), uid="in").key_by("key")
    stream.process(InTimer("event"), SCHEMA, uid="f").sink(MemorySink(), uid="out")

    with pytest.raises(OperatorFailed) as failed:
        use(env)

    assert failed.value.origin is None


class Torn(ListSource):
    """A source whose second batch cannot be read."""

    def read(self, index: int, offset: int) -> Iterator[pa.RecordBatch]:
        yield batch_of(self.splits[index][:2])
        raise ValueError("13 is bad")


class Unsure:
    """A generator of watermarks that fails on a record."""

    def on_batch(self, batch: pa.RecordBatch, times_ms: object) -> None:
        fail_on_13(batch)

    def watermark_ms(self) -> int | None:
        return None


@pytest.mark.parametrize(
    ("source", "strategy", "offset"),
    [(Torn([BATCH]), None, 2), (ListSource([BATCH], batch_rows=2), generated_by(Unsure), 2)],
    ids=["source", "watermark generator"],
)
def test_a_failing_source_names_the_record_that_it_was_reading(
    source: ListSource, strategy: WatermarkStrategy | None, offset: int, tmp_path: Path
) -> None:
    host = ReadingSubtask(tmp_path, source, strategy=strategy)

    with pytest.raises(OperatorFailed) as failed:
        read_all(host)

    place = f"left[0] failed at left[0], split split-0, offset {offset}: ValueError: 13 is bad"
    assert sentence(failed.value, "left", 0) == place


def test_a_rejection_is_reported_in_its_own_words() -> None:
    error = OperatorFailed(Uid("f"), (), Rejected("The file x has no column y."))

    assert sentence(error, "in") == "f[1] failed: The file x has no column y."
    assert is_fatal(error)


def read_all(host: ReadingSubtask) -> None:
    for _ in range(3):
        host.subtask.step()


def use(env: Environment) -> None:
    """Makes every call that a subtask makes to its chain, until one fails."""
    pipeline = env.build()
    vertex = next(v for v in pipeline.graph.vertices if "f" in v.nodes)
    place = ChainPlace(RunId("run-1"), Attempt(1), vertex, 1, 2, MAX_PARALLELISM)
    restored = dict.fromkeys(vertex.nodes, NOTHING)
    now_ms = [0]
    chain = OperatorChain(
        pipeline=pipeline,
        place=place,
        backends=whole_backend,
        exchanges={},
        restored=restored,
        now_ms=lambda: now_ms[0],
    )
    if vertex.uid == "in":
        chain.emit_from_source(batch_of(BATCH), (ORIGIN,))
    else:
        batch = batch_of(BATCH)
        chain.on_batch(len(vertex.inputs) - 1, batch, [((ORIGIN,), batch.num_rows)])
    chain.on_watermark(1_000)
    now_ms[0] = 1_000
    chain.on_processing_time()
    chain.cut(BARRIER)
    chain.commit(permit(BARRIER.checkpoint_id))


def whole_backend(groups: object, max_parallelism: int) -> HashMapBackend:
    """Returns a backend for the keys of all subtasks."""
    return HashMapBackend(KeyGroupRange(0, max_parallelism - 1), max_parallelism)


def sentence(error: OperatorFailed, vertex: str, subtask: int = 1) -> str:
    """Returns the message that people read, built as a slot and the driver build it."""
    message = Failed(
        vertex=Uid(vertex),
        subtask=subtask,
        cause=str(error),
        detail="",
        is_fatal=is_fatal(error),
        error=described(error),
    )
    return failure_of(message, slot=1).cause
