"""A failure that always comes again ends the run; one that an outage causes does not.

A record ends it with its position, a commit with the range that is lost.
"""

import re
from pathlib import Path

import pytest

from pipelines.domain.events import FailureOccurred, JobStatusChanged, RestorePointRefused
from pipelines.domain.origins import RecordOrigin
from pipelines.domain.status import JobStatus
from tests.driven_run import StartedRun
from tests.processes.host import hosted_run
from tests.processes.numbers import KEYS, SPLIT_RECORDS, assert_exact

pytestmark = pytest.mark.slow

STEP_S = 60.0
POISON = 3_456
QUICK_RESTARTS = {"restart-strategy.exponential-delay.initial-backoff": "10 ms"}
AT_ONCE = QUICK_RESTARTS | {
    "restart-strategy.repeated-failure.min-tries": "2",
    "restart-strategy.repeated-failure.min-duration": "0",
}


def test_a_custom_error_of_an_unavailable_service_does_not_end_the_run(
    tmp_path: Path,
) -> None:
    """The run fails at the same records again and again, until the service is back."""
    outage = tmp_path / "outage"
    outage.touch()

    with hosted_run(tmp_path, {"outage": str(outage)}, settings=QUICK_RESTARTS) as run:
        run.wait_for(lambda _: len(failures(run)) >= 6, STEP_S)
        outage.unlink()
        ended = run.wait_until_over(STEP_S)

    assert ended.status is JobStatus.FINISHED, ended.reason
    assert_exact(tmp_path / "output")
    origins = {failure.origin for failure in failures(run)}
    assert len(origins) < len(failures(run))
    reasons = [e.event.reason for e in run.of(JobStatusChanged) if e.event.reason]  # type: ignore[union-attr]
    assert any("The same failure has come 2 times within" in reason for reason in reasons)


def test_a_poison_record_is_named_with_split_and_offset_and_ends_the_run(tmp_path: Path) -> None:
    with hosted_run(tmp_path, {"poison": str(POISON)}, settings=AT_ONCE) as run:
        ended = run.wait_until_over(STEP_S)

    split, offset = divmod(POISON, SPLIT_RECORDS)
    assert ended.status is JobStatus.FAILED
    assert f"numbers[1], split numbers-{split}, offset {offset}: ValueError" in ended.reason
    assert re.search(
        r"3456 cannot be digested \u2400\?\. The same failure came 2 times within \d+\.\d s, each"
        rf" time at numbers\[1\], split numbers-{split}, offset {offset}: a restart",
        ended.reason,
    )
    first, second = failures(run)
    assert (first.operator, first.vertex, first.subtask) == ("digest", "numbers", 1)
    assert first.origin == second.origin
    assert isinstance(first.origin, RecordOrigin)
    assert (first.origin.first_offset, first.origin.last_offset) == (offset, offset)


def test_a_failure_behind_an_exchange_and_a_window_names_the_batch_in_work(tmp_path: Path) -> None:
    poison_total = sum(range(6 * KEYS, 60, KEYS)) + sum(range(0, 6 * KEYS, KEYS))  # key 0, 1st min
    paced = {"poison_total": str(poison_total), "hours_per_s": "0.2"}
    apart = {"pipeline.coalescing.max-rows": "1"}  # joined batches may come from several splits

    with hosted_run(tmp_path, paced, settings=apart) as run:
        run.wait_for(lambda _: len(failures(run)) >= 1, STEP_S)
        failure = failures(run)[0]

    assert failure.operator == "weigh"
    assert failure.origin is not None
    assert failure.origin.source == "numbers"
    assert failure.origin.split.startswith("numbers-")
    assert "weigh[" in failure.cause
    assert "too heavy" in failure.cause


@pytest.mark.parametrize("slot_dies", [False, True])
def test_output_that_its_target_lost_ends_the_run_with_the_range(
    tmp_path: Path, slot_dies: bool
) -> None:
    """This includes a recovery that is the first to commit the output."""
    settings = {
        "execution.checkpointing.interval": "100 ms",
        **({"testing.faults": "kill committing slot=0"} if slot_dies else {}),
    }
    spec_fields: dict[str, object] = {"pipeline": "forgetful"}
    with hosted_run(tmp_path, settings=settings, spec_fields=spec_fields, parallelism=1) as run:
        ended = run.wait_until_over(STEP_S)

    assert ended.status is JobStatus.FAILED
    assert re.search(
        r"\d+ records of out, subtask \d, that attempt 1 of run .* wrote between"
        r" where it started and checkpoint \d+ are lost: it was open for too long",
        ended.reason,
    )
    assert len(failures(run)) == 1 + slot_dies


def test_a_run_warns_that_a_restore_of_a_point_with_lost_output_ends_alike(
    tmp_path: Path,
) -> None:
    settings = {"execution.checkpointing.interval": "1 h"}
    spec_fields: dict[str, object] = {"pipeline": "forgetful"}
    with hosted_run(tmp_path, settings=settings, spec_fields=spec_fields, parallelism=1) as run:
        ended = run.wait_until_over(STEP_S)
    (last,) = run.completed()

    with hosted_run(
        tmp_path, restore_from=last.path, spec_fields=spec_fields, parallelism=1
    ) as restored:
        again = restored.wait_until_over(STEP_S)

    assert ended.reason.endswith(
        f"The point {last.path} counts on that output: while it is lost, a run that is restored"
        " from it ends in the same way."
    )
    assert again.status is JobStatus.FAILED
    assert "are lost: it was open for too long" in again.reason
    for each in (run, restored):  # so that the dashboard advises no one to restore it
        (refused,) = (envelope.event for envelope in each.of(RestorePointRefused))
        assert isinstance(refused, RestorePointRefused)
        assert refused.path == last.path
        assert "A run that starts from it fails: " in refused.message


def failures(run: StartedRun) -> list[FailureOccurred]:
    events = (envelope.event for envelope in run.of(FailureOccurred))
    return [event for event in events if isinstance(event, FailureOccurred)]
