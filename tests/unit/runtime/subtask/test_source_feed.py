"""A source's subtask: barriers cut between batches, and only a final checkpoint ends it."""

from datetime import timedelta
from pathlib import Path

import pytest

from pipelines.connectors.split_progress import SplitPositions
from pipelines.connectors.watermark_strategy import MAX_LEAP_MS
from pipelines.domain.elements import (
    Barrier,
    Element,
    EndOfInput,
    Records,
    Watermark,
    WatermarkStatus,
)
from pipelines.domain.errors import Retryable
from pipelines.domain.event_time import MAX_WATERMARK_MS
from pipelines.domain.ids import CheckpointId
from pipelines.runtime.subtask.operator_failure import OperatorFailed, is_fatal
from pipelines.stream import monotonous
from tests.unit.runtime.fakes import ListSource, keys_of
from tests.unit.runtime.growing_log import NamedAgainLog
from tests.unit.runtime.hosted import ReadingSubtask

SECOND = timedelta(seconds=1)


def test_a_barrier_is_sent_exactly_at_the_position_in_its_snapshot(tmp_path: Path) -> None:
    host = ReadingSubtask(tmp_path, source_of(8))
    host.advance()
    host.advance()

    host.on_injected(barrier(1))
    host.advance()

    (operator,) = host.reporter.snapshots[1].operators
    assert keys_before(host.output.sent, barrier(1)) == [0, 1, 2, 3, 4, 5]
    assert SplitPositions.from_json(operator.positions).current() == (0, 6)
    assert operator.counters == {"records_read": 6, "barriers_sent": 1}
    assert operator.watermark_ms == 4
    assert keys_before(host.output.sent, None) == list(range(8))


@pytest.mark.parametrize("reads_ahead_bytes", [None, 1 << 20])
def test_no_snapshot_stores_positions_of_a_split_that_was_replaced(
    tmp_path: Path, reads_ahead_bytes: int | None
) -> None:
    source = NamedAgainLog({"a": [(0, 0, 0)]}, versions={"a": "first"})
    host = ReadingSubtask(tmp_path, source, reads_ahead_bytes=reads_ahead_bytes)
    host.advance()
    host.on_injected(barrier(1))
    source.versions["a"] = "second"

    with pytest.raises(OperatorFailed, match="a is second and was first") as failure:
        host.on_injected(barrier(2))

    assert is_fatal(failure.value)
    assert list(host.reporter.snapshots) == [1]


def test_an_exhausted_source_reports_it_once_and_still_answers_barriers(
    tmp_path: Path,
) -> None:
    host = ReadingSubtask(tmp_path, source_of(2))

    for _ in range(4):
        host.advance()
    host.on_injected(barrier(1))

    assert host.reporter.sources_over == 1
    assert not host.feed.has_ended
    assert list(host.reporter.snapshots) == [1]
    assert Watermark(MAX_WATERMARK_MS) in host.output.sent


def test_a_stalled_at_most_once_source_asks_for_the_checkpoint_that_frees_it(
    tmp_path: Path,
) -> None:
    host = ReadingSubtask(tmp_path, source_of(5), reads_ahead_bytes=1 << 20)

    reading = host.advance()
    while host.advance():
        pass
    wanted = host.reporter.reservations_wanted
    host.on_injected(barrier(1))
    host.on_completed(1)
    while host.advance():
        pass

    assert reading, "reading ahead is work that needs no wait"
    assert wanted == 1
    assert keys_before(host.output.sent, None) == list(range(5))
    assert host.reporter.sources_over == 1


def test_a_stalled_at_most_once_source_asks_again_if_its_checkpoint_aborts(
    tmp_path: Path,
) -> None:
    host = ReadingSubtask(tmp_path, source_of(5), reads_ahead_bytes=1 << 20)
    while host.advance():
        pass
    host.on_injected(barrier(1))

    host.on_aborted(1)
    host.advance()

    assert host.reporter.reservations_wanted == 2


def test_a_source_reports_idle_and_becomes_active_before_new_records(
    tmp_path: Path,
) -> None:
    source = source_of(4)
    source.silent.add(0)
    host = ReadingSubtask(tmp_path, source, strategy=monotonous().with_idleness(SECOND))
    for _ in range(3):
        host.advance()
        host.clock.now_ms += 1_000.0
    assert host.output.sent[-1] == WatermarkStatus(is_idle=True)
    sent = len(host.output.sent)

    source.silent.clear()
    host.advance()

    active, records, *_ = host.output.sent[sent:]
    assert active == WatermarkStatus(is_idle=False)
    assert isinstance(records, Records)


def test_the_snapshot_counts_records_with_timestamps_far_in_the_future(tmp_path: Path) -> None:
    host = ReadingSubtask(tmp_path, ListSource([[(0, 0), (1, 1), (2, 10 * MAX_LEAP_MS)]]))

    host.advance()
    host.on_injected(barrier(1))

    (operator,) = host.reporter.snapshots[1].operators
    assert operator.counters["timestamps_far_ahead"] == 1
    assert operator.counters["records_read"] == 3
    assert operator.watermark_ms == 0


def test_only_the_end_of_input_follows_a_final_barrier(tmp_path: Path) -> None:
    host = ReadingSubtask(tmp_path, source_of(8))
    host.advance()

    host.on_injected(barrier(1, is_final=True))
    did_something = host.advance()
    host.on_completed(1)

    assert not did_something
    assert host.feed.has_ended
    assert host.output.sent[-2:] == [barrier(1, is_final=True), EndOfInput()]


def test_a_checkpoint_that_is_not_final_does_not_end_the_source(tmp_path: Path) -> None:
    host = ReadingSubtask(tmp_path, source_of(8))

    host.on_injected(barrier(1))
    host.on_completed(1)

    assert not host.feed.has_ended
    assert host.advance()


def test_the_stream_continues_after_an_aborted_final_checkpoint(tmp_path: Path) -> None:
    host = ReadingSubtask(tmp_path, source_of(3))
    host.on_injected(barrier(1, is_final=True))

    host.on_aborted(1)
    host.advance()

    assert keys_before(host.output.sent, None) == [0, 1, 2]


def test_a_watermark_is_sent_only_when_it_has_moved(tmp_path: Path) -> None:
    still = ListSource([[(0, 5), (1, 5), (2, 5), (3, 9)]], batch_rows=1)
    host = ReadingSubtask(tmp_path, still)

    for _ in range(5):
        host.advance()

    marks = [mark for mark in host.output.sent if isinstance(mark, Watermark)]
    assert marks == [Watermark(4), Watermark(8), Watermark(MAX_WATERMARK_MS)]


def source_of(count: int) -> ListSource:
    return ListSource([[(key, key) for key in range(count)]])


def barrier(checkpoint_id: int, *, is_final: bool = False) -> Barrier:
    return Barrier(checkpoint_id=CheckpointId(checkpoint_id), trigger_ms=0, is_final=is_final)


def keys_before(sent: list[Element], mark: Barrier | None) -> list[int]:
    end = len(sent) if mark is None else sent.index(mark)
    batches = [element.batch for element in sent[:end] if isinstance(element, Records)]
    return [key for batch in batches for key in keys_of(batch)]


def test_draining_ends_event_time_before_the_barrier(tmp_path: Path) -> None:
    host = ReadingSubtask(tmp_path, ListSource([[(1, 1), (2, 2)]]))
    final = Barrier(checkpoint_id=CheckpointId(1), trigger_ms=0, is_savepoint=True, is_final=True)

    host.subtask.obey(host.feed.drain())
    host.on_injected(final)

    assert host.output.sent[-2:] == [Watermark(MAX_WATERMARK_MS), final]


def test_a_drained_source_whose_savepoint_fails_ends_the_attempt(tmp_path: Path) -> None:
    host = ReadingSubtask(tmp_path, ListSource([[(1, 1), (2, 2)]]))
    final = Barrier(checkpoint_id=CheckpointId(1), trigger_ms=0, is_savepoint=True, is_final=True)
    host.subtask.obey(host.feed.drain())
    host.on_injected(final)

    with pytest.raises(Retryable, match="windows"):
        host.on_aborted(1)
