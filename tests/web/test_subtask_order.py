"""The order of a checkpoint's subtasks by each of their figures."""

from dataclasses import replace

import pytest

from ftdash.checkpoints.answers import ChannelTimeline, SubtaskTimeline
from ftdash.ui.checkpoint.part_rows import COLUMNS, SubtaskOrder

CHANNEL = ChannelTimeline(
    channel="a[0]>b.0[0]",
    upstream="a",
    upstream_subtask=0,
    port=0,
    arrived_ms=1.0,
    blocked_ms=0.0,
    buffered_records=0,
    buffered_bytes=9000,
)
EQUAL = SubtaskTimeline(
    vertex="b",
    subtask=0,
    start_delay_ms=1.0,
    alignment_ms=1.0,
    sync_ms=1.0,
    async_ms=1.0,
    acknowledged_ms=1.0,
    state_bytes=1,
    uploaded_bytes=1,
    channels=[],
)
GREATEST_IN = {
    "end-to-end-duration": replace(EQUAL, acknowledged_ms=9.0),
    "start-delay": replace(EQUAL, start_delay_ms=9.0),
    "alignment": replace(EQUAL, alignment_ms=9.0),
    "sync": replace(EQUAL, sync_ms=9.0),
    "async": replace(EQUAL, async_ms=9.0),
    "uploaded": replace(EQUAL, uploaded_bytes=9),
    "full-size": replace(EQUAL, state_bytes=9),
    "held-back": replace(EQUAL, channels=[CHANNEL]),
    "in-flight-kept": replace(EQUAL, persisted_bytes=9),
}


@pytest.mark.parametrize("key", GREATEST_IN)
def test_subtasks_can_be_ordered_by_each_figure(key: str) -> None:
    """Each subtask is the greatest in one figure; one more has not acknowledged."""
    parts = dict(enumerate(GREATEST_IN.values()))
    greatest = list(GREATEST_IN).index(key)
    others = [index for index in parts if index != greatest]
    silent = len(parts)

    def ordered(text: str) -> list[int]:
        return SubtaskOrder.parse(text).indices(parts, silent + 1)

    assert ordered(f"-{key}") == [greatest, *others, silent]
    assert ordered(key) == [*others, greatest, silent]
    assert ordered("") == ordered("nothing") == [*parts, silent]


def test_every_column_is_among_the_tested_figures() -> None:
    assert [column.key for column in COLUMNS] == list(GREATEST_IN)
