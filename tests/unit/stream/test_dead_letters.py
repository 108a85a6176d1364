"""Records that a source cannot decode leave by a side output, each once, even under kills."""

from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest

from pipelines.connectors import BlackHole, JsonValues, KafkaAddress, KafkaTopics
from pipelines.connectors.dead_letters import COLUMN, LETTER, DeadLetter, with_letters
from pipelines.connectors.watermark_strategy import BoundedOutOfOrderness, WatermarkStrategy
from pipelines.domain.errors import Rejected
from pipelines.runtime.subtask.sources.split_reading import OpenSplit, Taken
from pipelines.stream import Environment, Pipeline, count, tumbling
from pipelines.testing import run_with_kills

ORDERS = pa.schema([("n", pa.int64()), ("at", pa.timestamp("ms", tz="UTC"))])
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
KAFKA = KafkaAddress("kafka.example:9092")


def orders_of(env: Environment) -> Pipeline:
    topics = KafkaTopics(
        KAFKA,
        ("orders",),
        format=JsonValues(ORDERS),
        timestamp_column="at",
        dead_letters=True,
    )
    orders = env.source(topics, uid="orders")
    orders.side_output("dead_letters", uid="letters").sink(BlackHole(), uid="bad")
    per_minute = orders.key_by("n").window(tumbling(minutes=1)).aggregate(rows=count(), uid="n")
    per_minute.sink(BlackHole(), uid="counted")
    orders.sink(BlackHole(), uid="good")
    return env.build()


@pytest.mark.parametrize("seed", range(6))
def test_each_record_reaches_only_one_of_the_outputs_once_under_kills(seed: int) -> None:
    run = run_with_kills(orders_of(Environment()), mixed_rows(), kills=seed)

    assert run.kills
    letters = run.table("bad")
    assert letters.schema == LETTER
    assert sorted(letters["offset"].to_pylist()) == [n for n in range(400) if n % 7 == 0]
    assert sorted(run.table("good")["n"].to_pylist()) == [n for n in range(400) if n % 7]
    assert run.table("good").schema == ORDERS
    assert sum(run.table("counted")["rows"].to_pylist()) > 0


def test_letters_that_nothing_reads_are_refused_when_the_pipeline_is_built() -> None:
    env = Environment()
    topics = KafkaTopics(KAFKA, ("orders",), format=JsonValues(ORDERS), dead_letters=True)
    env.source(topics, uid="orders").sink(BlackHole(), uid="good")

    with pytest.raises(Rejected, match=r"'orders' keeps dead letters, and nothing reads them\. Re"):
        env.build()


def test_a_parallelism_applies_to_the_source_and_to_the_separating_step() -> None:
    env = Environment()
    topics = KafkaTopics(KAFKA, ("orders",), format=JsonValues(ORDERS), dead_letters=True)
    orders = env.source(topics, uid="orders").parallelism(2)
    orders.side_output("dead_letters", uid="letters").sink(BlackHole(), uid="bad")
    orders.sink(BlackHole(), uid="good")

    graph = env.build().graph

    assert graph.own_parallelisms == {"orders": 2, "orders-decoded": 2, "letters": 2}


def test_a_source_without_dead_letters_has_no_such_side_output() -> None:
    topics = KafkaTopics(KAFKA, ("orders",), format=JsonValues(ORDERS))
    orders = Environment().source(topics, uid="orders")

    with pytest.raises(Rejected, match="'orders' has no side output 'dead_letters'"):
        orders.side_output("dead_letters", uid="letters")


def test_a_column_with_the_name_of_the_dead_letter_column_is_refused() -> None:
    taken = ORDERS.append(pa.field(COLUMN, pa.binary()))

    with pytest.raises(Rejected, match="holds the dead letters of a source; rename yours"):
        KafkaTopics(KAFKA, ("orders",), format=JsonValues(taken), dead_letters=True)


def test_a_dead_letter_does_not_advance_event_time() -> None:
    generator = BoundedOutOfOrderness(0, None)
    split = OpenSplit(
        index=0,
        name="orders-0",
        next_offset=0,
        batches=iter(()),
        generator=generator,
        strategy=WatermarkStrategy(),
        time_column="at",
    )

    split.on_handed_out(Taken(rows_between(0, 1)))
    assert (split.next_offset, generator.watermark_ms()) == (1, None)
    split.on_handed_out(Taken(rows_between(1, 8)))

    latest = BEGIN + timedelta(seconds=6)  # record 7 is a dead letter
    assert (split.next_offset, generator.watermark_ms()) == (8, latest.timestamp() * 1000 - 1)


def mixed_rows() -> pa.Table:
    return pa.Table.from_batches([rows_between(0, 400)])


def rows_between(begin: int, end: int) -> pa.RecordBatch:
    """Returns rows in which every seventh is a dead letter."""
    numbers = range(begin, end)
    good = [{"n": n, "at": BEGIN + timedelta(seconds=n)} for n in numbers if n % 7]
    letters = {n - begin: letter(n) for n in numbers if n % 7 == 0}
    return with_letters(pa.RecordBatch.from_pylist(good, schema=ORDERS), letters, end - begin)


def letter(offset: int) -> DeadLetter:
    return DeadLetter(
        topic="orders",
        partition=0,
        offset=offset,
        at_ms=None if offset % 2 else offset,
        key=b"\xff" if offset % 2 else None,
        value=b"oops",
        error="The record is malformed.",
    )
