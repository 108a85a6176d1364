"""The write-ahead base: a segment is published once, whole, and only for its completion."""

import pyarrow as pa
import pytest

from pipelines.connectors.sink import Segment, SinkContext
from pipelines.connectors.write_ahead import WriteAheadWriter
from pipelines.domain.errors import InvariantViolated
from pipelines.domain.ids import Attempt, CheckpointId, RunId, Uid
from tests.contracts.fake_sinks import FakeLogSink, FakeLogTarget
from tests.contracts.sink_host import SCHEMA, records

FIRST, SECOND = CheckpointId(1), CheckpointId(2)


def test_nothing_is_published_before_the_commit() -> None:
    sink = FakeLogSink()
    writer = writer_of(sink)
    writer.write(records([1, 2]))

    writer.prepare(FIRST)

    assert sink.visible() == []


def test_a_segment_is_published_once_however_often_and_by_whomever_it_is_committed() -> None:
    sink = FakeLogSink()
    first = writer_of(sink)
    first.write(records([1, 2]))
    segments = first.prepare(FIRST)
    first.commit(FIRST, segments)

    first.commit(FIRST, segments)
    writer_of(sink, subtask=1, attempt=2).commit(FIRST, segments)

    assert sink.visible() == [1, 2]


def test_each_interval_is_a_segment_of_its_own() -> None:
    sink = FakeLogSink()
    writer = writer_of(sink)
    writer.write(records([1]))
    first = writer.prepare(FIRST)
    writer.write(records([2]))
    second = writer.prepare(SECOND)

    writer.commit(FIRST, first)

    assert sink.visible() == [1]
    writer.commit(SECOND, second)
    assert sink.visible() == [1, 2]


def test_a_segment_says_whose_interval_it_is_and_how_many_records_it_has() -> None:
    writer = writer_of(FakeLogSink(), subtask=1)
    writer.write(records([1, 2]))
    writer.write(records([3]))

    (segment,) = writer.prepare(FIRST)

    assert isinstance(segment, Segment)
    assert segment.rows == 3
    assert segment.marker == {"run_id": "run-1", "uid": "out", "subtask": 1, "checkpoint_id": 1}


@pytest.mark.parametrize("batches", [[], [records([])]])
def test_an_interval_without_records_is_no_segment(batches: list[pa.RecordBatch]) -> None:
    writer = writer_of(FakeLogSink())
    for batch in batches:
        writer.write(batch)

    assert writer.prepare(FIRST) == []


def test_what_was_not_prepared_is_dropped_when_the_writer_closes() -> None:
    writer = writer_of(FakeLogSink())
    writer.write(records([1]))

    writer.close()

    assert writer.prepare(FIRST) == []


def test_anything_but_a_segment_is_refused_rather_than_passed_over() -> None:
    with pytest.raises(InvariantViolated, match="consists of segments, not 'file'"):
        writer_of(FakeLogSink()).commit(FIRST, ["file"])


def writer_of(sink: FakeLogSink, *, subtask: int = 0, attempt: int = 1) -> WriteAheadWriter:
    context = SinkContext(RunId("run-1"), Attempt(attempt), Uid("out"), subtask, 2)
    sink.open(context, SCHEMA)
    return WriteAheadWriter(FakeLogTarget(sink, context), context)
