"""In mode ACKED, the counters of a cut match the records before its position, read and acked."""

import random
from collections import deque
from typing import Any

import numpy as np
import pytest

from pipelines.connectors.split_progress import SplitPositions
from pipelines.domain.elements import Element, Records
from pipelines.domain.ids import ChannelId
from pipelines.domain.settings import AckingOptions
from pipelines.protocol.acking import Spout, numbers_of
from pipelines.runtime.subtask.acking.acker_task import verdict
from pipelines.runtime.subtask.sources.direct_reader import DirectReader
from pipelines.runtime.subtask.sources.spout_reader import SpoutReader
from tests.unit.runtime.fakes import ListSource, ManualClock

TOTAL = 60


class Verdicts:
    """The ackers' messages, in the order that the test chooses."""

    def __init__(self) -> None:
        self.said: deque[Records] = deque()

    def poll(self) -> tuple[ChannelId, Element] | None:
        return (ChannelId("acker"), self.said.popleft()) if self.said else None


@pytest.mark.parametrize("seed", range(40))
def test_the_position_is_the_emitted_records_minus_those_beyond_it(seed: int) -> None:
    rng = random.Random(seed)
    clock, verdicts = ManualClock(), Verdicts()
    rows = [(n, n) for n in range(TOTAL)]
    reader = DirectReader(
        source=ListSource([rows], batch_rows=rng.randint(1, 9)),
        restored=(),
        subtask=0,
        parallelism=1,
        clock=clock,
        event_hours_per_s=None,
        strategy=None,
    )
    options = AckingOptions(acker_count=1, timeout_ms=30_000, pending_max=25)
    spout = SpoutReader(reader, Spout(0, in_flight_max=25), options, verdicts, clock)  # type: ignore[arg-type]
    in_flight: list[Any] = []
    emitted = acked = 0

    for _ in range(400):
        if rng.random() < 0.5:
            batch = spout.next()
            if batch is not None:
                in_flight += numbers_of(spout.trees).tolist()  # type: ignore[arg-type]
                counts = spout.take_counts()
                emitted += counts.get("records_read", 0)
                acked += counts.get("spout_acked", 0)
        elif in_flight:
            rng.shuffle(in_flight)
            said, in_flight = in_flight[:5], in_flight[5:]
            none = np.array([], np.int64)
            told = np.array(said, np.int64)
            is_acked = rng.random() < 0.8
            verdicts.said.append(verdict(told, none) if is_acked else verdict(none, told))
            spout.attend()
            clock.now_ms += 50

        position = SplitPositions.from_json(spout.positions())
        before = TOTAL if position.frontier > 0 and not position.backlog else position.current()[1]
        beyond = spout.counts_beyond_positions()
        assert emitted - beyond["records_read"] == before
        assert acked - beyond["spout_acked"] == before

    assert emitted == TOTAL
