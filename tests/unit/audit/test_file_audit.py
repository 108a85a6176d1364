"""An audit of output files: it proves what the ledger records, and finds every kind of damage."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from pipelines.audit.report import Covers
from pipelines.connectors import ExactlyOnceFiles
from pipelines.domain.ids import CheckpointId
from pipelines.runtime.master.output.run_ledger import LedgerStart
from pipelines.state.row_digest import RowCount
from tests.unit.audit.audited_run import AuditedRun


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "target"


@pytest.fixture
def run(tmp_path: Path, target: Path) -> AuditedRun:
    """Three committed checkpoints of six rows each, in two files."""
    run = AuditedRun(tmp_path, "run-1", ExactlyOnceFiles(target, pipeline="p"))
    run.begin()
    for number in (1, 2, 3):
        run.write(*range(6 * number, 6 * number + 6))
        run.checkpoint(number)
    return run


def test_untouched_output_is_proven_up_to_the_newest_committed_checkpoint(run: AuditedRun) -> None:
    report = run.audit()

    assert report.is_as_recorded
    assert report.committed_checkpoint_id == 3
    assert run.proven() == ("run-1", 3, 18)
    assert run.sink_report().covers is Covers.DIGESTED


def test_output_of_an_uncommitted_checkpoint_is_not_judged(run: AuditedRun) -> None:
    run.write(1, 2, 3)
    run.checkpoint(4, commits=False)

    report = run.audit()

    assert (report.committed_checkpoint_id, report.pending_checkpoint_id) == (3, 4)
    assert run.proven() == ("run-1", 3, 18)


def changed_value(target: Path) -> None:
    file = part(target, 2, 1)
    table = pq.read_table(file)
    x = pc.if_else(pc.equal(table["id"], 15), 99.0, table["x"])
    pq.write_table(table.set_column(2, table.schema.field("x"), x), file)


def dropped_file(target: Path) -> None:
    part(target, 2, 0).unlink()


def file_twice(target: Path) -> None:
    original = part(target, 2, 0)
    shutil.copy(original, original.with_name(original.name.replace("-1.parquet", "-9.parquet")))


def torn_file(target: Path) -> None:
    file = part(target, 2, 1)
    file.write_bytes(file.read_bytes()[:100])


def row_twice(target: Path) -> None:
    repeat_a_row(part(target, 2, 1))


def rows_of_another_checkpoint(target: Path) -> None:
    shutil.copy(part(target, 3, 0), part(target, 2, 0))


@pytest.mark.parametrize(
    ("damage", "subtask"),
    [
        (changed_value, 1),
        (dropped_file, 0),
        (torn_file, 1),
        (row_twice, 1),
        (rows_of_another_checkpoint, 0),
    ],
)
def test_the_first_difference_is_reported_with_its_checkpoint_and_file(
    run: AuditedRun, target: Path, damage: Callable[[Path], None], subtask: int
) -> None:
    name = part(target, 2, subtask).name

    damage(target)

    report = run.sink_report()
    assert report.difference is not None
    assert (report.difference.checkpoint_id, report.difference.part) == (2, name)
    assert report.difference.expected_rows == 6
    assert run.proven() == ("run-1", 1, 6)
    assert not run.audit().is_as_recorded


def test_a_deleted_file_is_missing_even_if_another_file_holds_its_rows(
    run: AuditedRun, target: Path
) -> None:
    gone, other = part(target, 2, 0), part(target, 2, 1)
    pq.write_table(pa.concat_tables([pq.read_table(gone), pq.read_table(other)]), other)
    gone.unlink()

    difference = run.sink_report().difference

    assert difference is not None
    assert difference.what == f"{gone.name} is missing."


def test_a_changed_value_is_shown_by_the_digests(run: AuditedRun, target: Path) -> None:
    changed_value(target)

    difference = run.sink_report().difference

    assert difference is not None
    assert difference.found_rows == difference.expected_rows
    assert difference.found_digest != difference.expected_digest


def test_a_duplicated_file_is_found(run: AuditedRun, target: Path) -> None:
    file_twice(target)

    difference = run.sink_report().difference

    assert difference is not None
    assert (difference.checkpoint_id, difference.what.split()[1:]) == (
        2,
        ["is", "not", "in", "the", "ledger."],
    )
    assert run.proven() == ("run-1", 1, 6)


@pytest.mark.parametrize("name", ["part-run-1-00000002-0-0 (copy).parquet", "other.parquet"])
def test_an_extra_file_that_a_reader_takes_for_output_is_found(
    run: AuditedRun, target: Path, name: str
) -> None:
    shutil.copy(part(target, 2, 0), target / name)

    report = run.sink_report()

    assert report.difference is not None
    assert report.difference.part == name
    assert report.proven_checkpoint_id is None


def test_extra_output_of_an_empty_checkpoint_is_found(run: AuditedRun, target: Path) -> None:
    run.checkpoint(4)
    shutil.copy(part(target, 2, 0), target / "part-run-1-00000004-0-0.parquet")

    difference = run.sink_report().difference

    assert difference is not None
    assert difference.checkpoint_id == 4
    assert run.proven() == ("run-1", 3, 18)


def test_rows_may_move_within_a_checkpoint_but_not_between_two(
    run: AuditedRun, target: Path
) -> None:
    swap_rows(part(target, 2, 0), part(target, 2, 1))
    within = run.proven()
    swap_rows(part(target, 2, 0), part(target, 3, 0))

    assert within == ("run-1", 3, 18)
    assert run.proven() == ("run-1", 1, 6)


def test_output_is_only_counted_if_the_ledger_has_no_digests(tmp_path: Path, target: Path) -> None:
    run = AuditedRun(tmp_path, "run-1", ExactlyOnceFiles(target, pipeline="p"), RowCount)
    run.begin()
    run.write(1, 2, 3)
    run.checkpoint(1)

    assert run.proven() == ("run-1", 1, 3)
    assert run.sink_report().covers is Covers.COUNTED
    repeat_a_row(part(target, 1, 0))
    assert not run.audit().is_as_recorded


def test_output_of_an_aborted_checkpoint_belongs_to_the_next_one(run: AuditedRun) -> None:
    run.write(1, 2, 3)
    run.checkpoint(4, completes=False)
    run.write(4, 5)
    run.checkpoint(5)

    assert run.proven() == ("run-1", 5, 23)


@pytest.mark.parametrize("is_told", [False, True])
def test_output_is_proven_after_a_death_between_completion_and_commit(
    run: AuditedRun, *, is_told: bool
) -> None:
    run.write(1, 2, 3)
    run.checkpoint(4, commits=False, is_told=is_told)
    run.write(4, 5, 6)
    run.checkpoint(5, completes=False)

    run.begin((run, 4))
    run.write(4, 5, 6, 7)
    run.checkpoint(6)

    assert run.proven() == ("run-1", 6, 25)


def test_output_prepared_for_a_point_is_pending_until_an_attempt_runs(run: AuditedRun) -> None:
    run.write(1, 2, 3)
    run.checkpoint(4, commits=False)

    run.begin((run, 4), runs=False)

    report = run.audit()
    assert (report.committed_checkpoint_id, report.pending_checkpoint_id) == (3, 4)


def test_a_recovery_from_an_older_point_voids_the_ledger_after_it(run: AuditedRun) -> None:
    run.begin((run, 1))
    before = run.proven()
    run.write(50, 51)
    run.checkpoint(4)

    assert before == ("run-1", 1, 6)
    assert run.proven() == ("run-1", 4, 8)


def test_a_restored_run_is_proven_together_with_its_ancestor(
    run: AuditedRun, tmp_path: Path
) -> None:
    restored = AuditedRun(tmp_path, "run-2", run.sink)
    restored.begin((run, 2))
    before = restored.proven()
    restored.write(70, 71)
    restored.checkpoint(3)

    assert before == ("run-1", 2, 12)
    assert restored.proven() == ("run-2", 3, 14)


def test_later_recoveries_of_the_ancestor_of_a_run_do_not_matter(
    run: AuditedRun, tmp_path: Path
) -> None:
    restored = AuditedRun(tmp_path, "run-2", run.sink)
    restored.begin((run, 3))

    run.ledger.begin([(run.run_id, CheckpointId(1))], LedgerStart.at(run.points[1][0]))

    assert restored.proven() == ("run-1", 3, 18)


def test_a_lost_ledger_is_reported(run: AuditedRun, tmp_path: Path) -> None:
    restored = AuditedRun(tmp_path, "run-2", run.sink)
    restored.begin((run, 2))
    run.forget_ledger()
    restored.write(70, 71)
    restored.checkpoint(3)

    report = restored.audit()

    assert report.unknown == {"run-1": 2}
    assert restored.proven() == ("run-2", 3, 2)


def repeat_a_row(file: Path) -> None:
    table = pq.read_table(file)
    pq.write_table(pa.concat_tables([table, table.slice(0, 1)]), file)


def swap_rows(one: Path, other: Path) -> None:
    first, second = pq.read_table(one), pq.read_table(other)
    pq.write_table(pa.concat_tables([second.slice(0, 1), first.slice(1)]), one)
    pq.write_table(pa.concat_tables([second.slice(1), first.slice(0, 1)]), other)


def part(target: Path, checkpoint: int, subtask: int) -> Path:
    (found,) = target.glob(f"part-run-1-{checkpoint:08}-{subtask}-?.parquet")
    return found
