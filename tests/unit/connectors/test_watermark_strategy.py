"""How event time follows from the records of one split, and what a wrong timestamp can do."""

from datetime import timedelta

import numpy as np
import pyarrow as pa
import pytest

from pipelines.connectors.watermark_strategy import (
    MAX_LEAP_MS,
    BoundedOutOfOrderness,
    WatermarkGenerator,
    bounded_out_of_orderness,
    generated_by,
    monotonous,
)
from pipelines.domain.errors import Rejected

NOTHING = pa.RecordBatch.from_pylist([], schema=pa.schema([]))
FAR = 10 * MAX_LEAP_MS


def test_a_watermark_stays_behind_the_newest_record_by_the_bound() -> None:
    generator = bounded_out_of_orderness(timedelta(milliseconds=5)).generator()

    assert generator.watermark_ms() is None
    assert after(generator, [10, 30, 20]) == 24
    assert after(generator, [29]) == 24
    assert after(monotonous().generator(), [10, 30]) == 29


def test_one_wrong_timestamp_does_not_end_event_time_and_is_counted() -> None:
    generator = BoundedOutOfOrderness(0, MAX_LEAP_MS)

    assert after(generator, [10, 20, FAR]) == 19
    assert after(generator, [21, FAR, 22]) == 21
    assert after(generator, [FAR]) == 21
    assert after(generator, [23]) == 22
    assert after(generator, [FAR]) == 22
    assert generator.far_ahead_count == 4


def test_a_leap_is_believed_once_most_later_records_confirm_it() -> None:
    generator = BoundedOutOfOrderness(0, MAX_LEAP_MS)
    after(generator, [10])

    assert after(generator, [FAR, FAR + 1]) == 9
    assert after(generator, [FAR + 2, 11]) == 10  # half of a batch is no majority
    assert after(generator, [FAR + 3, FAR + 4]) == 10
    assert after(generator, [FAR + 5]) == FAR + 4
    assert after(generator, [FAR + 6]) == FAR + 5


def test_without_a_maximum_every_timestamp_is_believed() -> None:
    assert after(monotonous().with_max_leap(None).generator(), [10, FAR]) == FAR - 1


def test_each_split_gets_its_own_generator_from_the_author() -> None:
    strategy = generated_by(lambda: BoundedOutOfOrderness(7, None))

    first, second = strategy.generator(), strategy.generator()

    assert after(first, [100]) == 92
    assert second.watermark_ms() is None


@pytest.mark.parametrize(
    ("declare", "sentence"),
    [
        (lambda: bounded_out_of_orderness(timedelta(-1)), "out of order by -86400000 ms"),
        (lambda: monotonous().with_idleness(timedelta(0)), "idleness timeout cannot be 0 ms"),
        (lambda: monotonous().with_max_leap(timedelta(0)), "maximum leap cannot be 0 ms"),
    ],
)
def test_impossible_durations_are_refused(declare, sentence: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(Rejected, match=sentence):
        declare()


def after(generator: WatermarkGenerator, times: list[int]) -> int | None:
    generator.on_batch(NOTHING, np.array(times, np.int64))
    return generator.watermark_ms()
