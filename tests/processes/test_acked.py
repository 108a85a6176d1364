"""Mode ACKED in processes: what a crash leaves, and the cost of following every record."""

from pathlib import Path

import pytest

from pipelines.domain.status import JobStatus
from tests.processes.host import hosted_run
from tests.processes.relay import Balance, balance
from tests.processes.scripted import BEFORE, BEHIND, FAST, SLOW
from tests.processes.scripted_run import CHECKPOINTING, scripted

pytestmark = pytest.mark.slow

STEP_S = 60.0
TOTAL = 6_000
ACKED = {CHECKPOINTING + "mode": "ACKED"}


def test_a_crash_loses_nothing_and_doubles_only_records_not_known_as_acked(
    tmp_path: Path,
) -> None:
    """The checkpoint contains what was known at the cut. The slot that dies hosts the acker."""
    with scripted(tmp_path, ACKED) as script:
        script.until_between_the_barriers()
        script.until_seen(BEHIND)
        counts = script.until_over()
        [checkpoint, *_] = script.run.completed()

    known = checkpoint.counters["numbers.spout_acked"]
    seen = len(BEFORE[FAST]) + len(BEHIND) + len(BEFORE[SLOW])
    assert known <= len(BEFORE[FAST]) + len(BEFORE[SLOW])  # records behind the cut are not known
    assert counts == Balance(lost=0, doubled=seen - known)


def test_an_undisturbed_run_doubles_nothing_and_counts_every_message(tmp_path: Path) -> None:
    settings = {**ACKED, CHECKPOINTING + "interval": "50 ms", "topology.acker.executors": "2"}
    with hosted_run(
        tmp_path, {"total": str(TOTAL)}, settings=settings, spec_fields={"pipeline": "relay"}
    ) as run:
        ended = run.wait_until_over(STEP_S)

    assert ended.status is JobStatus.FINISHED
    assert balance(tmp_path / "output", TOTAL) == Balance(lost=0, doubled=0)
    counters = run.completed()[-1].counters
    told = ("numbers.acker_inits", "relay.acker_acks", "numbers.spout_acked")
    assert [counters[name] for name in told] == [TOTAL] * len(told)
    messages = counters["numbers.acker_messages"] + counters["relay.acker_messages"]
    assert messages < TOTAL / 2, "one message speaks of many records"
