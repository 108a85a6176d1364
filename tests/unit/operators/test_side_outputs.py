"""Functions emit what they declared into side outputs, each row once, even under kills."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import ClassVar

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from pipelines.connectors import BlackHole
from pipelines.domain.errors import Rejected
from pipelines.operators.stateless import BatchFunctionWithSides, FlatMapRowsWithSides
from pipelines.stream import (
    BatchProcessFunction,
    BatchSides,
    Environment,
    KeyedProcessFunction,
    Pipeline,
    ProcessContext,
    RowContext,
    RowSides,
    SideOutput,
    Stream,
    count,
    tumbling,
)
from pipelines.testing import OperatorHarness, assert_exactly_once, run_with_kills
from tests.unit.operators.harness import Host, Row

TIME = pa.timestamp("ms", "UTC")
LINES = pa.schema([("n", pa.int64()), ("at", TIME)])
BAD = pa.schema([("n", pa.int64()), ("why", pa.string()), ("at", TIME)])
SIDES = {"bad": SideOutput(BAD, "at")}
START = datetime(2026, 1, 1, tzinfo=UTC)


def split_row(row: Row, sides: RowSides) -> Iterator[Row]:
    if row["n"] % 3:
        yield row
    else:
        sides.output("bad", {"n": row["n"], "why": "thirds", "at": row["at"]})


def split_batch(batch: pa.RecordBatch, sides: BatchSides) -> pa.RecordBatch:
    is_bad, bad = bad_of(batch)
    sides.output("bad", bad)
    return batch.filter(pc.invert(is_bad))


class Splitting(BatchProcessFunction):
    side_outputs: ClassVar = SIDES

    def process_batch(self, batch: pa.RecordBatch, context: ProcessContext) -> None:
        is_bad, bad = bad_of(batch)
        context.output("bad", bad)
        context.collect(batch.filter(pc.invert(is_bad)))


class SplittingRows(KeyedProcessFunction):
    side_outputs: ClassVar = SIDES

    def process_element(self, row: Row, context: RowContext) -> Iterator[Row]:
        if row["n"] % 3:
            yield row
        else:
            context.output("bad", {"n": row["n"], "why": "thirds", "at": row["at"]})


KINDS = ["flat_map", "map_batches", "process", "keyed"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(2))
def test_every_row_is_in_the_result_or_in_the_side_output_under_kills(kind: str, seed: int) -> None:
    assert_exactly_once(pipeline(kind), INPUT, kills=seed)
    run = run_with_kills(pipeline(kind), INPUT, kills=seed)

    assert sorted(r["n"] for r in run.table("good").to_pylist()) == [n for n in NUMBERS if n % 3]
    assert sorted(r["n"] for r in run.table("bad").to_pylist()) == [n for n in NUMBERS if not n % 3]


@pytest.mark.parametrize("kind", KINDS)
def test_a_side_output_has_the_event_time_that_it_declares(kind: str) -> None:
    split = split_by(kind)
    bad = split.side_output("bad", uid="bad")
    assert bad.time_column == "at"
    per_window = bad.key_by("why").window(tumbling(seconds=30)).aggregate(n=count(), uid="windows")
    per_window.collect(uid="out")

    run = run_with_kills(split.environment.build(), INPUT, kills=3)

    assert [row["n"] for row in run.table("out").to_pylist()] == [10] * 6 + [7]


@pytest.mark.parametrize("kind", KINDS)
def test_an_author_reads_side_outputs_in_the_harness(kind: str) -> None:
    split = split_by(kind)
    split.sink(BlackHole(), uid="good")
    harness = OperatorHarness(split.environment.build(), "split")

    harness.push(INPUT["lines"][:5])

    assert [row["n"] for row in harness.output()] == [1, 2, 4]
    assert [(row["n"], row["why"]) for row in harness.side_output("bad")] == [
        (0, "thirds"),
        (3, "thirds"),
    ]


def test_an_undeclared_side_output_is_refused_by_name() -> None:
    rows = Host(
        lambda: FlatMapRowsWithSides(lambda row, sides: sides.output("worse", row), LINES, SIDES),
        [LINES],
    )
    batches = Host(
        lambda: BatchFunctionWithSides(lambda b, sides: sides.output("worse", b), LINES, SIDES),
        [LINES],
    )

    for host in (rows, batches):
        with pytest.raises(Rejected, match="'under-test' has no side output 'worse'; it declares"):
            host.send([line(1)])


def test_columns_other_than_declared_are_refused() -> None:
    rows = Host(
        lambda: FlatMapRowsWithSides(lambda row, sides: sides.output("bad", row), LINES, SIDES),
        [LINES],
    )
    batches = Host(
        lambda: BatchFunctionWithSides(lambda b, sides: sides.output("bad", b), LINES, SIDES),
        [LINES],
    )

    with pytest.raises(Rejected, match=r"emitted a row with the columns \(n, at\) where it decl"):
        rows.send([line(1)])
    with pytest.raises(Rejected, match=r"into its side output 'bad', where it declared \(n int64"):
        batches.send([line(1)])


def test_a_batch_process_function_may_not_emit_to_an_undeclared_side_output() -> None:
    class Undeclared(BatchProcessFunction):
        def process_batch(self, batch: pa.RecordBatch, context: ProcessContext) -> None:
            context.output("bad", batch)

    environment = Environment()
    lines = environment.from_rows([], LINES, uid="lines")
    lines.process(Undeclared(), LINES, uid="split").sink(BlackHole(), uid="out")
    harness = OperatorHarness(environment.build(), "split")

    with pytest.raises(Rejected, match="'split' has no side output 'bad'; it declares none"):
        harness.push([line(1)])


def test_an_event_time_column_missing_from_the_side_output_is_refused() -> None:
    lines = Environment().from_rows([], LINES, uid="lines")

    with pytest.raises(Rejected, match=r"'split' cannot .* side output 'bad': .* no column 'then'"):
        lines.flat_map(split_row, LINES, side_outputs={"bad": SideOutput(BAD, "then")}, uid="split")


def test_the_search_for_the_failing_row_emits_nothing() -> None:
    def fail_at_five(batch: pa.RecordBatch, sides: BatchSides) -> pa.RecordBatch:
        sides.output("bad", bad_of(batch)[1])
        if pc.any(pc.equal(batch["n"], 5)).as_py():
            raise ValueError
        return batch

    host = Host(lambda: BatchFunctionWithSides(fail_at_five, LINES, SIDES), [LINES])
    batch = pa.RecordBatch.from_pylist([line(n) for n in range(9)], schema=LINES)

    assert host.operator.failing_row(batch) == 5
    assert host.side_rows("bad") == []


def bad_of(batch: pa.RecordBatch) -> tuple[pa.Array, pa.RecordBatch]:
    thirds = pc.divide(batch["n"], 3)
    is_bad = pc.equal(pc.multiply(thirds, 3), batch["n"])
    bad = batch.filter(is_bad)
    why = pa.array(["thirds"] * bad.num_rows, pa.string())
    return is_bad, pa.RecordBatch.from_arrays([bad["n"], why, bad["at"]], schema=BAD)


def split_by(kind: str) -> Stream:
    lines = Environment().from_rows([], LINES, uid="lines", timestamp_column="at")
    match kind:
        case "flat_map":
            return lines.flat_map(split_row, LINES, side_outputs=SIDES, uid="split")
        case "map_batches":
            return lines.map_batches(split_batch, LINES, side_outputs=SIDES, uid="split")
        case "process":
            return lines.process(Splitting(), LINES, uid="split")
    return lines.key_by("n").process(SplittingRows(), LINES, uid="split")


def pipeline(kind: str) -> Pipeline:
    split = split_by(kind)
    split.collect(uid="good")
    split.side_output("bad", uid="read").collect(uid="bad")
    return split.environment.build()


def line(n: int) -> Row:
    return {"n": n, "at": START + timedelta(seconds=n)}


NUMBERS = range(200)
INPUT = {"lines": [line(n) for n in NUMBERS]}
