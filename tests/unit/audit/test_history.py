"""Which entries of the ledger are valid, and which output must be visible by now."""

from pathlib import Path

import pytest

from pipelines.connectors import ExactlyOnceFiles
from pipelines.domain.events import JobStatusChanged, RunEnded, SlotLost
from pipelines.domain.status import JobStatus
from tests.unit.audit.audited_run import AuditedRun


@pytest.fixture
def run(tmp_path: Path) -> AuditedRun:
    """A run with one committed checkpoint, and one that is completed but not committed."""
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


def test_the_starting_point_of_a_new_run_is_pending_until_it_runs(
    run: AuditedRun, tmp_path: Path
) -> None:
    restored = AuditedRun(tmp_path, "run-2", run.sink)
    restored.begin((run, 2), runs=False)

    report = restored.audit()

    assert (report.committed_checkpoint_id, report.pending_checkpoint_id) == (None, 2)
    assert report.is_as_recorded


def test_output_from_before_the_ledger_is_not_judged(run: AuditedRun) -> None:
    run.forget_ledger()
    run.begin((run, 2))
    run.write(20, 21)
    run.checkpoint(3)

    assert run.audit().unknown == {"run-1": 2}
    assert run.proven() == ("run-1", 3, 2)


@pytest.mark.parametrize("commits_at_once", [True, False])
@pytest.mark.parametrize("checkpoints", range(7, 11))
def test_only_output_in_deleted_parts_of_the_journal_is_not_judged(
    tmp_path: Path, checkpoints: int, commits_at_once: bool
) -> None:
    """The newest segment may begin with any entry, and an attempt fails in between.

    Output that is not committed at once is in the entries of several checkpoints.
    """
    run = long_run(tmp_path, checkpoints, commits_at_once=commits_at_once)
    whole = run.audit()
    assert (whole.unknown, run.proven()) == ({}, ("run-1", checkpoints, 6 * checkpoints))

    assert run.delete_old_segments() > 1

    report = run.audit()
    ((run_id, unknown_id),) = report.unknown.items()
    assert (run_id, unknown_id < checkpoints) == ("run-1", True)
    assert run.proven() == ("run-1", checkpoints, 6 * (checkpoints - unknown_id))
    assert report.committed_checkpoint_id == whole.committed_checkpoint_id
    assert report.is_as_recorded


def test_a_journal_may_begin_with_a_recovery_alone(tmp_path: Path) -> None:
    """The run is older than its ledger."""
    run = long_run(tmp_path, 4)
    run.forget_ledger()
    run.begin((run, 4))
    while not run.delete_old_segments():
        run.tell(SlotLost(slot=0, pid=1, reason="gone"))
    run.write(50, 51)
    run.checkpoint(5)

    assert run.audit().unknown == {"run-1": 4}
    assert run.proven() == ("run-1", 5, 2)


def test_the_start_of_a_run_that_ran_is_committed_even_if_its_journal_is_cut(
    run: AuditedRun, tmp_path: Path
) -> None:
    """Once an attempt runs, the output that its starting point had prepared is committed."""
    restored = AuditedRun(tmp_path, "run-2", run.sink, segment_bytes=2_000)
    restored.begin((run, 2))
    restored.tell(JobStatusChanged(status=JobStatus.RESTARTING))
    while not restored.delete_old_segments():
        restored.tell(SlotLost(slot=0, pid=1, reason="gone"))

    assert restored.audit().committed_checkpoint_id == 2


def test_a_missing_file_is_found_after_a_deleted_part_of_the_journal(tmp_path: Path) -> None:
    run = long_run(tmp_path, 8)
    run.delete_old_segments()
    newest = max((tmp_path / "target").glob("part-run-1-*"))
    newest.unlink()

    difference = run.sink_report().difference

    assert difference is not None
    assert newest.name in difference.what


@pytest.mark.parametrize("restored", [2, 8])
def test_a_run_reports_up_to_where_the_journal_of_its_ancestor_is_lost(
    tmp_path: Path, restored: int
) -> None:
    """The run is restored from a point in the deleted part, or from the newest point."""
    ancestor = long_run(tmp_path, 8)
    run = AuditedRun(tmp_path, "run-2", ancestor.sink)
    run.begin((ancestor, restored))
    run.write(70, 71)
    run.checkpoint(9)
    ancestor.delete_old_segments()

    report = run.audit()

    known = restored - report.unknown["run-1"]
    assert (known > 0) == (restored == 8)
    assert run.proven() == ("run-2", 9, 6 * known + 2)
    assert report.is_as_recorded


def test_the_next_run_enters_a_starting_point_that_a_dead_driver_did_not(
    run: AuditedRun, tmp_path: Path
) -> None:
    run.write(20, 21)
    run.checkpoint(3, commits=False, is_told=False)

    restored = AuditedRun(tmp_path, "run-2", run.sink)
    restored.begin((run, 3))

    assert restored.proven() == ("run-1", 3, 14)


def long_run(tmp_path: Path, checkpoints: int, *, commits_at_once: bool = True) -> AuditedRun:
    """A run in many segments, with a recovery from its third point; in the end all is committed."""
    sink = ExactlyOnceFiles(tmp_path / "target", pipeline="p")
    run = AuditedRun(tmp_path, "run-1", sink, segment_bytes=2_000)
    run.begin()
    for number in range(1, checkpoints + 1):
        run.write(*range(6 * number, 6 * number + 6))
        run.checkpoint(number, commits=commits_at_once or number == checkpoints)
        if number == 3:
            run.begin((run, 3))
    return run
