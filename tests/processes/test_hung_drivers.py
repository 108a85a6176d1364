"""A driver whose disk stalls keeps its slots."""

from itertools import pairwise
from pathlib import Path

import pytest

from pipelines.domain.events import SlotConnected
from pipelines.domain.status import JobStatus
from tests.processes.host import STALL, hosted_run, hurry
from tests.processes.numbers import assert_exact

pytestmark = pytest.mark.slow

STEP_S = 60.0
PACED = {"pause_ms": "150"}
TIMEOUT_S = 1
SETTINGS = {
    "execution.checkpointing.interval": "50 ms",
    "heartbeat.interval": "100 ms",
    "heartbeat.timeout": f"{TIMEOUT_S} s",
}


def test_a_disk_that_stalls_for_longer_than_the_heartbeat_timeout_ends_no_slot(
    tmp_path: Path,
) -> None:
    with hosted_run(tmp_path, PACED, settings=SETTINGS) as run:
        run.wait_for_more(2, STEP_S)
        began_ms = run.poll()[-1].at_ms
        (tmp_path / STALL).write_text(str(3 * TIMEOUT_S))
        run.wait_for(lambda es: es[-1].at_ms > began_ms + 3_000 * TIMEOUT_S, STEP_S)
        run.wait_for_more(2, STEP_S)
        hurry(tmp_path)
        ended = run.wait_until_over(STEP_S)

    gaps_ms = [b.at_ms - a.at_ms for a, b in pairwise(run.envelopes)]
    assert max(gaps_ms) >= 2_900 * TIMEOUT_S, "or the disk did not stall"
    assert ended.status is JobStatus.FINISHED
    assert {e.attempt for e in run.of(SlotConnected)} == {1}
    assert_exact(tmp_path / "output")
