"""Small records before a slow reader: an aligned barrier waits for few of them, by count."""

from pathlib import Path

import pytest

from pipelines.bus.inbox import submit
from pipelines.domain.commands import TriggerCheckpoint
from pipelines.domain.ids import RequestId
from pipelines.domain.settings.resources import DEBLOATING
from tests.processes.host import hosted_run
from tests.processes.small_records import HANDLED, most_in_flight, total

pytestmark = pytest.mark.slow

STEP_S = 120.0
SLOW_US, TARGET_MS, READERS = 2_000, 200, 2
WITHIN_TARGET = READERS * TARGET_MS * 1_000 // SLOW_US  # even the fastest machine handles no more
SETTLED = 5 * WITHIN_TARGET
"""In records; by then the first windows, which are a guess, have been read."""
SETTINGS = {
    "execution.checkpointing.interval": "1 h",
    DEBLOATING + "target": f"{TARGET_MS} ms",
}


def test_few_small_records_are_in_flight_before_an_aligned_barrier(
    tmp_path: Path,
) -> None:
    """Records in flight are queued, or taken and not yet handled: about twice the target.

    The first windows are a guess, of 150 records for each of four channels, and also count twice.
    """
    counts = tmp_path / "counts"
    counts.mkdir()
    parameters = {"counts": str(counts), "slow_us": str(SLOW_US)}
    spec_fields: dict[str, object] = {"pipeline": "small_records"}
    with hosted_run(
        tmp_path, parameters, settings=SETTINGS, parallelism=READERS, spec_fields=spec_fields
    ) as run:
        run.wait_for(lambda _: total(counts, HANDLED) >= SETTLED, STEP_S)
        before = total(counts, HANDLED)
        submit(
            run.directory,
            TriggerCheckpoint(request_id=RequestId("one"), requested_by="test", reason="test"),
        )
        run.wait_for(lambda _: bool(run.completed()), STEP_S)

    [completed] = run.completed()
    assert completed.source_records > before, "the barrier had records before it"
    assert most_in_flight(counts) <= 8 * WITHIN_TARGET
