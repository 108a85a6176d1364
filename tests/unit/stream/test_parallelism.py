"""`parallelism()` as authors use it: results, refusals, and state across a rescale."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from pipelines.connectors.in_process import ArrowRows, BlackHole
from pipelines.connectors.redis.hashes import RedisHashes
from pipelines.domain.errors import Rejected
from pipelines.domain.graph import EdgeKind
from pipelines.domain.ids import Uid
from pipelines.local import LocalResult, run_local
from pipelines.local.running import host, local_spec
from pipelines.local.slot import FastTime
from pipelines.operators.processing.process import KeyedProcessFunction
from pipelines.operators.processing.row_context import RowContext, RuntimeContext
from pipelines.storage.filesystem import FileSystemCheckpointStore
from pipelines.stream import (
    Environment,
    Pipeline,
    Stream,
    ValueStateDescriptor,
    count,
    tumbling,
)
from pipelines.testing import assert_exactly_once

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
ROWS = [{"product": "abcde"[n % 5], "at": BEGIN + timedelta(seconds=n)} for n in range(400)]
ORDERS = pa.schema([("product", pa.string()), ("at", pa.timestamp("ms", tz="UTC"))])
NUMBERED = pa.schema([("product", pa.string()), ("number", pa.int64())])
STOP_MS, BATCH_ROWS = 30, 25
CHECKPOINTING = "execution.checkpointing."
MODES = {
    "aligned": {},
    "unaligned": {CHECKPOINTING + "unaligned.enabled": "true"},
    "at least once": {CHECKPOINTING + "mode": "AT_LEAST_ONCE"},
    "at most once": {CHECKPOINTING + "mode": "AT_MOST_ONCE"},
}


class Numbering(KeyedProcessFunction):
    """Numbers the orders of a product: lost or doubled state shows as a gap or a repetition."""

    def open(self, runtime: RuntimeContext) -> None:
        self._seen = runtime.get_state(ValueStateDescriptor("seen", pa.int64()))

    def process_element(self, row: dict, context: RowContext) -> Iterator[dict]:
        number = (self._seen.value() or 0) + 1
        self._seen.update(number)
        yield {"product": row["product"], "number": number}


def numbered(
    rows: list[dict], *, source: int | None, operator: int | None, sink: int | None
) -> Pipeline:
    env = Environment()
    table = pa.Table.from_pylist(rows, ORDERS)
    few = ArrowRows(table, "at", splits=3, batch_rows=BATCH_ROWS)
    orders = env.source(few, uid="orders")
    if source is not None:
        orders.parallelism(source)
    numbers = orders.key_by("product").process(Numbering(), NUMBERED, uid="numbering")
    if operator is not None:
        numbers.parallelism(operator)
    numbers.collect(uid="out", parallelism=sink)
    return env.build()


EVERY = sorted((product, number) for product in "abcde" for number in range(1, 81))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("source", "operator", "sink"), [(None, 3, None), (1, 4, 2), (3, None, 1), (2, 1, None)]
)
def test_no_row_is_lost_between_different_parallelisms(
    mode: str, source: int | None, operator: int | None, sink: int | None
) -> None:
    pipeline = numbered(ROWS, source=source, operator=operator, sink=sink)

    result = run_local(pipeline, parallelism=2, settings=MODES[mode])

    assert pairs(result.rows()) == EVERY


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(("source", "operator", "sink"), [(1, 3, 2), (None, 4, 1), (3, 1, None)])
def test_mixed_parallelisms_survive_kills(
    seed: int, source: int | None, operator: int | None, sink: int | None
) -> None:
    pipeline = numbered([], source=source, operator=operator, sink=sink)

    assert_exactly_once(pipeline, ROWS, kills=seed)


def numbered_twice(rows: list[dict], again: int | None = None) -> Pipeline:
    """Adds a second operator that numbers the rows again, in the subtasks where they are."""
    env = Environment()
    table = pa.Table.from_pylist(rows, ORDERS)
    orders = env.source(ArrowRows(table, "at", splits=3, batch_rows=BATCH_ROWS), uid="orders")
    numbers = orders.key_by("product").process(Numbering(), NUMBERED, uid="numbering")
    same = numbers.filter(pc.field("number") > 0, uid="all").reinterpret_as_keyed(
        "product", uid="same"
    )
    twice = same.process(Numbering(), NUMBERED, uid="again")
    if again is not None:
        twice.parallelism(again)
    twice.collect(uid="out")
    return env.build()


def test_rows_reinterpreted_as_keyed_cross_no_exchange() -> None:
    pipeline = numbered_twice(ROWS)

    assert pipeline.graph.vertex(Uid("numbering")).nodes[:4] == (
        "numbering",
        "all",
        "same",
        "again",
    )
    assert pairs(run_local(pipeline, parallelism=2).rows()) == EVERY


def test_totals_of_rows_reinterpreted_as_keyed_need_no_local_step() -> None:
    env = Environment()
    orders = env.from_rows(ROWS, ORDERS, uid="orders", timestamp_column="at", splits=3)
    numbers = orders.key_by("product").process(Numbering(), NUMBERED, uid="numbering")
    same = numbers.reinterpret_as_keyed("product", uid="same")
    same.aggregate(number=count(), uid="n").collect(uid="out")
    pipeline = env.build()

    newest = {row["product"]: row for row in run_local(pipeline, parallelism=2).rows()}

    assert pipeline.graph.vertex(Uid("numbering")).nodes[:3] == ("numbering", "same", "n")
    assert pairs([*newest.values()]) == [(product, 80) for product in "abcde"]


def test_a_changelog_reinterpreted_as_keyed_can_be_totalled() -> None:
    env = Environment()
    same = changes(env).reinterpret_as_keyed("product", uid="same")
    same.aggregate(number=count(), uid="n").collect(uid="out")

    newest = {row["product"]: row for row in run_local(env.build(), parallelism=2).rows()}

    assert pairs([*newest.values()]) == [(product, 1) for product in "abcde"]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("again", [None, 1, 3])
def test_rows_reinterpreted_as_keyed_survive_kills(seed: int, again: int | None) -> None:
    """At another parallelism, an exchange by key sends the rows to the second operator."""
    assert_exactly_once(numbered_twice([], again), ROWS, kills=seed)


@pytest.mark.parametrize(("before", "after"), [(2, 4), (4, 1), (1, 3)])
def test_rows_reinterpreted_as_keyed_stay_with_their_key_after_a_rescale(
    tmp_path: Path, before: int, after: int
) -> None:
    many = ROWS * 10
    first = stopped(tmp_path, numbered_twice(many), before)
    assert first.savepoint is not None

    second = run_local(
        numbered_twice(many), parallelism=after, directory=tmp_path, restore_from=first.savepoint
    )

    assert first.rows()
    found = pairs([*first.rows(), *second.rows()])
    assert second.rows()
    assert found == sorted((p, n) for p in "abcde" for n in range(1, len(many) // 5 + 1))


def test_rows_reinterpreted_as_keyed_use_the_max_parallelism_of_the_run(tmp_path: Path) -> None:
    """The flow itself may have another maximum parallelism."""
    spec = msgspec.structs.replace(local_spec(tmp_path, 3, None, None), max_parallelism=7)

    result = host(tmp_path, spec, numbered_twice(ROWS), FastTime())

    assert pairs(result.rows()) == EVERY


def test_a_row_in_the_wrong_subtask_for_its_key_ends_the_run_and_is_named() -> None:
    env = Environment()
    orders = env.from_rows(ROWS, ORDERS, uid="orders", timestamp_column="at", splits=3)
    orders.reinterpret_as_keyed("product", uid="same").aggregate(n=count(), uid="n").collect(
        uid="out"
    )

    sentence = "'same' has a row with the key {'product': '.'} in subtask"
    with pytest.raises(Exception, match=sentence.replace("{", "\\{")):
        run_local(env.build(), parallelism=2)


def test_connecting_rows_reinterpreted_as_keyed_uses_a_hash_exchange() -> None:
    env = Environment()
    orders = env.from_rows(ROWS, ORDERS, uid="orders", timestamp_column="at")
    numbers = orders.key_by("product").process(Numbering(), NUMBERED, uid="numbering")
    connected = numbers.reinterpret_as_keyed("product", uid="same").connect(orders.broadcast())

    assert connected.first_input.kind is EdgeKind.HASH


@pytest.mark.parametrize("columns", [("price",), ()])
def test_only_existing_columns_can_be_reinterpreted_as_a_key(columns: tuple[str, ...]) -> None:
    orders = Environment().from_rows(ROWS, ORDERS, uid="orders")

    with pytest.raises(Rejected, match="'same' cannot be built"):
        orders.reinterpret_as_keyed(*columns, uid="same")


@pytest.mark.parametrize("seed", range(4))
def test_windows_survive_kills_at_a_parallelism_of_their_own(seed: int) -> None:
    env = Environment()
    orders = env.from_rows([], ORDERS, uid="orders", timestamp_column="at")
    windows = orders.key_by("product").window(tumbling(minutes=1))
    counted = windows.aggregate(n=count(), uid="n").parallelism(3)
    counted.sink(BlackHole(), uid="out", parallelism=1)

    assert_exactly_once(env.build(), ROWS, kills=seed)


@pytest.mark.parametrize(
    ("before", "after"), [((2, 3), (4, 3)), ((4, 3), (2, 3)), ((2, 4), (2, 1)), ((3, 1), (2, 4))]
)
def test_each_key_keeps_its_state_over_a_rescale_of_the_run_and_of_the_operator(
    tmp_path: Path, before: tuple[int, int], after: tuple[int, int]
) -> None:
    """Pairs are (parallelism of the run, of the operator). The first run stops with a savepoint."""
    many = ROWS * 10
    narrow = numbered(many, source=None, operator=before[1], sink=None)
    first = stopped(tmp_path, narrow, before[0])
    assert first.savepoint is not None
    manifest = FileSystemCheckpointStore([str(tmp_path)]).manifest(first.savepoint)
    assert (manifest.parallelism, manifest.parallelisms) == (before[0], {"numbering": before[1]})
    print(len(first.rows()), "rows before the savepoint")

    second = run_local(
        numbered(many, source=None, operator=after[1], sink=None),
        parallelism=after[0],
        directory=tmp_path,
        restore_from=first.savepoint,
    )

    assert first.rows()
    assert second.rows()
    found = pairs([*first.rows(), *second.rows()])
    assert found == sorted((p, n) for p in "abcde" for n in range(1, len(many) // 5 + 1))


def test_a_local_step_before_an_exchange_runs_with_its_upstream_operator() -> None:
    env = Environment()
    orders = env.from_rows(ROWS, ORDERS, uid="orders", timestamp_column="at").parallelism(2)
    orders.key_by("product").aggregate(n=count(), uid="n").collect(uid="out")
    orders.distinct("product", uid="products").collect(uid="products-out")
    windows = orders.key_by("product").window(tumbling(minutes=1))
    windows.aggregate(n=count(), uid="w").collect(uid="windows-out")

    vertices = env.build().graph.vertices

    assert set(vertices[0].nodes) == {"orders", "n.local", "products.local", "w.local"}
    assert [vertex.parallelism for vertex in vertices] == [2, None, None, None]


def test_only_the_reader_of_a_side_output_may_have_its_own_parallelism() -> None:
    env = Environment()
    orders = env.from_rows(ROWS, ORDERS, uid="orders", timestamp_column="at")
    windows = orders.key_by("product").window(tumbling(minutes=1))
    counted = windows.aggregate(n=count(), uid="n").parallelism(3)
    late = counted.side_output("late", uid="late")
    late.collect(uid="late-out", parallelism=1)
    counted.collect(uid="out")

    with pytest.raises(Rejected, match="'late' runs with 'n', whose output it reads"):
        late.parallelism(2)
    graph = env.build().graph
    assert graph.vertex(Uid("n")).nodes == ("n", "late")
    assert graph.vertex(Uid("late-out")).parallelism == 1


def test_parallelism_is_set_on_an_operator_and_not_on_an_exchange() -> None:
    stream = Environment().from_rows(ROWS, ORDERS, uid="orders")

    with pytest.raises(Rejected, match="Call parallelism\\(\\) directly behind 'orders'"):
        stream.rebalance().parallelism(2)


def test_a_sink_that_overwrites_gets_the_rows_of_a_key_in_order() -> None:
    env = Environment()
    orders = env.from_rows(ROWS, ORDERS, uid="orders", timestamp_column="at")
    totals = orders.key_by("product").aggregate(n=count(), uid="n")
    hashes = RedisHashes("redis://localhost", "totals", pipeline="p", keys=["product"])
    totals.sink(hashes, uid="out", parallelism=3)

    edge = env.build().graph.vertex(Uid("out")).inputs[0]

    assert (edge.kind, edge.hash_by) == (EdgeKind.HASH, ("product",))


def test_a_changelog_keeps_its_order_or_its_reader_is_refused() -> None:
    def read_at(own: int | None) -> None:
        env = Environment()
        changes(env).as_records(uid="records").parallelism(own or 2).collect(uid="out")
        env.build()

    read_at(1)
    with pytest.raises(Rejected, match="'records' reads the changelog of 'newest' at another"):
        read_at(2)


def changes(env: Environment) -> Stream:
    orders = env.from_rows(ROWS, ORDERS, uid="orders", timestamp_column="at")
    return orders.key_by("product").deduplicate(keep="last", order_by="at", uid="newest")


def pairs(rows: list[dict]) -> list[tuple[str, int]]:
    return sorted((row["product"], row["number"]) for row in rows)


def stopped(root: Path, pipeline: Pipeline, parallelism: int) -> LocalResult:
    """Stops a run with a savepoint in the middle of the input; its time advances by turns."""
    spec = local_spec(root, parallelism, None, None)
    return host(root, spec, pipeline, FastTime(), stop_after=timedelta(milliseconds=STOP_MS))
