"""Event time from a column: the types it accepts, and the watermarks and statuses that follow."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from pipelines.connectors.watermark_strategy import BoundedOutOfOrderness
from pipelines.domain.elements import Watermark, WatermarkStatus
from pipelines.domain.errors import Rejected
from pipelines.domain.event_time import MAX_WATERMARK_MS
from pipelines.operators.event_time import AssignTimestamps
from tests.unit.operators.harness import Host

if TYPE_CHECKING:
    from collections.abc import Callable

IDLE, ACTIVE = WatermarkStatus(is_idle=True), WatermarkStatus(is_idle=False)
NUMBER = pa.int64()
AT = datetime(2026, 1, 1, tzinfo=UTC)


def host(
    type_: pa.DataType = NUMBER,
    *,
    bound_ms: int = 0,
    idle_after_ms: int | None = None,
    restored_ms: int | None = None,
) -> tuple[Host, list[Any]]:
    schema = pa.schema([("key", pa.string()), ("at", type_)])
    create: Callable[[], AssignTimestamps] = lambda: AssignTimestamps(  # noqa: E731
        "at", lambda: BoundedOutOfOrderness(bound_ms, 1_000), idle_after_ms
    )
    given = {} if restored_ms is None else {"watermark_ms": restored_ms}
    hosted, marks = Host(create, [schema], **given), []
    hosted.context.mark = marks.append
    return hosted, marks


@pytest.mark.parametrize(
    ("type_", "value", "expected"),
    [
        (pa.int64(), 1_767_225_600_000, AT),
        (pa.int64(), -1, datetime(1969, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC)),
        (pa.int32(), 5, datetime(1970, 1, 1, 0, 0, 0, 5_000, tzinfo=UTC)),
        (pa.timestamp("s"), AT.replace(tzinfo=None), AT),
        (pa.timestamp("us", "Europe/Berlin"), AT, AT),
        (pa.timestamp("us", "UTC"), AT.replace(microsecond=1_999), AT.replace(microsecond=1_000)),
        (
            pa.timestamp("us"),
            datetime(1969, 12, 31, 23, 59, 59, 999_999),
            datetime(1969, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC),
        ),
        (pa.timestamp("ms", "UTC"), AT, AT),
    ],
)
def test_times_and_numbers_become_event_time(
    type_: pa.DataType, value: object, expected: datetime
) -> None:
    hosted, _ = host(type_)

    hosted.send([{"key": "a", "at": value}, {"key": "b", "at": None}])

    assert hosted.rows == [{"key": "a", "at": expected}, {"key": "b", "at": None}]


@pytest.mark.parametrize("type_", [pa.string(), pa.float64(), pa.date32(), pa.bool_()])
def test_other_types_are_refused_with_a_suggested_conversion(type_: pa.DataType) -> None:
    with pytest.raises(Rejected, match=r"'at' is .* milliseconds since 1970; convert .* map_batch"):
        host(type_)


def test_a_watermark_follows_its_records_and_never_goes_back() -> None:
    hosted, marks = host(bound_ms=10)

    for times in ([100, 120], [60], [None], [121, 130]):
        hosted.send([{"key": "a", "at": each} for each in times])

    assert marks == [Watermark(109), Watermark(119)]
    assert [row["at"].microsecond // 1_000 for row in hosted.rows if row["at"]] == [
        *(100, 120, 60, 121, 130)
    ]


def test_one_record_far_ahead_does_not_move_event_time_and_is_counted() -> None:
    hosted, marks = host()

    hosted.send([{"key": "a", "at": each} for each in (1, 2, 3, 90_000)])

    assert marks == [Watermark(2)]
    assert hosted.counters == {"timestamps_far_ahead": 1}


def test_only_the_final_watermark_of_the_input_is_passed_on() -> None:
    hosted, marks = host()
    hosted.send([{"key": "a", "at": 5}])

    hosted.advance(1_000)
    hosted.advance(MAX_WATERMARK_MS)

    assert marks == [Watermark(4), Watermark(MAX_WATERMARK_MS)]


def test_a_record_cannot_end_event_time() -> None:
    hosted, marks = host()
    hosted.context.collect = lambda batch: None  # no Python value holds such a time

    hosted.send([{"key": "a", "at": MAX_WATERMARK_MS + 1}])

    assert marks == [Watermark(MAX_WATERMARK_MS - 1)]


def test_a_silent_subtask_is_idle_until_its_next_record() -> None:
    hosted, marks = host(idle_after_ms=50)
    hosted.send([{"key": "a", "at": 5}])

    hosted.pass_time(49)
    assert marks == [Watermark(4)]
    hosted.pass_time(50)
    assert not hosted.operator.awaits_processing_time
    hosted.pass_time(500)
    hosted.send([{"key": "a", "at": 7}])

    assert marks == [Watermark(4), IDLE, ACTIVE, Watermark(6)]
    assert hosted.operator.awaits_processing_time


def test_without_an_idle_timeout_a_silent_subtask_never_becomes_idle() -> None:
    hosted, marks = host()

    assert not hosted.operator.awaits_processing_time
    hosted.pass_time(10**9)

    assert marks == []


def test_an_idle_input_makes_the_output_idle() -> None:
    hosted, marks = host()

    hosted.operator.on_status(is_idle=True)
    hosted.operator.on_status(is_idle=True)
    hosted.operator.on_status(is_idle=False)

    assert marks == [IDLE, ACTIVE]


def test_the_restored_watermark_is_sent_first_and_never_goes_back() -> None:
    silent, told = host(restored_ms=40)
    silent.pass_time(0)
    silent.pass_time(10)
    assert told == [Watermark(40)]

    hosted, marks = host(restored_ms=40)
    hosted.send([{"key": "a", "at": 30}])
    hosted.send([{"key": "a", "at": 51}])

    assert marks == [Watermark(40), Watermark(50)]
