"""The write-ahead base: a segment is published once, whole, and only for its completion."""

from collections.abc import Iterable

import pyarrow as pa
import pytest

from pipelines.connectors.sink import Segment, SinkContext
from pipelines.connectors.sink_bases import Marker, MarkerLost, WriteAheadWriter
from pipelines.domain.errors import InvariantViolated, OutputLost, Retryable
from pipelines.domain.ids import Attempt, CheckpointId, RunId, Uid
from pipelines.domain.snapshots import Json
from tests.contracts.fake_sinks import FakeLogSink, FakeLogTarget
from tests.contracts.sink_host import SCHEMA, records

FIRST, SECOND = CheckpointId(1), CheckpointId(2)


def test_nothing_is_published_before_the_commit() -> None:
    sink = FakeLogSink()
    writer = writer_of(sink)
    writer.write(records([1, 2]))

    writer.prepare(FIRST)

    assert sink.visible() == []


def test_a_segment_is_published_once_by_any_number_of_commits_and_writers() -> None:
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


def test_a_segment_names_its_interval_and_its_number_of_records() -> None:
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


def test_closing_the_writer_drops_unprepared_records() -> None:
    writer = writer_of(FakeLogSink())
    writer.write(records([1]))

    writer.close()

    assert writer.prepare(FIRST) == []


def test_a_commit_refuses_anything_but_segments() -> None:
    with pytest.raises(InvariantViolated, match="consists of segments, not 'file'"):
        writer_of(FakeLogSink()).commit(FIRST, ["file"])


@pytest.mark.parametrize(("attempt", "seen"), [(1, [0, 3]), (2, [2, 3])])
def test_a_segment_records_the_last_checkpoint_seen_at_the_target(
    attempt: int, seen: list[int]
) -> None:
    target = ForgetfulTarget(FakeLogSink())
    writer = WriteAheadWriter(target, context_of(attempt))
    afters = []
    for checkpoint_id in map(CheckpointId, (3, 4)):
        writer.write(records([1]))
        segments = writer.prepare(checkpoint_id)
        afters.append(segments[0].marker["after"])  # type: ignore[union-attr,index,call-overload]
        writer.commit(checkpoint_id, segments)

    assert afters == seen
    assert target.asked == 1, "it was seen since"


def test_a_first_attempt_asks_the_target_before_it_can_go_away() -> None:
    target = ForgetfulTarget(FakeLogSink())
    writer = WriteAheadWriter(target, context_of(1))
    target.is_away = True
    writer.write(records([1]))

    (segment,) = writer.prepare(SECOND)

    assert segment.marker["after"] == 0  # type: ignore[union-attr,index,call-overload]
    assert target.asked == 1


@pytest.mark.parametrize("attempt", [1, 2])
def test_no_segment_is_prepared_while_the_target_cannot_be_asked(
    attempt: int,
) -> None:
    target = ForgetfulTarget(FakeLogSink(), is_away=True)
    with pytest.raises(Retryable):
        prepared_by(WriteAheadWriter(target, context_of(attempt)))
    target.is_away = False

    (segment,) = prepared_by(WriteAheadWriter(target, context_of(2)))

    assert segment.marker["after"] == 1  # type: ignore[union-attr,index,call-overload]


def test_a_forgotten_segment_is_reported_with_its_range_not_republished() -> None:
    sink = FakeLogSink()
    writer = WriteAheadWriter(ForgetfulTarget(sink), CONTEXT)
    writer.write(records([1, 2]))
    segments = writer.prepare(SECOND)
    writer.commit(SECOND, segments)

    match = (
        "Whether 2 records of out, subtask 0, that run run-1 wrote behind checkpoint 1 up to"
        " checkpoint 2 are published is unknown: the marker is gone. Look for them."
    )
    with pytest.raises(OutputLost, match=match) as loss:
        WriteAheadWriter(ForgetfulTarget(sink), CONTEXT).commit(SECOND, segments)
    assert loss.value.checkpoint_id == SECOND

    assert sink.visible() == [1, 2]


def prepared_by(writer: WriteAheadWriter) -> list[Json]:
    writer.write(records([1]))
    return writer.prepare(SECOND)


def context_of(attempt: int) -> SinkContext:
    return SinkContext(RunId("run-1"), Attempt(attempt), Uid("out"), 0, 2)


CONTEXT = context_of(2)


class ForgetfulTarget(FakeLogTarget):
    """Keeps its own marker, which is lost with it."""

    def __init__(self, sink: FakeLogSink, *, is_away: bool = False) -> None:
        super().__init__(sink, CONTEXT)
        self.asked = 0
        self.is_away = is_away
        self._newest = -1

    def begun(self, marker: Marker) -> CheckpointId:
        self.asked += 1
        if self.is_away:
            raise Retryable("the target does not answer")
        self._newest = marker.checkpoint_id - 1
        return CheckpointId(self._newest)

    def published(self, marker: Marker) -> bool:
        if marker.after is not None and self._newest < marker.after:
            raise MarkerLost("the marker is gone. Look for them")
        return self._newest >= marker.checkpoint_id

    def publish(self, marker: Marker, batches: Iterable[pa.RecordBatch]) -> None:
        super().publish(marker, batches)
        self._newest = marker.checkpoint_id


def writer_of(sink: FakeLogSink, *, subtask: int = 0, attempt: int = 1) -> WriteAheadWriter:
    context = SinkContext(RunId("run-1"), Attempt(attempt), Uid("out"), subtask, 2)
    sink.open(context, SCHEMA)
    return WriteAheadWriter(FakeLogTarget(sink, context), context)
