"""An author's exception shows the author's frames, and the record only if the settings allow it."""

from collections.abc import Callable

import pyarrow as pa
import pytest

from pipelines.domain import texts
from pipelines.domain.ids import Attempt, RunId
from pipelines.domain.texts import remember_secret
from pipelines.operators.rows import Row
from pipelines.runtime.control import Failed, Message
from pipelines.runtime.slot.subtask_reports import (
    RECORD_CHARS_MAX,
    TRACE_CHARS_MAX,
    SubtaskReports,
    author_trace,
    record_text,
)
from pipelines.runtime.subtask.chains.chain import ChainPlace, OperatorChain
from pipelines.runtime.subtask.operator_failure import OperatorFailed, described
from pipelines.runtime.subtask.snapshots.restoring import NOTHING
from pipelines.state.in_memory.hashmap import HashMapBackend
from pipelines.stream import Environment, Stream
from tests.unit.runtime.fakes import SCHEMA, ListSource, batch_of
from tests.unit.runtime.hosted import MAX_PARALLELISM, MemorySink

THE_RECORD = "key: 13\nat: 1970-01-01 00:00:00.003000+00:00"
FIRST_RECORD = "key: 5\nat: 1970-01-01 00:00:00.001000+00:00"


def refuse(row: Row) -> Row:
    if row["key"] == 13:
        raise ValueError("13 is bad, says hunter2")
    return row


def refuse_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    raise ValueError("all of it is bad")


def refuse_more_than_one(batch: pa.RecordBatch) -> pa.RecordBatch:
    if batch.num_rows > 1:
        raise ValueError("one at a time")
    return batch


def refuse_for_a_reason(row: Row) -> Row:
    try:
        return refuse(row)
    except ValueError as error:
        raise LookupError("no price") from error


def by_rows(stream: Stream) -> Stream:
    return stream.map(refuse, SCHEMA, uid="f")


def by_rows_behind_another(stream: Stream) -> Stream:
    same = stream.map_batches(lambda batch: batch, SCHEMA, uid="same")
    return same.map(refuse, SCHEMA, uid="f")


def chained(stream: Stream) -> Stream:
    return stream.map(refuse_for_a_reason, SCHEMA, uid="f")


def by_batch(stream: Stream) -> Stream:
    return stream.map_batches(refuse_batch, SCHEMA, uid="f")


def by_whole_batch(stream: Stream) -> Stream:
    return stream.map_batches(refuse_more_than_one, SCHEMA, uid="f")


def failure_of(build: Callable[[Stream], Stream]) -> OperatorFailed:
    env = Environment()
    build(env.source(ListSource([]), uid="in")).sink(MemorySink(), uid="out")
    pipeline = env.build()
    (vertex,) = pipeline.graph.vertices
    chain = OperatorChain(
        pipeline=pipeline,
        place=ChainPlace(RunId("run-1"), Attempt(1), vertex, 0, 1, MAX_PARALLELISM),
        backends=HashMapBackend,
        exchanges={},
        restored=dict.fromkeys(vertex.nodes, NOTHING),
        now_ms=lambda: 0,
    )
    with pytest.raises(OperatorFailed) as failed:
        chain.emit_from_source(batch_of([(5, 1), (6, 2), (13, 3), (7, 4)]))
    return failed.value


def reported(failure: OperatorFailed, *, shows_records: bool) -> Failed:
    sent: list[Message] = []
    reports = SubtaskReports(sent.append, lambda point: None)
    reports.on_deployed(1, shows_records=shows_records)
    reports.slot_failed(failure)
    (message,) = sent
    assert isinstance(message, Failed)
    return message


def test_the_traceback_shows_only_the_frames_of_the_author() -> None:
    message = reported(failure_of(by_rows), shows_records=False)

    assert 'test_author_errors.py", line' in message.author_trace
    assert "in refuse\n" in message.author_trace
    assert message.author_trace.endswith("ValueError: 13 is bad, says hunter2\n")
    assert "pipelines/operators" not in message.author_trace
    assert "pipelines/operators" in message.detail


def test_the_cause_of_an_error_is_shown_above_it() -> None:
    trace = author_trace(failure_of(chained).error)

    assert trace.index("ValueError: 13 is bad") < trace.index("direct cause")
    assert trace.index("direct cause") < trace.index("LookupError: no price")
    assert "pipelines/operators" not in trace


def test_an_error_of_the_engine_alone_has_no_traceback_of_the_author() -> None:
    with pytest.raises(Exception, match="SubtaskReports") as failed:
        SubtaskReports()  # type: ignore[call-arg]
    error = failed.value
    error.__traceback__ = None

    assert author_trace(error) == ""
    assert reported(OperatorFailed("f", (), error), shows_records=True).record == ""  # type: ignore[arg-type]


def test_a_traceback_is_cut_and_keeps_its_end() -> None:
    def deep(left: int) -> None:
        if left:
            deeper(left - 1)
        raise ValueError("x" * TRACE_CHARS_MAX)

    def deeper(left: int) -> None:
        deep(left)

    with pytest.raises(ValueError, match="x") as failed:
        deep(10)

    trace = author_trace(failed.value)
    assert len(trace) <= TRACE_CHARS_MAX + 10
    assert trace.endswith("xxx\n")


@pytest.mark.parametrize("build", [by_rows, by_rows_behind_another])
def test_the_record_leaves_the_slot_only_if_the_settings_say_so(
    build: Callable[[Stream], Stream],
) -> None:
    failure = failure_of(build)

    assert reported(failure, shows_records=False).record == ""
    assert reported(failure, shows_records=True).record == THE_RECORD


@pytest.mark.parametrize(("build", "record"), [(by_batch, FIRST_RECORD), (by_whole_batch, "")])
def test_a_failed_batch_shows_only_a_record_that_fails_by_itself(
    build: Callable[[Stream], Stream], record: str
) -> None:
    failure = failure_of(build)

    assert reported(failure, shows_records=True).record == record
    assert reported(failure, shows_records=False).record == ""


def test_a_revealed_secret_is_in_no_part_of_the_report(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(texts, "_revealed", set())
    failure = failure_of(by_rows)
    remember_secret("hunter2")

    message = reported(failure, shows_records=True)

    assert "hunter2" not in str(message)
    assert message.cause == "ValueError: 13 is bad, says ***"
    assert "hunter2" not in described(failure).message


def test_the_text_of_a_record_is_bounded_and_hides_secrets() -> None:
    values = {"name": "ann", "password": "hunter2", "url": "redis://:hunter2@host"}
    many = {"note": "n" * 999} | {f"more_{n}": "m" * 150 for n in range(50)}
    row = pa.RecordBatch.from_pylist([values | many])

    text = record_text(row)

    assert text.startswith("name: 'ann'\npassword: ***\nurl: ***\nnote: 'nnn")
    assert "hunter2" not in text
    assert len(text) == RECORD_CHARS_MAX + 3
    assert max(map(len, text.splitlines())) < 250
