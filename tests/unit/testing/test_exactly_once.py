"""A pipeline commits the same with and without kills; the check finds one that does not."""

import re
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from pipelines.connectors import BlackHole
from pipelines.connectors.in_process import CollectWriter
from pipelines.domain.errors import Rejected
from pipelines.domain.faults import FaultPoint
from pipelines.stream import (
    Environment,
    KeyedProcessFunction,
    Pipeline,
    RowContext,
    RuntimeContext,
    ValueStateDescriptor,
    count,
    tumbling,
)
from pipelines.testing import assert_exactly_once, run_with_kills

DOCUMENTATION = Path(__file__).parents[3] / "docs/how-to/test-pipelines.md"
ORDERS = pa.schema([("product", pa.string()), ("at", pa.timestamp("ms", tz="UTC"))])
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
ROWS = [{"product": "abcd"[n % 4], "at": BEGIN + timedelta(seconds=n)} for n in range(400)]
NUMBERED = pa.schema([("product", pa.string()), ("number", pa.int64())])


def per_minute() -> Pipeline:
    env = Environment()
    orders = env.from_rows([], ORDERS, uid="orders", timestamp_column="at")
    counted = orders.key_by("product").window(tumbling(minutes=1)).aggregate(n=count(), uid="n")
    counted.sink(BlackHole(), uid="out")
    return env.build()


@pytest.mark.parametrize("seed", range(8))
def test_a_windowed_aggregation_survives_kills(seed: int) -> None:
    assert_exactly_once(per_minute(), ROWS, kills=seed)


def test_an_authors_test_takes_ten_lines_and_two_seconds() -> None:
    """Measures processor time, which other work on the machine lengthens least."""
    documented = re.search(r"```python\n(.*?)```", DOCUMENTATION.read_text(), re.DOTALL)

    began_s = time.process_time()
    assert_exactly_once(per_minute(), ROWS, kills=7)

    assert time.process_time() - began_s < 2
    assert documented is not None
    assert "assert_exactly_once" in documented[1]
    assert len([line for line in documented[1].splitlines() if line]) <= 10


@pytest.mark.parametrize("point", FaultPoint)
def test_processes_die_at_every_named_point(point: FaultPoint) -> None:
    points = [point]
    if point in RECOVERING:  # a run passes them only after another failure
        points.append(FaultPoint.UPLOADED)

    run = run_with_kills(per_minute(), ROWS, kills=1, kill_count=2, points=points)

    assert run.kills or point in (FaultPoint.ALIGNING, *RECOVERING)
    assert sum_of(run.table(), "n") == len(ROWS)


def test_the_same_seed_gives_the_same_run() -> None:
    one, other = (run_with_kills(per_minute(), ROWS, kills=5) for _ in range(2))

    assert one.kills == other.kills
    assert one.table().equals(other.table())
    assert run_with_kills(per_minute(), ROWS, kills=6).kills != one.kills


def test_state_outside_of_the_engine_is_found() -> None:
    class Numbering(KeyedProcessFunction):
        """Numbers the orders from a variable that no checkpoint contains; its state is unused."""

        def open(self, runtime: RuntimeContext) -> None:
            self._seen = runtime.get_state(ValueStateDescriptor("seen", pa.int64()))
            self._unsaved = 0

        def process_element(self, row: dict, context: RowContext) -> Iterator[dict]:
            self._unsaved += 1
            yield {"product": row["product"], "number": self._unsaved}

    env = Environment()
    orders = env.from_rows([], ORDERS, uid="orders", timestamp_column="at")
    orders.key_by("product").process(Numbering(), NUMBERED, uid="n").collect(uid="out")

    with pytest.raises(AssertionError, match=r"With the seed 3 \(killed at .* 'out' lacks"):
        assert_exactly_once(env.build(), ROWS, kills=3, parallelism=1)


def test_a_sink_that_commits_twice_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    commit = CollectWriter.commit

    def doubling(writer: CollectWriter, checkpoint_id: int, committables: list) -> None:
        commit(writer, checkpoint_id, committables)
        for key, batches in list(writer._segments.items()):
            if writer._context.attempt > 1 and key[1] == checkpoint_id:
                writer._segments[key[0], checkpoint_id, key[2] + 100] = batches

    monkeypatch.setattr(CollectWriter, "commit", doubling)

    with pytest.raises(AssertionError, match="has too often"):
        assert_exactly_once(per_minute(), ROWS, kills=1)


def test_a_sink_that_overwrites_is_compared_by_its_newest_rows() -> None:
    env = Environment()
    orders = env.from_rows([], ORDERS, uid="orders", timestamp_column="at")
    orders.key_by("product").aggregate(n=count(), uid="n").collect(uid="out")

    assert_exactly_once(env.build(), ROWS, kills=2, newest_by={"out": ["product"]})


def test_the_rows_go_to_the_named_source() -> None:
    assert_exactly_once(per_minute(), {"orders": ROWS}, kills=1, kill_count=1)

    with pytest.raises(Rejected, match="There is no source 'order'; there are: 'orders'"):
        run_with_kills(per_minute(), {"order": ROWS}, kills=1)
    with pytest.raises(Rejected, match="The rows of 'orders' have other columns"):
        run_with_kills(per_minute(), pa.table({"n": [1]}), kills=1)
    two = Environment()
    for uid in ("a", "b"):
        two.from_rows([{"n": 1}], uid=uid).collect(uid=f"{uid}-out")
    with pytest.raises(Rejected, match="Give the rows of each source by its uid"):
        run_with_kills(two.build(), [{"n": 1}], kills=1)


def test_a_run_without_a_kill_proves_nothing() -> None:
    env = Environment()
    env.from_rows([], ORDERS, uid="orders").collect(uid="out")

    with pytest.raises(AssertionError, match="no process was killed; give more rows"):
        assert_exactly_once(env.build(), ROWS, kills=1, points=[FaultPoint.ALIGNING])


def test_a_pipeline_that_commits_nothing_proves_nothing() -> None:
    env = Environment()
    orders = env.from_rows([], ORDERS, uid="orders", timestamp_column="at")
    orders.filter_rows(lambda row: False, uid="none").collect(uid="out")

    with pytest.raises(AssertionError, match="No sink committed a row, also without kills"):
        assert_exactly_once(env.build(), ROWS, kills=1)


def test_an_unknown_sink_is_refused_by_name() -> None:
    with pytest.raises(Rejected, match="There is no sink 'outs'; there are: 'out'"):
        assert_exactly_once(per_minute(), ROWS, kills=1, newest_by={"outs": ["product"]})


RECOVERING = (FaultPoint.RESTARTING,)


def sum_of(table: pa.Table, column: str) -> int:
    return sum(table.column(column).to_pylist())
