"""One open split: records held for their time keep their offsets, and offsets only ascend."""

import numpy as np
import pytest

from pipelines.connectors.contract import LoggedRecords
from pipelines.domain.errors import InvariantViolated
from pipelines.runtime.subtask.sources.split_reading import OpenSplit, taken_of
from pipelines.stream import WatermarkStrategy
from tests.unit.runtime.fakes import batch_of, keys_of


def test_the_records_held_for_their_time_keep_their_offsets() -> None:
    split = opened(LoggedRecords(batch_of([(0, 10), (1, 20), (2, 30)]), np.array([4, 8, 90])))
    taken = split.take()
    assert taken is not None

    due = split.due_part(taken, reached_ms=20)
    distance = split.on_handed_out(due)

    assert keys_of(due.records) == [0, 1]
    assert (distance, split.next_offset) == (9, 9)
    held = split.take()
    assert held is not None
    assert split.on_handed_out(held) == 82
    assert split.next_offset == 91


def test_a_position_passes_trailing_offsets_with_or_without_records() -> None:
    nothing = np.array([], np.int64)
    split = opened()

    assert split.on_passed(taken_of(LoggedRecords(batch_of([]), nothing, end=4))) == 4
    assert split.on_passed(taken_of(LoggedRecords(batch_of([]), nothing, end=2))) == 0
    records = LoggedRecords(batch_of([(0, 10), (1, 20)]), np.array([4, 6]), end=9)
    head = split.due_part(taken_of(records), reached_ms=10)
    assert (split.on_handed_out(head), split.next_offset) == (1, 5)
    held = split.take()
    assert held is not None
    assert (split.on_handed_out(held), split.next_offset) == (4, 9)


@pytest.mark.parametrize("offsets", [[5, 5], [6, 5], [-1, 3]])
def test_offsets_that_do_not_ascend_from_the_position_are_refused(offsets: list[int]) -> None:
    logged = LoggedRecords(batch_of([(0, 0), (1, 1)]), np.array(offsets))

    with pytest.raises(InvariantViolated, match="offsets ascend"):
        opened(logged).on_handed_out(taken_of(logged))


def test_a_record_without_an_offset_is_refused() -> None:
    with pytest.raises(InvariantViolated, match="every record has an offset"):
        taken_of(LoggedRecords(batch_of([(0, 0)]), np.array([], np.int64)))


def test_only_the_last_part_of_a_batch_carries_its_version() -> None:
    offsets = np.array([3, 5, 9], np.int64)
    taken = taken_of(LoggedRecords(batch_of([(1, 1), (2, 2), (3, 3)]), offsets, 12, "behind 9"))

    head, tail = taken.divided(2)

    assert (head.end, head.version) == (None, None)
    assert (tail.end, tail.version) == (12, "behind 9")


def opened(*batches: LoggedRecords) -> OpenSplit:
    strategy = WatermarkStrategy()
    return OpenSplit(
        index=0,
        name="a",
        next_offset=0,
        batches=iter(batches),
        generator=strategy.generator(),
        strategy=strategy,
        time_column="at",
    )
