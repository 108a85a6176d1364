"""A pipeline in this process: its result, its failures, and a start from a savepoint."""

import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

from pipelines.bus.lease import Lease
from pipelines.connectors import ArrowRows, SeededGenerator
from pipelines.domain.errors import Rejected
from pipelines.domain.run import RunDirectory
from pipelines.domain.status import JobStatus
from pipelines.flows.finding import VARIABLE
from pipelines.local import RunFailed, run_local
from pipelines.local.view import authors_part
from pipelines.runtime.master.driving import drive
from pipelines.stream import Environment, Flow, Pipeline, count, flow, sum, tumbling
from tests.unit.runtime.points import RUN, spec_of

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
ORDERS = [
    {"product": "abc"[number % 3], "price": number, "at": BEGIN + timedelta(seconds=number)}
    for number in range(300)
]
WINDOWS = [
    {"product": product, "window_start": BEGIN + timedelta(minutes=minute), "orders": 20}
    for minute in range(5)
    for product in "abc"
]


def totals(*, splits: int = 1) -> Pipeline:
    env = Environment()
    orders = env.from_rows(ORDERS, uid="orders", timestamp_column="at", splits=splits)
    windows = orders.key_by("product").window(tumbling(minutes=1))
    windows.aggregate(orders=count(), uid="windows").collect(uid="windows-out")
    orders.key_by("product").aggregate(price=sum("price"), uid="sums").collect(uid="sums-out")
    return env.build()


@pytest.mark.parametrize(("parallelism", "splits"), [(1, 1), (2, 3), (3, 2)])
def test_the_result_has_the_rows_of_each_collect(parallelism: int, splits: int) -> None:
    result = run_local(totals(splits=splits), parallelism=parallelism)

    found = sorted(result.rows("windows-out"), key=lambda r: (r["window_start"], r["product"]))
    assert found == WINDOWS
    assert result.status is JobStatus.FINISHED
    newest = {row["product"]: row["price"] for row in result.rows("sums-out")}
    assert newest == {product: builtin_sum(product) for product in "abc"}


@pytest.mark.parametrize("first", [0, 1])
def test_a_record_without_event_time_is_named_with_its_column(first: int) -> None:
    """The record is alone in its batch, or comes after others."""
    env = Environment()
    rows = [*ORDERS[:first], {"product": "a", "price": 1, "at": None}, *ORDERS[first:]]
    schema = pa.schema(
        [("product", pa.string()), ("price", pa.int64()), ("at", pa.timestamp("ms", tz="UTC"))]
    )
    source = ArrowRows(pa.Table.from_pylist(rows, schema), "at", batch_rows=first + 1)
    orders = env.source(source, uid="orders").key_by("product").window(tumbling(minutes=1))
    orders.aggregate(orders=count(), uid="windows").collect(uid="out")

    with pytest.raises(RunFailed, match=rf"offset {first} of rows-0 has no at: no event time. Lea"):
        run_local(env.build())


def test_the_result_is_arrow_and_empty_when_no_rows_arrived() -> None:
    env = Environment()
    env.from_rows([], pa.schema([("n", pa.int64())]), uid="numbers").collect(uid="out")

    table = run_local(env.build()).table()

    assert table.schema == pa.schema([("n", pa.int64())])
    assert table.num_rows == 0


def test_a_result_is_selected_by_the_uid_of_its_collect() -> None:
    result = run_local(totals())

    with pytest.raises(Rejected, match=r"Name the collect .* 'windows-out', 'sums-out'"):
        result.table()
    with pytest.raises(Rejected, match=r"There is no collect 'sums'; there are: 'windows-out'"):
        result.table("sums")


def test_a_second_run_of_the_same_pipeline_starts_with_nothing_collected() -> None:
    pipeline = totals()

    first, second = run_local(pipeline), run_local(pipeline)

    assert first.table("windows-out").num_rows == second.table("windows-out").num_rows == 15


def test_an_authors_exception_ends_the_run_with_the_traceback() -> None:
    env = Environment()

    def digest(row: dict[str, object]) -> dict[str, object]:
        raise ValueError(f"{row['n']} cannot be digested")

    numbers = env.from_rows([{"n": 7}], uid="numbers")
    numbers.map(digest, numbers.schema, uid="digest").collect(uid="out")

    with pytest.raises(RunFailed) as failure:
        run_local(env.build())

    assert "7 cannot be digested" in str(failure.value).splitlines()[0]
    assert "in digest" in str(failure.value)


def test_a_failure_deep_in_a_chain_shows_the_authors_traceback() -> None:
    def digest(row: dict[str, object]) -> dict[str, object]:
        raise ValueError("cannot be digested")

    env, schema = Environment(), pa.schema([("n", pa.int64())])
    numbers = env.from_rows([{"n": 7}], uid="numbers").key_by("n").aggregate(n2=count(), uid="all")
    numbers.map(digest, schema, uid="digest").collect(uid="out")

    with pytest.raises(RunFailed) as failure:
        run_local(env.build())

    assert 'raise ValueError("cannot be digested")' in authors_part(str(failure.value))
    assert "in digest" in authors_part(str(failure.value))
    assert "chain_delivery.py" not in authors_part(str(failure.value))


def test_a_restart_strategy_resumes_the_run_exactly_once() -> None:
    env, failures = Environment(), ["away"]

    def fail_once(batch: pa.RecordBatch) -> pa.RecordBatch:
        if failures:
            raise OSError(f"the service is {failures.pop()}")
        return batch

    numbers = env.from_rows([{"n": n} for n in range(100)], uid="numbers")
    numbers.map_batches(fail_once, numbers.schema, uid="digest").collect(uid="out")
    restarts = {
        "restart-strategy.type": "fixed-delay",
        "restart-strategy.fixed-delay.attempts": "3",
        "restart-strategy.fixed-delay.delay": "0",
    }

    result = run_local(env.build(), settings=restarts)

    assert sorted(row["n"] for row in result.rows()) == list(range(100))
    assert ["the service is away" in each for each in result.failures] == [True]


def test_an_endless_source_stops_with_a_savepoint_that_another_run_resumes(
    tmp_path: Path,
) -> None:
    def endless() -> Pipeline:
        env = Environment()
        schema = pa.schema([("n", pa.int64())])
        numbers = SeededGenerator(
            lambda draws: [pa.array(draws.offsets)], schema=schema, seed=1, splits=1, batch_rows=10
        )
        env.source(numbers, uid="numbers").collect(uid="out")
        return env.build()

    first = run_local(endless(), directory=tmp_path, stop_after=timedelta(milliseconds=50))
    second = run_local(
        endless(),
        directory=tmp_path,
        restore_from=first.savepoint,
        stop_after=timedelta(milliseconds=50),
    )

    both = [row["n"] for row in first.rows()] + [row["n"] for row in second.rows()]
    assert both == list(range(len(both)))
    assert min(first.table().num_rows, second.table().num_rows) > 0


def test_a_declared_pipeline_is_built_with_its_parameters() -> None:
    result = run_local(DECLARED, parameters={})

    assert result.rows() == [{"n": 1}]
    with pytest.raises(Rejected, match="A built pipeline takes no parameters"):
        run_local(totals(), parameters={"n": "1"})


def test_print_shows_each_row(capsys: pytest.CaptureFixture[str]) -> None:
    env = Environment()
    env.from_rows([{"n": 1}, {"n": 2}], uid="numbers").print(uid="shown", prefix="> ")

    run_local(env.build())

    assert capsys.readouterr().out == "> {'n': 1}\n> {'n': 2}\n"


def test_times_of_any_unit_become_event_time_and_other_values_are_refused() -> None:
    env = Environment()

    naive = env.from_rows([{"at": datetime(2026, 1, 1)}], uid="naive", timestamp_column="at")

    assert naive.schema.field("at").type == pa.timestamp("ms", tz="UTC")
    with pytest.raises(Rejected, match="The event time column at must be"):
        env.from_rows([{"at": "noon"}], uid="text", timestamp_column="at")
    with pytest.raises(Rejected, match="The rows do not fit one schema"):
        env.from_rows([{"n": "x"}], pa.schema([("n", pa.int64())]), uid="odd")
    with pytest.raises(Rejected, match="have no schema; give one"):
        env.from_rows([], uid="none")


def test_a_run_with_its_own_slots_refuses_a_collect_by_uid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, f"one={__name__}:DECLARED")
    monkeypatch.setitem(sys.modules, __name__, sys.modules[__name__])
    spec = spec_of(pipeline="one", parameters={}, settings={})
    directory = RunDirectory.of(tmp_path / "jobs", spec.pipeline, RUN)

    with Lease.acquire(directory) as lease:
        directory.spec_file.write_bytes(msgspec.json.encode(spec))
        status = drive(directory, lease, nowhere)

    assert status is JobStatus.FAILED
    assert b"The sink 'out' collects rows in one process" in directory.journal_file.read_bytes()


@pytest.mark.slow
def test_run_local_needs_neither_dashboard_nor_spark_nor_java() -> None:
    program = """
import sys
for name in ("django", "celery", "pyspark", "py4j", "ftdash"):
    sys.modules[name] = None
from pipelines.local import run_local
from pipelines.stream import Environment
env = Environment()
env.from_rows([{"n": 1}], uid="numbers").collect(uid="out")
print(run_local(env.build()).rows())
"""

    ran = subprocess.run(
        [sys.executable, "-c", program],
        env={"PATH": "/nowhere"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )

    assert (ran.stdout, ran.stderr) == ("[{'n': 1}]\n", "")


def declared(env: Environment) -> None:
    """Emits one number."""
    env.from_rows([{"n": 1}], uid="numbers").collect(uid="out")


DECLARED: Flow = flow(declared)


def builtin_sum(product: str) -> int:
    total = 0
    for order in ORDERS:
        total += order["price"] if order["product"] == product else 0  # type: ignore[operator]
    return total


def nowhere(*_: object) -> None:
    raise AssertionError("nothing is started")
