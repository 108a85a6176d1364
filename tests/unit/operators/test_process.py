"""Process functions of rows and of batches: states and timers are the same after any recovery."""

import random
from collections.abc import Iterator
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from pipelines.domain.errors import Rejected
from pipelines.domain.event_time import MAX_WATERMARK_MS
from pipelines.operators.operator import SideOutput
from pipelines.operators.processing import process as process_module
from pipelines.operators.processing.process import (
    BatchProcessFunction,
    KeyedProcessFunction,
    Process,
)
from pipelines.operators.processing.row_context import ProcessContext, RowContext, RuntimeContext
from pipelines.operators.rows import Row
from pipelines.state.descriptors import (
    AggregateFunction,
    AggregatingStateDescriptor,
    BatchAggregateFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from pipelines.state.entries import StateTtlConfig, TtlUpdate
from pipelines.state.timers import FiredTimers, TimeDomain
from tests.unit.operators.harness import Host
from tests.unit.operators.subtasks import Subtasks

EVENTS = pa.schema([("user", pa.string()), ("at_ms", pa.int64()), ("amount", pa.int64())])
SESSIONS = pa.schema([("user", pa.string()), ("until_ms", pa.int64()), ("total", pa.int64())])
MEAN = pa.struct([("n", pa.int64()), ("s", pa.int64())])
GAP_MS = 10


class RowSessions(KeyedProcessFunction):
    """Sums amounts until there is a pause of GAP_MS, by moving one timer per key."""

    def open(self, runtime: RuntimeContext) -> None:
        self._total = runtime.get_state(ValueStateDescriptor("total", pa.int64()))
        self._until = runtime.get_state(ValueStateDescriptor("until", pa.int64()))

    def process_element(self, row: Row, context: RowContext) -> None:
        until_ms = self._until.value()
        moved_ms = max(until_ms or 0, row["at_ms"] + GAP_MS)
        if until_ms is not None:
            context.timer_service().delete_event_time_timer(until_ms)
        context.timer_service().register_event_time_timer(moved_ms)
        self._until.update(moved_ms)
        self._total.update((self._total.value() or 0) + row["amount"])

    def on_timer(self, timestamp_ms: int, context: RowContext) -> Iterator[Row]:
        yield {
            "user": context.get_current_key(),
            "until_ms": timestamp_ms,
            "total": self._total.value(),
        }
        self._total.clear()
        self._until.clear()


class BatchSessions(BatchProcessFunction):
    """The same, on whole batches."""

    def open(self, context: ProcessContext) -> None:
        self._total = context.get_reducing_state(
            ReducingStateDescriptor("total", pc.add, pa.int64())
        )
        self._until = context.get_reducing_state(
            ReducingStateDescriptor("until", pc.max_element_wise, pa.int64())
        )

    def process_batch(self, batch: pa.RecordBatch, context: ProcessContext) -> None:
        keys = context.keys(batch)
        distinct = context.group(batch).keys
        before = self._until.get(distinct)
        self._total.add(keys, batch["amount"])
        self._until.add(keys, pc.add(batch["at_ms"], GAP_MS))
        known = before.is_valid()
        context.event_timers.delete(distinct.filter(known), before.drop_null().to_numpy())
        context.event_timers.register(distinct, self._until.get(distinct).to_numpy())

    def on_timers(self, timers: FiredTimers, context: ProcessContext) -> None:
        totals = self._total.get(timers.keys)
        columns = [*timers.keys.columns, pa.array(timers.timestamps_ms), totals]
        context.collect(pa.RecordBatch.from_arrays(columns, schema=SESSIONS))
        self._total.clear(timers.keys)
        self._until.clear(timers.keys)


@pytest.mark.parametrize("function", [RowSessions(), BatchSessions()], ids=["rows", "batches"])
@pytest.mark.parametrize("seed", range(10))
def test_row_and_batch_functions_give_the_results_of_row_by_row_processing(
    function: KeyedProcessFunction | BatchProcessFunction, seed: int
) -> None:
    rng = random.Random(seed)
    host = host_of(function, SESSIONS)
    oracle = Sessions()
    expected: list[Row] = []

    for start_ms in range(0, 300, 15):
        rows: list[Row] = [
            {
                "user": rng.choice(["ann", "bob", None]),
                "at_ms": start_ms + rng.randrange(15),
                "amount": rng.randrange(100),
            }
            for _ in range(rng.randint(0, 5))
        ]
        if rows:
            host.send(rows)
            oracle.add(rows)
        if rng.random() < 0.6:
            host.advance(start_ms)
            expected += oracle.due(start_ms)
        if rng.random() < 0.3:
            host = host.recovered()
    host.advance(MAX_WATERMARK_MS)
    expected += oracle.due(MAX_WATERMARK_MS)

    by = [("until_ms", "ascending"), ("user", "ascending")]
    assert table_of(host.rows).sort_by(by).to_pylist() == table_of(expected).sort_by(by).to_pylist()
    assert host.state.statistics().rows == 0


@pytest.mark.parametrize("function", [RowSessions(), BatchSessions()], ids=["rows", "batches"])
@pytest.mark.parametrize("seed", range(5))
def test_states_and_timers_follow_their_keys_to_any_parallelism(
    function: KeyedProcessFunction | BatchProcessFunction, seed: int
) -> None:
    rng = random.Random(seed)
    subtasks = Subtasks(lambda: process(function, SESSIONS), [EVENTS], [("user",)], 2)
    oracle = Sessions()
    expected: list[Row] = []

    for start_ms in range(0, 200, 20):
        rows = [event(f"user {rng.randrange(9)}", start_ms + n, amount=n) for n in range(8)]
        subtasks.send(rows)
        oracle.add(rows)
        subtasks.advance(start_ms)
        expected += oracle.due(start_ms)
        if rng.random() < 0.5:
            subtasks.restore(rng.randint(1, 5))
    subtasks.advance(MAX_WATERMARK_MS)
    expected += oracle.due(MAX_WATERMARK_MS)

    by = [("until_ms", "ascending"), ("user", "ascending")]
    emitted = table_of(subtasks.emitted.rows).sort_by(by).to_pylist()
    assert emitted == table_of(expected).sort_by(by).to_pylist()
    assert subtasks.state_rows == 0


class Tally(KeyedProcessFunction):
    """Has one state of each kind, and emits all of them after every row."""

    def open(self, runtime: RuntimeContext) -> None:
        self._list = runtime.get_list_state(ListStateDescriptor("list", pa.int64()))
        self._map = runtime.get_map_state(MapStateDescriptor("map", pa.int64(), pa.string()))
        self._largest = runtime.get_reducing_state(
            ReducingStateDescriptor("largest", max, pa.int64())
        )
        self._mean = runtime.get_aggregating_state(
            AggregatingStateDescriptor(
                "mean", Mean(), pa.struct([("n", pa.int64()), ("s", pa.int64())])
            )
        )

    def process_element(self, row: Row, context: RowContext) -> list[Row]:
        amount = row["amount"]
        if amount == 0:
            for state in (self._list, self._map, self._largest, self._mean):
                state.clear()
        elif amount % 7 == 0:
            self._list.update([amount, amount])
            self._map.remove(amount % 5)
        else:
            self._list.add(amount)
            self._map.put(amount % 5, str(amount))
            self._largest.add(amount)
            self._mean.add(amount)
        seen = (self._list.get(), sorted(self._map.items()), self._largest.get(), self._mean.get())
        there = (self._map.get(1), self._map.contains(2), self._map.is_empty())
        return [{"user": row["user"], "seen": repr((*seen, *there))}]


class Mean(AggregateFunction):
    def create_accumulator(self) -> Row:
        return {"n": 0, "s": 0}

    def add(self, accumulator: Row, value: int) -> Row:
        return {"n": accumulator["n"] + 1, "s": accumulator["s"] + value}

    def get_result(self, accumulator: Row) -> float:
        return float(accumulator["s"]) / float(accumulator["n"])


@pytest.mark.parametrize("seed", range(10))
def test_a_row_sees_the_state_changes_of_all_rows_before_it(seed: int) -> None:
    rng = random.Random(seed)
    host = host_of(Tally(), pa.schema([("user", pa.string()), ("seen", pa.string())]))
    rows: list[Row] = [
        {"user": rng.choice("ab"), "at_ms": 0, "amount": rng.choice([0, *range(1, 15)])}
        for _ in range(60)
    ]

    for first in range(0, 60, 6):
        host.send(rows[first : first + 6])
        if rng.random() < 0.3:
            host = host.recovered()

    assert [row["seen"] for row in host.rows] == list(tallies(rows))


def test_timers_fire_in_order_and_see_the_time_they_were_registered_for() -> None:
    class Echo(KeyedProcessFunction):
        def process_element(self, row: Row, context: RowContext) -> None:
            for _ in range(2):  # the second is the same timer
                context.timer_service().register_event_time_timer(row["at_ms"])

        def on_timer(self, timestamp_ms: int, context: RowContext) -> Iterator[Row]:
            assert context.time_domain is TimeDomain.EVENT_TIME
            assert context.timer_service().current_watermark() == 25
            yield {"user": context.get_current_key(), "until_ms": timestamp_ms, "total": 0}

    host = host_of(Echo(), SESSIONS)
    host.send([event("b", 20), event("a", 30), event("a", 10), event("a", 20), event(None, 10)])

    host.advance(25)

    fired = [(row["user"], row["until_ms"]) for row in host.rows]
    assert fired == [("a", 10), (None, 10), ("a", 20), ("b", 20)]


def test_a_timer_may_register_another_and_all_due_timers_fire() -> None:
    class Every10Ms(KeyedProcessFunction):
        def process_element(self, row: Row, context: RowContext) -> None:
            context.timer_service().register_event_time_timer(row["at_ms"])

        def on_timer(self, timestamp_ms: int, context: RowContext) -> Iterator[Row]:
            if context.timer_service().current_watermark() < MAX_WATERMARK_MS:
                context.timer_service().register_event_time_timer(timestamp_ms + 10)
            yield {"user": "", "until_ms": timestamp_ms, "total": 0}

    host = host_of(Every10Ms(), SESSIONS)
    host.send([event("a", 0)])

    host.advance(35)
    host.advance(MAX_WATERMARK_MS)

    assert [row["until_ms"] for row in host.rows] == [0, 10, 20, 30, 40]


def test_timers_that_register_new_ones_forever_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Forever(KeyedProcessFunction):
        def process_element(self, row: Row, context: RowContext) -> None:
            context.timer_service().register_event_time_timer(0)

        def on_timer(self, timestamp_ms: int, context: RowContext) -> None:
            context.timer_service().register_event_time_timer(timestamp_ms + 1)

    monkeypatch.setattr(process_module, "MAX_ROUNDS", 10)
    host = host_of(Forever(), SESSIONS)
    host.send([event("a", 0)])

    with pytest.raises(Rejected, match="'under-test' register ever new ones"):
        host.advance(MAX_WATERMARK_MS)


@pytest.mark.parametrize("domain", list(TimeDomain))
def test_a_deleted_timer_does_not_fire_unless_it_is_registered_again(
    domain: TimeDomain,
) -> None:
    class Undecided(KeyedProcessFunction):
        """Deletes a timer that the same call has set, or one that an earlier batch has set."""

        def process_element(self, row: Row, context: RowContext) -> None:
            service = context.timer_service()
            if domain is TimeDomain.EVENT_TIME:
                register, delete = (
                    service.register_event_time_timer,
                    service.delete_event_time_timer,
                )
            else:
                register = service.register_processing_time_timer
                delete = service.delete_processing_time_timer
            if row["amount"] >= 0:
                register(row["at_ms"])
            if row["amount"] <= 0:
                delete(row["at_ms"])
            if row["amount"] == -1:
                register(row["at_ms"])

        def on_timer(self, timestamp_ms: int, context: RowContext) -> Iterator[Row]:
            yield {"user": context.get_current_key(), "until_ms": timestamp_ms, "total": 0}

    host = host_of(Undecided(), SESSIONS)
    host.send([event(user, 5, amount=1) for user in ("kept", "deleted later", "again")])
    host.send([event("never", 5, amount=0), event("deleted later", 5, amount=-2)])
    host.send([event("again", 5, amount=-1), event("unknown", 5, amount=-2)])
    host = host.recovered()

    host.advance(5)
    host.pass_time(5)

    assert sorted(str(row["user"]) for row in host.rows) == ["again", "kept"]


def test_processing_time_timers_fire_by_the_clock_until_the_input_has_ended() -> None:
    class Reminder(KeyedProcessFunction):
        def process_element(self, row: Row, context: RowContext) -> None:
            service = context.timer_service()
            moment_ms = service.current_processing_time() + row["amount"]
            service.register_processing_time_timer(moment_ms)

        def on_timer(self, timestamp_ms: int, context: RowContext) -> Iterator[Row]:
            assert context.time_domain is TimeDomain.PROCESSING_TIME
            yield {"user": context.get_current_key(), "until_ms": timestamp_ms, "total": 0}

    host = host_of(Reminder(), SESSIONS)
    host.now_ms = 1000
    assert not host.operator.awaits_processing_time

    host.send([event("a", 0, amount=5), event("b", 0, amount=50)])
    host = host.recovered()
    assert host.operator.awaits_processing_time
    host.pass_time(1004)
    assert host.rows == []
    host.pass_time(1005)
    host.operator.on_end()

    assert [(row["user"], row["until_ms"]) for row in host.rows] == [("a", 1005)]
    assert not host.operator.awaits_processing_time


def test_state_expires_in_row_functions_unless_it_was_read() -> None:
    class Last(KeyedProcessFunction):
        def open(self, runtime: RuntimeContext) -> None:
            ttl = StateTtlConfig(10, TtlUpdate.ON_READ_AND_WRITE)
            self._last = runtime.get_state(ValueStateDescriptor("last", pa.int64(), ttl=ttl))

        def process_element(self, row: Row, context: RowContext) -> Iterator[Row]:
            if row["amount"] == 1:
                self._last.update(7)
            elif row["amount"] == 2:
                yield {"user": row["user"], "until_ms": 0, "total": self._last.value() or 0}

    host = host_of(Last(), SESSIONS)
    host.send([event("read", 0, amount=1), event("unread", 0, amount=1)])
    for amounts in [(2, 0), (2, 0), (2, 2)]:
        host.now_ms += 6
        host.send([event("read", 0, amount=amounts[0]), event("unread", 0, amount=amounts[1])])

    assert [(row["user"], row["total"]) for row in host.rows] == [
        *[("read", 7)] * 3,
        ("unread", 0),
    ]
    host.now_ms += 10
    host.send([event("other", 0, amount=0)])
    assert host.state.statistics().rows == 0


def test_rows_go_to_declared_side_outputs_and_counters() -> None:
    class Sorter(KeyedProcessFunction):
        side_outputs: ClassVar = {"small": SideOutput(SESSIONS, None)}

        def process_element(self, row: Row, context: RowContext) -> list[Row]:
            out = {"user": row["user"], "until_ms": 0, "total": row["amount"]}
            if row["amount"] >= 10:
                return [out]
            context.output("small", out)
            context.count("small_ones")
            return []

    host = host_of(Sorter(), SESSIONS)

    host.send([event("a", 0, amount=5), event("a", 0, amount=50)])

    assert [row["total"] for row in host.rows] == [50]
    assert [row["total"] for row in host.side_rows("small")] == [5]
    assert host.counters == {"small_ones": 1}


@pytest.mark.parametrize(
    ("emitted", "named"),
    [
        ({"user": "a", "until_ms": 0}, r"columns \(user, until_ms\) where it declared \(user, "),
        ({"user": "a", "until_ms": 0, "total": 1.5}, "'total' that 'under-test' emits is int64"),
        ({"user": 3, "until_ms": 0, "total": 1}, "'user' that 'under-test' emits is string"),
        ({"user": "a", "until_ms": 2**63, "total": 1}, "'until_ms' that 'under-test' emits"),
    ],
)
def test_a_row_that_does_not_fit_its_schema_is_refused_by_column(emitted: Row, named: str) -> None:
    class Wrong(KeyedProcessFunction):
        def process_element(self, row: Row, context: RowContext) -> list[Row]:
            return [emitted]

    with pytest.raises(Rejected, match=named):
        host_of(Wrong(), SESSIONS).send([event("a", 0)])


def test_a_value_that_its_state_cannot_hold_is_refused_by_the_state() -> None:
    class Wrong(KeyedProcessFunction):
        def open(self, runtime: RuntimeContext) -> None:
            self._total = runtime.get_state(ValueStateDescriptor("total", pa.int64()))

        def process_element(self, row: Row, context: RowContext) -> None:
            self._total.update("many")

    with pytest.raises(Rejected, match="The state 'total' is int64; a value does not fit"):
        host_of(Wrong(), SESSIONS).send([event("a", 0)])


def test_the_row_that_raised_is_identified() -> None:
    class Picky(KeyedProcessFunction):
        def process_element(self, row: Row, context: RowContext) -> None:
            if row["amount"] == 13:
                raise ValueError("thirteen")

    host = host_of(Picky(), SESSIONS)
    rows = [event("a", 0, amount=12), event("b", 0, amount=13), event("c", 0, amount=14)]

    with pytest.raises(ValueError, match="thirteen"):
        host.send(rows)

    assert host.operator.failing_row(pa.RecordBatch.from_pylist(rows, schema=EVENTS)) == 1


@pytest.mark.parametrize("type_", [pa.float64(), pa.decimal128(3), pa.list_(pa.int8())])
def test_a_key_column_of_an_unusable_type_is_refused_at_build_time(
    type_: pa.DataType,
) -> None:
    with pytest.raises(Rejected, match="the key column 'k' has type"):
        process(RowSessions(), SESSIONS, ("k",)).output_schema([pa.schema([("k", type_)])])


@pytest.mark.parametrize(
    ("type_", "values"),
    [
        (pa.string(), [None, "", "é", "e\u0301", "1", "x" * 100_000]),
        (pa.int64(), [None, 0, 1, -(2**63), 2**63 - 1]),
        (pa.bool_(), [None, True, False]),
        (pa.binary(), [None, b"", b"\x00"]),
    ],
    ids=str,
)
def test_awkward_keys_each_have_their_own_state(type_: pa.DataType, values: list[Any]) -> None:
    class Count(KeyedProcessFunction):
        def open(self, runtime: RuntimeContext) -> None:
            self._count = runtime.get_state(ValueStateDescriptor("count", pa.int64()))

        def process_element(self, row: Row, context: RowContext) -> list[Row]:
            self._count.update((self._count.value() or 0) + 1)
            assert context.get_current_key() == row["k"]
            return [{"n": self._count.value()}]

    host = Host(lambda: process(Count(), pa.schema([("n", pa.int64())]), ("k",)),
                [pa.schema([("k", type_)])])  # fmt: skip

    host.send([{"k": value} for value in values])
    host = host.recovered()
    host.send([{"k": value} for value in values])

    assert [row["n"] for row in host.rows] == [1] * len(values) + [2] * len(values)


@pytest.mark.parametrize(
    ("key", "type_", "sentence"),
    [
        ("\ud800", pa.string(), "surrogates not allowed"),
        (float("nan"), pa.int64(), "nan is not a whole number"),
        (1.5, pa.int64(), "1.5 is not a whole number"),
        ("1", pa.int64(), "'1'"),
        (True, pa.int64(), "bool"),
        (1, pa.bool_(), "1"),
        (1, pa.string(), "'int'"),
        (2**63, pa.int64(), "too large"),
    ],
)
def test_a_key_that_a_map_cannot_hold_is_refused_with_the_reason(
    key: object, type_: pa.DataType, sentence: str
) -> None:
    class Mapped(KeyedProcessFunction):
        def open(self, runtime: RuntimeContext) -> None:
            self._map = runtime.get_map_state(MapStateDescriptor("odd", type_, pa.int64()))

        def process_element(self, row: Row, context: RowContext) -> None:
            self._map.put(key, 1)

    with pytest.raises(Rejected, match=f"'odd' is {type_}; a value does not fit: .*{sentence}"):
        host_of(Mapped(), SESSIONS).send([event("a", 0)])


def test_one_and_one_as_a_double_are_the_same_key_in_an_integer_map() -> None:
    class Counting(KeyedProcessFunction):
        def open(self, runtime: RuntimeContext) -> None:
            self._seen = runtime.get_map_state(MapStateDescriptor("seen", pa.int64(), pa.int64()))

        def process_element(self, row: Row, context: RowContext) -> Iterator[Row]:
            key = (1, 1.0, 1)[row["at_ms"]]
            self._seen.put(key, (self._seen.get(key) or 0) + 1)
            yield {"user": "all", "until_ms": 0, "total": self._seen.get(1)}

    host = host_of(Counting(), SESSIONS)
    host.send([event("a", 0), event("a", 1)])
    host = host.recovered()
    host.send([event("a", 1), event("a", 2)])

    assert [row["total"] for row in host.rows] == [1, 2, 3, 4]


def test_a_batch_aggregate_in_a_row_function_is_refused() -> None:
    class Wrong(KeyedProcessFunction):
        def open(self, runtime: RuntimeContext) -> None:
            runtime.get_aggregating_state(
                AggregatingStateDescriptor("mean", BatchMean(), pa.float64())
            )

    with pytest.raises(Rejected, match="'mean' has a BatchAggregateFunction; a row function needs"):
        host_of(Wrong(), SESSIONS)


def test_each_subtask_has_a_copy_of_the_function() -> None:
    function = RowSessions()

    hosts = [host_of(function, SESSIONS) for _ in range(2)]
    hosts[0].send([event("a", 0)])
    hosts[1].advance(100)
    hosts[0].advance(100)

    assert [len(host.rows) for host in hosts] == [1, 0]


RULES = pa.schema([("name", pa.string()), ("least", pa.int64())])
VERDICTS = pa.schema([("user", pa.string()), ("name", pa.string()), ("seen", pa.int64())])
LIMITED = pa.schema([("user", pa.string()), ("amount", pa.int64()), ("limit", pa.int64())])


class RowRules(KeyedProcessFunction):
    """Emits each rule that an amount breaks, with the number of amounts of the user so far."""

    def open(self, runtime: RuntimeContext) -> None:
        self._rules = runtime.get_broadcast_state(
            MapStateDescriptor("rules", pa.string(), pa.int64())
        )
        self._seen = runtime.get_state(ValueStateDescriptor("seen", pa.int64()))

    def process_element(self, row: Row, context: RowContext) -> Iterator[Row]:
        self._seen.update((self._seen.value() or 0) + 1)
        for name, least in self._rules.items():
            if row["amount"] < least:
                yield {"user": row["user"], "name": name, "seen": self._seen.value()}

    def process_other_element(self, row: Row, context: RowContext) -> None:
        if row["least"] is None:
            self._rules.remove(row["name"])
        else:
            self._rules.put(row["name"], row["least"])


def test_broadcast_records_maintain_a_map_that_keyed_records_read() -> None:
    host = Host(lambda: Process(RowRules(), (("user",), ()), VERDICTS, "under-test"),
                [EVENTS, RULES])  # fmt: skip

    host.send([event("a", 0, amount=1)])
    host.send([{"name": "ten", "least": 10}, {"name": "five", "least": 5}], port=1)
    host = host.recovered()
    host.send([event("a", 0, amount=7), event("b", 0, amount=2)])
    host.send([{"name": "ten", "least": None}], port=1)
    host.send([event("a", 0, amount=1)])

    assert [tuple(row.values()) for row in host.rows] == [
        ("a", "ten", 2),
        ("b", "ten", 1),
        ("b", "five", 1),
        ("a", "five", 3),
    ]


class BatchLimits(BatchProcessFunction):
    """Emits each amount with the limit of its user."""

    def open(self, context: ProcessContext) -> None:
        self._limits = context.get_broadcast_state(
            MapStateDescriptor("limits", pa.string(), pa.int64())
        )

    def process_batch(self, batch: pa.RecordBatch, context: ProcessContext) -> None:
        limits = self._limits.look_up(batch["user"])
        context.collect(pa.record_batch([batch["user"], batch["amount"], limits], schema=LIMITED))

    def process_other_batch(self, batch: pa.RecordBatch, context: ProcessContext) -> None:
        self._limits.put_all(batch["name"], batch["least"])


def test_a_batch_function_looks_up_broadcast_entries_for_all_its_records() -> None:
    host = Host(lambda: Process(BatchLimits(), (("user",), ()), LIMITED, "under-test"),
                [EVENTS, RULES])  # fmt: skip

    host.send([{"name": "a", "least": 10}, {"name": "b", "least": 5}], port=1)
    host = host.recovered()
    host.send([{"name": "b", "least": 6}], port=1)
    host.send([event(user, 0, amount=1) for user in ("b", "nobody", "a", "b")])

    assert [tuple(row.values()) for row in host.rows] == [
        ("b", 1, 6),
        ("nobody", 1, None),
        ("a", 1, 10),
        ("b", 1, 6),
    ]


class Trespassing(RowRules):
    def process_element(self, row: Row, context: RowContext) -> Iterator[Row]:
        self._rules.put("mine", 1)
        yield from ()

    def process_other_element(self, row: Row, context: RowContext) -> None:
        if row["least"] == 1:
            self._seen.update(1)
        else:
            context.get_current_key()


def test_keyed_and_broadcast_records_may_not_write_each_others_state() -> None:
    host = Host(lambda: Process(Trespassing(), (("user",), ()), VERDICTS, "under-test"),
                [EVENTS, RULES])  # fmt: skip

    with pytest.raises(Rejected, match="'rules' can only be written where the broadcast records"):
        host.send([event("a", 0)])
    with pytest.raises(Rejected, match="used without a key"):
        host.send([{"name": "x", "least": 1}], port=1)
    with pytest.raises(Rejected, match="A broadcast record has no key"):
        host.send([{"name": "x", "least": 2}], port=1)
    with pytest.raises(Rejected, match="'rules' can only be written where the broadcast records"):
        host.send([event("a", 0)])


def test_a_keyed_second_stream_may_not_write_broadcast_state() -> None:
    host = Host(lambda: Process(RowRules(), (("user",), ("name",)), VERDICTS, "under-test"),
                [EVENTS, RULES])  # fmt: skip

    with pytest.raises(Rejected, match="'rules' can only be written where the broadcast records"):
        host.send([{"name": "x", "least": 1}], port=1)


class Late(RowSessions):
    def process_other_element(self, row: Row, context: RowContext) -> None:
        pass


@pytest.mark.parametrize("second", [(), ("name",)], ids=["broadcast", "with a key"])
def test_timers_have_the_key_of_the_first_stream(second: tuple[str, ...]) -> None:
    host = Host(lambda: Process(Late(), (("user",), second), SESSIONS, "under-test"),
                [EVENTS, RULES])  # fmt: skip
    host.send([event("a", 0)])
    host.send([{"name": "x", "least": 1}], port=1)

    host.advance(100)

    assert [row["user"] for row in host.rows] == ["a"]


class Balance(BatchProcessFunction):
    """Subtracts the amounts of a second stream, whose key has another name."""

    def open(self, context: ProcessContext) -> None:
        self._sum = context.get_reducing_state(ReducingStateDescriptor("sum", pc.add, pa.int64()))

    def process_batch(self, batch: pa.RecordBatch, context: ProcessContext) -> None:
        self._add(context.keys(batch), batch["amount"], context)

    def process_other_batch(self, batch: pa.RecordBatch, context: ProcessContext) -> None:
        self._add(context.keys(batch), pc.negate(batch["least"]), context)

    def _add(self, keys: pa.RecordBatch, amounts: pa.Array, context: ProcessContext) -> None:
        self._sum.add(keys, amounts)
        columns = [*keys.columns, pa.nulls(keys.num_rows, pa.string()), self._sum.get(keys)]
        context.collect(pa.RecordBatch.from_arrays(columns, schema=VERDICTS))


def test_two_streams_share_the_state_of_their_key() -> None:
    host = Host(lambda: Process(Balance(), (("user",), ("name",)), VERDICTS, "under-test"),
                [EVENTS, RULES])  # fmt: skip

    host.send([event("a", 0, amount=7), event("b", 0, amount=2)])
    host.send([{"name": "a", "least": 10}], port=1)

    assert [(row["user"], row["seen"]) for row in host.rows] == [("a", 7), ("b", 2), ("a", -3)]


class Buffering(BatchProcessFunction):
    """Holds records back until there are three."""

    def open(self, context: ProcessContext) -> None:
        self._held = context.get_operator_list_state(ListStateDescriptor("held", pa.int64()))

    def process_batch(self, batch: pa.RecordBatch, context: ProcessContext) -> None:
        self._held.add(batch["amount"])
        if len(self._held) >= 3:
            context.collect(pa.RecordBatch.from_arrays([self._held.get()], names=["amount"]))
            self._held.clear()


def test_a_stream_without_a_key_has_operator_state() -> None:
    schema = pa.schema([("amount", pa.int64())])
    host = Host(lambda: Process(Buffering(), ((),), schema, "under-test"), [EVENTS])

    host.send([event("a", 0, amount=1), event("b", 0, amount=2)])
    host = host.recovered()
    host.send([event("c", 0, amount=3)])

    assert host.emitted == [[{"amount": 1}, {"amount": 2}, {"amount": 3}]]


def test_a_stream_without_a_key_has_no_keyed_state() -> None:
    with pytest.raises(Rejected, match="'under-test' asks for keyed state or timers, but its"):
        Host(lambda: Process(BatchSessions(), ((),), SESSIONS, "under-test"), [EVENTS])


class BatchMean(BatchAggregateFunction):
    def lift(self, values: pa.Array) -> pa.Array:
        return values

    def merge(self, left: pa.Array, right: pa.Array) -> pa.Array:
        return left

    def get_result(self, accumulators: pa.Array) -> pa.Array:
        return accumulators


class Sessions:
    """The oracle: plain Python, one row after the other."""

    def __init__(self) -> None:
        self._open: dict[str | None, tuple[int, int]] = {}

    def add(self, rows: list[Row]) -> None:
        for row in rows:
            until_ms, total = self._open.get(row["user"], (0, 0))
            until_ms = max(until_ms, row["at_ms"] + GAP_MS)
            self._open[row["user"]] = (until_ms, total + row["amount"])

    def due(self, watermark_ms: int) -> list[Row]:
        due = {user: s for user, s in self._open.items() if s[0] <= watermark_ms}
        self._open = {user: s for user, s in self._open.items() if user not in due}
        return [{"user": u, "until_ms": s[0], "total": s[1]} for u, s in due.items()]


def tallies(rows: list[Row]) -> Iterator[str]:
    """Yields the values that `Tally` must emit."""
    lists: dict[str, list[int]] = {}
    maps: dict[str, dict[int, str]] = {}
    folded: dict[str, list[int]] = {}
    for row in rows:
        user, amount = row["user"], row["amount"]
        if amount == 0:
            lists[user], maps[user], folded[user] = [], {}, []
        elif amount % 7 == 0:
            lists[user] = [amount, amount]
            maps.setdefault(user, {}).pop(amount % 5, None)
        else:
            lists.setdefault(user, []).append(amount)
            maps.setdefault(user, {})[amount % 5] = str(amount)
            folded.setdefault(user, []).append(amount)
        numbers, entries = folded.get(user, []), maps.get(user, {})
        mean = sum(numbers) / len(numbers) if numbers else None
        seen = (lists.get(user, []), sorted(entries.items()), max(numbers, default=None), mean)
        yield repr((*seen, entries.get(1), 2 in entries, not entries))


def process(
    function: KeyedProcessFunction | BatchProcessFunction,
    schema: pa.Schema,
    keys: tuple[str, ...] = ("user",),
) -> Process:
    return Process(function, (keys,), schema, "under-test")


def host_of(function: KeyedProcessFunction | BatchProcessFunction, schema: pa.Schema) -> Host:
    return Host(lambda: process(function, schema), [EVENTS])


def event(user: str | None, at_ms: int, amount: int = 1) -> Row:
    return {"user": user, "at_ms": at_ms, "amount": amount}


def table_of(rows: list[Row]) -> pa.Table:
    return pa.Table.from_pylist(rows, schema=SESSIONS)
