"""A stream knows if it takes rows back; an operator that would misread that is refused."""

from collections.abc import Callable
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from pipelines.connectors import BlackHole
from pipelines.connectors.in_process import Collect
from pipelines.connectors.redis.hashes import RedisHashes
from pipelines.connectors.sink import Sink
from pipelines.connectors.sql.upsert import SqlUpsert
from pipelines.domain.errors import Rejected
from pipelines.domain.ids import Uid
from pipelines.operators.aggregating.aggregates import Aggregate
from pipelines.operators.processing.process import BatchProcessFunction
from pipelines.stream import (
    Environment,
    Stream,
    count,
    count_distinct,
    max,
    min,
    tumbling,
)

LEFT = pa.schema([("key", pa.string()), ("x", pa.int64())])
RIGHT = pa.schema([("key", pa.string()), ("y", pa.int64())])
UPSERT = SqlUpsert("sqlite:////tmp/t.sqlite", "t", ("key",), pipeline="p")
HASHES = RedisHashes("redis://localhost", "t", ("key",), pipeline="p")
WITHOUT_KIND = pa.schema([("key", pa.string())])


@pytest.mark.parametrize(("how", "expected"), [("inner", False), ("left", True), ("full", True)])
def test_a_join_without_a_window_is_a_changelog_unless_it_is_inner(
    how: str, expected: bool
) -> None:
    assert joined(how).is_changelog is expected


@pytest.mark.parametrize(
    "pass_on",
    [
        lambda s: s.filter(pc.field("x") > 0, uid="next"),
        lambda s: s.filter_rows(lambda row: True, uid="next"),
        lambda s: s.map(lambda row: row, s.schema, uid="next"),
        lambda s: s.flat_map(lambda row: [row], s.schema, uid="next"),
        lambda s: s.map_batches(lambda batch: batch, s.schema, uid="next"),
        lambda s: s.union(s, uid="next"),
        lambda s: s.rebalance(),
        lambda s: s.sink(Collect(), uid="next"),
    ],
)
def test_row_by_row_operators_pass_a_changelog_on(pass_on: Callable[[Stream], Stream]) -> None:
    assert pass_on(joined("left")).is_changelog


@pytest.mark.parametrize(
    "read",
    [
        lambda s: s.distinct("key", uid="next"),
        lambda s: s.key_by("key").top_n(2, order_by="x", uid="next"),
        lambda s: s.key_by("key").deduplicate(uid="next"),
        lambda s: s.key_by("key").process(BatchProcessFunction(), WITHOUT_KIND, uid="next"),
        lambda s: s.process(BatchProcessFunction(), WITHOUT_KIND, uid="next"),
        lambda s: s.map(lambda row: row, WITHOUT_KIND, uid="next"),
        lambda s: s.map_batches(lambda batch: batch, WITHOUT_KIND, uid="next"),
        lambda s: s.connect(s).map_batches(lambda b: b, lambda b: b, s.schema, uid="next"),
        lambda s: s.union(s.as_records(uid="records"), uid="next"),
        lambda s: s.join(other(s), on=["key"], uid="next"),
        lambda s: other(s).join(s, on=["key"], uid="next"),
        lambda s: s.sink(Newest(), uid="next"),
    ],
)
def test_an_operator_that_would_count_retracted_rows_is_refused_by_uid(
    read: Callable[[Stream], object],
) -> None:
    with pytest.raises(Rejected, match=r"'next' cannot be built: .* is a changelog|'next'.*unites"):
        read(joined("left"))


class Newest(BlackHole):
    """An author's sink that keeps the newest row of each key."""

    keys = ("key",)


@pytest.mark.parametrize("sink", [UPSERT, HASHES])
def test_an_upserting_sink_applies_a_changelog_partitioned_by_its_keys(sink: Sink) -> None:
    stream = joined("left").filter(pc.field("x") > 0, uid="filtered").sink(sink, uid="out")

    pipeline = stream.environment.build()

    assert pipeline.sinks[Uid("out")] == replace(sink, applies_changes=True)
    assert pipeline.graph.node(Uid("out")).inputs[0].hash_by == ("key",)


@pytest.mark.parametrize("sink", [UPSERT, HASHES])
def test_a_sink_reads_records_of_changes_as_they_are(sink: Sink) -> None:
    stream = joined("left").as_records(uid="records").sink(sink, uid="out")

    assert stream.environment.build().sinks[Uid("out")] == sink


def test_a_sink_without_the_key_of_its_changelog_is_refused_with_a_remedy() -> None:
    sink = SqlUpsert("sqlite://", "t", ("x",), pipeline="p")

    with pytest.raises(Rejected, match=r"'out' .* key \(key\), and .* lack 'key'.* Add the column"):
        joined("left").sink(sink, uid="out")


@pytest.mark.parametrize(
    "unordered",
    [
        lambda s: s.rebalance().filter(pc.field("x") > 0, uid="dealt"),
        lambda s: s.broadcast().filter(pc.field("x") > 0, uid="dealt"),
        lambda s: s.union(of_other_key(s), uid="united"),
    ],
)
def test_a_changelog_without_an_order_is_refused_by_a_sink_that_applies_it(
    unordered: Callable[[Stream], Stream],
) -> None:
    with pytest.raises(Rejected, match=r"'out' cannot be built: .* come in no order"):
        unordered(joined("left")).sink(UPSERT, uid="out")


def test_a_changelog_that_is_rebalanced_right_before_its_sink_keeps_its_order() -> None:
    stream = joined("left").rebalance().sink(UPSERT, uid="out")

    assert stream.environment.build().graph.node(Uid("out")).inputs[0].hash_by == ("key",)


@pytest.mark.parametrize("total", [max("x"), min("x"), count_distinct("x"), count_distinct("key")])
def test_aggregates_that_keep_values_read_a_changelog_and_give_running_totals(
    total: Aggregate,
) -> None:
    totals = joined("left").key_by("key").aggregate(total=total, n=count(), uid="totals")

    assert (totals.is_changelog, totals.schema.names) == (False, ["key", "total", "n"])
    with pytest.raises(Rejected, match="replace earlier ones of their key"):
        totals.key_by("key").aggregate(n=count(), uid="next")


def test_changes_can_be_read_as_records() -> None:
    records = joined("left").as_records(uid="records")

    counted = records.key_by("key").aggregate(changes=count(), uid="changes")

    assert (records.is_changelog, counted.is_changelog) == (False, False)
    assert records.schema.names == ["key", "x", "y", "row_kind"]


def test_an_append_only_stream_needs_no_row_kind_column() -> None:
    events = joined("inner")

    mapped = events.map(lambda row: row, WITHOUT_KIND, uid="mapped")

    assert not mapped.is_changelog


def test_late_rows_of_a_window_are_no_changelog() -> None:
    env = Environment()
    schema = pa.schema([("key", pa.string()), ("at", pa.timestamp("ms", "UTC"))])
    events = env.from_rows([], schema, uid="events", timestamp_column="at")
    window = tumbling(minutes=1)

    counted = events.key_by("key").window(window).aggregate(n=count(), uid="counted")

    assert not counted.side_output("late", uid="late").is_changelog


def joined(how: str) -> Stream:
    env = Environment()
    left = env.from_rows([], LEFT, uid="left")
    return left.join(env.from_rows([], RIGHT, uid="right"), on=["key"], how=how, uid="joined")


def of_other_key(stream: Stream) -> Stream:
    """Returns a changelog with the same columns whose changes are ordered by another key."""
    environment = stream.environment
    left = environment.from_rows([], LEFT, uid="left-2")
    right = environment.from_rows([], RIGHT, uid="right-2")
    every = left.join(right, on=["key"], uid="pairs")
    top = every.key_by("x").top_n(1, order_by="y", uid="top")
    return top.map(lambda row: row, stream.schema, uid="mapped")


def other(stream: Stream) -> Stream:
    schema = pa.schema([("key", pa.string()), ("z", pa.int64())])
    return stream.environment.from_rows([], schema, uid="other")
