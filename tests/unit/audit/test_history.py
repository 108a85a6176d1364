"""Which entries of the ledger hold, and which output has to be visible by now."""

from pathlib import Path

import pytest

from pipelines.connectors.files.sink import ExactlyOnceFiles
from pipelines.domain.events import RunEnded
from pipelines.domain.status import JobStatus
from tests.unit.audit.audited_run import AuditedRun


@pytest.fixture
def run(tmp_path: Path) -> AuditedRun:
    """One committed checkpoint, and one that is complete."""
    run = AuditedRun(tmp_path, "run-1", ExactlyOnceFiles(tmp_path / "target", pipeline="p"))
    run.begin()
    for number in (1, 2):
        run.write(*range(6 * number, 6 * number + 6))
        run.checkpoint(number, commits=number == 1)
    return run


@pytest.mark.parametrize(
    ("status", "committed_id"),
    [(JobStatus.FINISHED, 2), (JobStatus.CANCELED, 1), (JobStatus.FAILED, 1)],
)
def test_only_a_finished_run_has_committed_everything(
    run: AuditedRun, status: JobStatus, committed_id: int
) -> None:
    run.begin((run, 2), runs=False)
    run.tell(RunEnded(status=status, reason=""))

    assert run.audit().committed_checkpoint_id == committed_id


def test_a_new_run_s_starting_point_is_pending_until_it_runs(
    run: AuditedRun, tmp_path: Path
) -> None:
    restored = AuditedRun(tmp_path, "run-2", run.sink)
    restored.begin((run, 2), runs=False)

    report = restored.audit()

    assert (report.committed_checkpoint_id, report.pending_checkpoint_id) == (None, 2)
    assert report.is_as_recorded


def test_what_was_given_before_there_was_a_ledger_is_not_judged(run: AuditedRun) -> None:
    run.forget_ledger()
    run.begin((run, 2))
    run.write(20, 21)
    run.checkpoint(3)

    assert run.audit().unknown == {"run-1": 2}
    assert run.proven() == ("run-1", 3, 2)


def test_a_starting_point_whose_driver_died_before_it_made_an_entry_is_entered_by_the_next_run(
    run: AuditedRun, tmp_path: Path
) -> None:
    run.write(20, 21)
    run.checkpoint(3, commits=False, is_told=False)

    restored = AuditedRun(tmp_path, "run-2", run.sink)
    restored.begin((run, 3))

    assert restored.proven() == ("run-1", 3, 14)
