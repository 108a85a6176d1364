"""A stream knows if it takes rows back, and an operator that would read that wrong is refused."""

from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from pipelines.connectors.in_process import Collect
from pipelines.connectors.redis.hashes import RedisHashes
from pipelines.connectors.sql.upsert import SqlUpsert
from pipelines.domain.errors import Rejected
from pipelines.operators.processing.process import BatchProcessFunction
from pipelines.stream import Environment, Stream, count, max, min, tumbling

LEFT = pa.schema([("key", pa.string()), ("x", pa.int64())])
RIGHT = pa.schema([("key", pa.string()), ("y", pa.int64())])
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
def test_what_works_row_by_row_passes_a_changelog_on(pass_on: Callable[[Stream], Stream]) -> None:
    assert pass_on(joined("left")).is_changelog


@pytest.mark.parametrize(
    "read",
    [
        lambda s: s.key_by("key").aggregate(highest=max("x"), uid="next"),
        lambda s: s.key_by("key").aggregate(lowest=min("x"), n=count(), uid="next"),
        lambda s: s.key_by("key").process(BatchProcessFunction(), WITHOUT_KIND, uid="next"),
        lambda s: s.process(BatchProcessFunction(), WITHOUT_KIND, uid="next"),
        lambda s: s.map(lambda row: row, WITHOUT_KIND, uid="next"),
        lambda s: s.map_batches(lambda batch: batch, WITHOUT_KIND, uid="next"),
        lambda s: s.connect(s).map_batches(lambda b: b, lambda b: b, s.schema, uid="next"),
        lambda s: s.union(s.as_records(uid="records"), uid="next"),
        lambda s: s.join(other(s), on=["key"], uid="next"),
        lambda s: other(s).join(s, on=["key"], uid="next"),
        lambda s: s.sink(SqlUpsert("sqlite://", "t", ("key",), pipeline="p"), uid="next"),
        lambda s: s.sink(RedisHashes("redis://", "t", ("key",), pipeline="p"), uid="next"),
    ],
)
def test_what_would_count_a_row_that_is_taken_back_is_refused_by_uid(
    read: Callable[[Stream], object],
) -> None:
    with pytest.raises(Rejected, match=r"'next' cannot be built: .* is a changelog|'next'.*unites"):
        read(joined("left"))


def test_changes_can_be_read_as_records() -> None:
    records = joined("left").as_records(uid="records")

    counted = records.key_by("key").aggregate(changes=count(), uid="changes")

    assert (records.is_changelog, counted.is_changelog) == (False, False)
    assert records.schema.names == ["key", "x", "y", "row_kind"]


def test_a_stream_that_only_adds_rows_needs_no_kind() -> None:
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


def other(stream: Stream) -> Stream:
    schema = pa.schema([("key", pa.string()), ("z", pa.int64())])
    return stream.environment.from_rows([], schema, uid="other")
