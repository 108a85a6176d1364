"""How many rows a second does one core take when they come in small batches?

Each operator runs in a real subtask behind a real gate. The bench fills the gate's channels, lets
the subtask work until nothing is queued, and divides the rows by processor time, so that other
programs on the machine disturb little. As with a source, a watermark follows every batch.

`by_row` has the operator with an author's function of single rows, `by_batch` with whole batches:
a map, tumbling windows (a function of the rows of each window, against aggregates), a keyed process
function with a timer for each key and window, and a join of two streams (a process function with a
state for each side, against `join`).

Expected by a sketch: a row function costs 2 to 5 microseconds a row in Python alone, so 200,000 to
500,000 rows a second with large batches. Every batch that reaches an operator costs it 0.1 to 1 ms,
regardless of its size. So unless batches are coalesced before the operator, batches of 100 rows
give 100,000 to 1,000,000 rows a second, and batches of 10 rows a tenth of that.
"""

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bench.benchmark import Benchmark, Fields, at_least, progress
from pipelines.channels.coalescing import Coalescing, InputOfChannel
from pipelines.channels.gate import Gate
from pipelines.channels.slot_network import LocalOutput
from pipelines.connectors import BlackHole
from pipelines.domain.elements import Records, Watermark
from pipelines.domain.ids import Attempt, ChannelId, RunId, Uid, channel_id
from pipelines.domain.settings import BarrierOptions, CheckpointingMode
from pipelines.domain.settings.parsing import parse_settings
from pipelines.operators.rows import Row
from pipelines.runtime.subtask.chains.chain import OperatorChain
from pipelines.runtime.subtask.chains.chain_node import ChainPlace
from pipelines.runtime.subtask.gate_alignment import AlignmentTiming, GateAlignment, handler_for
from pipelines.runtime.subtask.gate_feed import GateFeed
from pipelines.runtime.subtask.mailbox import Mailbox
from pipelines.runtime.subtask.snapshots.restoring import NOTHING
from pipelines.runtime.subtask.snapshots.snapshotting import SnapshotWriter
from pipelines.runtime.subtask.snapshots.upload_threads import never
from pipelines.runtime.subtask.subtask import Step, Subtask
from pipelines.state.in_memory.hashmap import HashMapBackend
from pipelines.storage.filesystem import FileSystemCheckpointStore
from pipelines.stream import (
    BatchProcessFunction,
    Environment,
    FiredTimers,
    KeyedProcessFunction,
    ProcessContext,
    RowContext,
    RuntimeContext,
    Stream,
    ValueStateDescriptor,
    count,
    sum,
    tumbling,
)
from tests.unit.runtime.fakes import ListSource, ManualClock
from tests.unit.runtime.hosted import RecordingReporter

OPERATORS = ("map", "window", "process", "join")
FLAVOURS = ("by_row", "by_batch")
BATCH_ROWS = (1, 10, 100, 1_000, 8_192)
BARS = (at_least("at_100", 150_000), at_least("at_10", 20_000))
CHANNELS = 4  # into each input of the operator
KEYS = 1_000
WINDOW_MS = 10_000  # a row happens every millisecond
UNIT = Uid("measured")
QUEUED_ROWS = 65_536  # in front of the subtask, of small batches
LEAST_TURNS = 64  # between two reads of the process clock, which can be slow
WARM_UP_PART = 0.2

EVENT = pa.schema(
    [
        ("id", pa.int64()),
        ("key", pa.string()),
        ("value", pa.float64()),
        ("at", pa.timestamp("ms", "UTC")),
    ]
)
TOTALS = pa.schema([("key", pa.string()), ("rows", pa.int64())])
PAIRS = pa.schema([("id", pa.int64()), ("value", pa.float64()), ("other", pa.float64())])


def main() -> None:
    benchmark = Benchmark("small-batches", __doc__)
    benchmark.options.add_argument(
        "--seconds", type=float, default=1.0, help="processor time of each measurement, about"
    )
    benchmark.options.add_argument("--rounds", type=int, default=3, help="the median counts")
    benchmark.options.add_argument("--only", choices=OPERATORS, help="one operator")
    options = benchmark.options.parse()
    operators = OPERATORS if options.only is None else (options.only,)
    benchmark.report(measure(operators, BATCH_ROWS, options.seconds, options.rounds), BARS)


def measure(operators: Sequence[str], sizes: Sequence[int], seconds: float, rounds: int) -> Fields:
    """`by_operator` has the rows a second by flavour and rows per batch.

    `by_rows` and the fields that have bars contain the rate of the slowest operator and flavour.
    """
    by_operator: dict[str, dict[str, dict[str, int]]] = {}
    for operator in operators:
        by_operator[operator] = {
            flavour: {
                str(rows): _median(operator, flavour, rows, seconds, rounds) for rows in sizes
            }
            for flavour in FLAVOURS
        }
    by_rows = {
        str(rows): min(rates[str(rows)] for each in by_operator.values() for rates in each.values())
        for rows in sizes
    }
    slowest = {f"at_{rows}": rate for rows, rate in by_rows.items()}
    return {"by_operator": by_operator, "by_rows": by_rows, **slowest}


def _median(operator: str, flavour: str, rows: int, seconds: float, rounds: int) -> int:
    rate = statistics.median(rows_per_s(operator, flavour, rows, seconds) for _ in range(rounds))
    progress(f"{operator} {flavour}, {rows} rows a batch: {rate:,.0f} rows/s")
    return round(rate)


def rows_per_s(operator: str, flavour: str, batch_rows: int, seconds: float) -> float:
    """Measures a new subtask for about `seconds` of processor time, after it has warmed up."""
    ports = 2 if operator == "join" else 1
    with _loaded(OPERATIONS[operator, flavour], ports) as load:
        load.run_for(seconds * WARM_UP_PART, batch_rows)
        return load.run_for(seconds, batch_rows)


@dataclass(slots=True)
class Load:
    """A subtask that gets rows as fast as it takes them, all on one thread."""

    subtask: Subtask
    outputs: list[list[LocalOutput]]  # by port
    clock: ManualClock
    schemas: list[pa.Schema]  # by port
    _rows: int = 0  # of each port so far
    _turn: int = 0

    def run_for(self, seconds: float, batch_rows: int) -> float:
        """Returns the rows per second of processor time."""
        rows, spent_s = 0, 0.0
        while spent_s < seconds:
            turns = self._next_turns(batch_rows)
            begun_s = time.process_time()
            for batches in turns:
                rows += self._send(batches)
            self._work_off()
            spent_s += time.process_time() - begun_s
        return rows / spent_s

    def _next_turns(self, batch_rows: int) -> list[list[pa.RecordBatch]]:
        """Returns batches as exchanges would cut them, one for each port in each turn."""
        turns = max(LEAST_TURNS, min(QUEUED_ROWS, batch_rows * 2_000) // batch_rows)
        first, self._rows = self._rows, self._rows + turns * batch_rows
        of_ports = [_events(first, turns * batch_rows, schema) for schema in self.schemas]
        return [
            [_unshared(rows.slice(start, batch_rows)) for rows in of_ports]
            for start in range(0, turns * batch_rows, batch_rows)
        ]

    def _send(self, batches: list[pa.RecordBatch]) -> int:
        """Sends each batch to one channel of its port; returns the number of rows."""
        self.clock.now_ms += 1
        self._turn = (self._turn + 1) % CHANNELS
        newest_ms = int(batches[0].column("id")[-1].as_py())
        for channels, batch in zip(self.outputs, batches, strict=True):
            output = channels[self._turn]
            output.send(Records(batch))
            output.send(Watermark(newest_ms - 1))
            if not output.flush():
                self._work_off()
        return int(batches[0].num_rows) * len(batches)

    def _work_off(self) -> None:
        """Works until nothing is left; an hour passes, so that coalescing batches leave too."""
        for _ in range(2):
            while self.subtask.step() is not Step.WAITS_FOR_INPUT:
                continue
            self.clock.now_ms += 3_600_000
        if any(each.queued_records for each in self.subtask.queued()):
            raise RuntimeError("the subtask has stopped before it had taken everything")


@contextmanager
def _loaded(build: Callable[[Stream, Stream], Stream], ports: int) -> Iterator[Load]:
    env = Environment()
    source = ListSource([], schema=EVENT)
    streams = [env.source(source, uid=uid) for uid in ("first", "second")[:ports]]
    build(streams[0], streams[-1]).sink(BlackHole(), uid="out")
    pipeline = env.build()
    vertex = pipeline.graph.vertex(UNIT)
    names = [
        [channel_id(edge.upstream_vertex, n, UNIT, edge.port, 0) for n in range(CHANNELS)]
        for edge in vertex.inputs
    ]
    ports_of = {channel: port for port, channels in enumerate(names) for channel in channels}
    settings = parse_settings({})
    clock, options = ManualClock(), BarrierOptions(mode=CheckpointingMode.EXACTLY_ONCE)
    gate = Gate(list(ports_of))
    times = {edge.port: edge.time_column for edge in vertex.inputs}
    coalescing = Coalescing(
        {channel: InputOfChannel(port, times[port]) for channel, port in ports_of.items()},
        settings.inputs.coalesced_rows,
        settings.inputs.coalescing_wait_ms,
    )
    outputs = [[_output(channel, gate) for channel in channels] for channels in names]
    handler = handler_for(options, vertex, ports_of)
    alignment = GateAlignment(gate, handler, options, AlignmentTiming(clock))
    place = ChainPlace(RunId("bench"), Attempt(1), vertex, 0, 1, 128)
    restored = dict.fromkeys(vertex.nodes, NOTHING)
    chain = OperatorChain(
        pipeline=pipeline,
        place=place,
        backends=HashMapBackend,
        exchanges={},
        restored=restored,
        now_ms=clock.wall_ms,
    )
    with (
        tempfile.TemporaryDirectory(prefix="ftdash-bench-") as root,
        ThreadPoolExecutor(1) as uploads,
    ):
        subtask = Subtask(
            place=place,
            chain=chain,
            feed=GateFeed(gate, coalescing, alignment, None),
            snapshots=SnapshotWriter(FileSystemCheckpointStore([root])),
            uploads=uploads,
            uploads_starve=never,
            reporter=RecordingReporter(Path(root)),
            clock=clock,
            mailbox=Mailbox(),
            barriers=options,
        )
        yield Load(subtask, outputs, clock, pipeline.input_schemas(UNIT))


def _output(channel: ChannelId, gate: Gate) -> LocalOutput:
    output = LocalOutput(channel)
    output.on_gate(gate)
    return output


def _events(first: int, rows: int, schema: pa.Schema) -> pa.RecordBatch:
    """Makes rows; a row's id is also its event time."""
    ids = np.arange(first, first + rows)
    columns = {
        "id": pa.array(ids),
        "key": _KEYS.take(pa.array(ids * 7_919 % KEYS)),
        "value": pa.array(ids / 7),
        "other": pa.array(ids / 7),
        "at": pa.array(ids).view(EVENT.field("at").type),
    }
    return pa.record_batch([columns[name] for name in schema.names], schema=schema)


_KEYS = pa.array([f"customer-{number}" for number in range(KEYS)])


def _unshared(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Returns the batch with its own buffers, as it comes out of an exchange."""
    return batch.take(pa.array(np.arange(batch.num_rows)))


def _window_end_ms(at_ms: int) -> int:
    return at_ms - at_ms % WINDOW_MS + WINDOW_MS - 1


def _map_rows(stream: Stream, _: Stream) -> Stream:
    def function(row: Row) -> Row:
        return {"key": row["key"], "rows": row["id"] + 1}

    return stream.rebalance().map(function, TOTALS, uid=UNIT)


def _map_batches(stream: Stream, _: Stream) -> Stream:
    def function(batch: pa.RecordBatch) -> pa.RecordBatch:
        columns = [batch.column("key"), pc.add(batch.column("id"), 1)]
        return pa.RecordBatch.from_arrays(columns, schema=TOTALS)

    return stream.rebalance().map_batches(function, TOTALS, uid=UNIT)


def _window_rows(stream: Stream, _: Stream) -> Stream:
    def function(window: object, rows: pa.RecordBatch) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays(
            [rows.column("key").slice(0, 1), pa.array([rows.num_rows])], schema=TOTALS
        )

    windowed = stream.key_by("key").window(tumbling(milliseconds=WINDOW_MS))
    return windowed.apply(function, TOTALS, uid=UNIT)


def _window_batches(stream: Stream, _: Stream) -> Stream:
    windowed = stream.key_by("key").window(tumbling(milliseconds=WINDOW_MS))
    return windowed.aggregate(rows=count(), total=sum("value"), uid=UNIT)


class CountRows(KeyedProcessFunction):
    """Counts the rows of each key, and emits the count when the window ends."""

    def open(self, runtime: RuntimeContext) -> None:
        self._count = runtime.get_state(ValueStateDescriptor("count", pa.int64()))

    def process_element(self, row: Row, context: RowContext) -> None:
        self._count.update((self._count.value() or 0) + 1)
        at_ms = row["id"]  # the same as its time
        context.timer_service().register_event_time_timer(_window_end_ms(at_ms))

    def on_timer(self, timestamp_ms: int, context: RowContext) -> list[Row]:
        counted = self._count.value()
        self._count.clear()
        return [] if counted is None else [{"key": context.get_current_key(), "rows": counted}]


class CountBatches(BatchProcessFunction):
    """Does the same as `CountRows`, a batch at a time."""

    def open(self, context: ProcessContext) -> None:
        self._count = context.get_state(ValueStateDescriptor("count", pa.int64()))

    def process_batch(self, batch: pa.RecordBatch, context: ProcessContext) -> None:
        groups = context.group(batch)
        known = pc.fill_null(self._count.value(groups.keys), 0).to_numpy()
        added = np.bincount(groups.index, minlength=groups.count)
        self._count.update(groups.keys, pa.array(known + added))
        times_ms = batch.column("id").to_numpy()
        ends_ms = times_ms - times_ms % WINDOW_MS + WINDOW_MS - 1
        context.event_timers.register(context.keys(batch), ends_ms)

    def on_timers(self, timers: FiredTimers, context: ProcessContext) -> None:
        rows = [timers.keys.column(0), self._count.value(timers.keys)]
        counted = pa.RecordBatch.from_arrays(rows, schema=TOTALS)
        self._count.clear(timers.keys)
        context.collect(counted.filter(pc.is_valid(counted.column("rows"))))


def _process_rows(stream: Stream, _: Stream) -> Stream:
    return stream.key_by("key").process(CountRows(), TOTALS, uid=UNIT)


def _process_batches(stream: Stream, _: Stream) -> Stream:
    return stream.key_by("key").process(CountBatches(), TOTALS, uid=UNIT)


class PairRows(KeyedProcessFunction):
    """Joins two streams: each id comes once on either side, and the first waits for the other."""

    def open(self, runtime: RuntimeContext) -> None:
        self._first = runtime.get_state(ValueStateDescriptor("first", pa.float64()))
        self._second = runtime.get_state(ValueStateDescriptor("second", pa.float64()))

    def process_element(self, row: Row, context: RowContext) -> list[Row]:
        other = self._second.value()
        if other is None:
            self._first.update(row["value"])
            return []
        self._second.clear()
        return [{"id": row["id"], "value": row["value"], "other": other}]

    def process_other_element(self, row: Row, context: RowContext) -> list[Row]:
        other = self._first.value()
        if other is None:
            self._second.update(row["value"])
            return []
        self._first.clear()
        return [{"id": row["id"], "value": other, "other": row["value"]}]


def _join_rows(left: Stream, right: Stream) -> Stream:
    both = left.connect(right).key_by(["id"], ["id"])
    return both.process(PairRows(), PAIRS, uid=UNIT)


def _join_batches(left: Stream, right: Stream) -> Stream:
    other = right.map_batches(_as_right, RIGHT, uid="renamed")
    return left.join(other, on=["id"], uid=UNIT)


RIGHT = pa.schema([("id", pa.int64()), ("other", pa.float64())])


def _as_right(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([batch.column("id"), batch.column("value")], schema=RIGHT)


OPERATIONS: dict[tuple[str, str], Callable[[Stream, Stream], Stream]] = {
    ("map", "by_row"): _map_rows,
    ("map", "by_batch"): _map_batches,
    ("window", "by_row"): _window_rows,
    ("window", "by_batch"): _window_batches,
    ("process", "by_row"): _process_rows,
    ("process", "by_batch"): _process_batches,
    ("join", "by_row"): _join_rows,
    ("join", "by_batch"): _join_batches,
}


if __name__ == "__main__":
    main()
