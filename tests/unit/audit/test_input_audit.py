"""An audit of the input: each split continues where the previous checkpoint left it."""

from pathlib import Path

import msgspec
import pytest

from pipelines.audit.report import InputReport, sentences
from pipelines.connectors import ExactlyOnceFiles
from pipelines.connectors.split_progress import SplitPositions
from pipelines.domain.events import LedgerAdvanced, LedgerBegun
from pipelines.domain.gaps import Gap
from pipelines.domain.ids import CheckpointId
from pipelines.domain.ledger import LedgerEntry, SourceInput, SplitRange
from tests.unit.audit.audited_run import AuditedRun
from tests.unit.runtime.points import operator_of

SPLIT = 0


@pytest.fixture
def run(tmp_path: Path) -> AuditedRun:
    """Three checkpoints, ten records each."""
    run = new_run(tmp_path, "run-1")
    run.begin()
    for number in (1, 2, 3):
        read(run, number, 10 * number)
    return run


def test_a_split_that_continues_where_it_was_left_is_proven(run: AuditedRun) -> None:
    report = source_report(run)

    assert (report.proven_checkpoint_id, report.records) == (3, 30)
    assert (report.difference, report.unknown_checkpoint_id) == (None, None)


@pytest.mark.parametrize(
    ("first", "sentence"),
    [
        (35, "Split 0 was left at offset 30 and continues at offset 35."),
        (25, "Split 0 was read again from offset 25, read up to offset 30."),
        (None, "Split 0 was read again from its beginning, read up to offset 30."),
    ],
)
def test_a_gap_and_an_overlap_are_reported_with_checkpoint_and_split(
    run: AuditedRun, first: int | None, sentence: str
) -> None:
    tell(run, 4, SplitRange(split="0", first=first, end=40))

    report = source_report(run)

    assert report.difference is not None
    assert (report.difference.what, report.difference.part) == (sentence, "split 0")
    assert (report.difference.checkpoint_id, report.proven_checkpoint_id) == (4, 3)
    assert not run.audit().is_as_recorded


@pytest.mark.parametrize("first", [35, 36])
def test_only_the_exact_gap_that_was_accepted_is_no_difference(run: AuditedRun, first: int) -> None:
    """The run begins again after a gap of five records."""
    gap = Gap(source=operator_of().uid, split="0", first=30, last=34, records=5)
    run.tell(LedgerBegun(lineage=[(run.run_id, CheckpointId(3))], start=None, gaps=[gap]))
    tell(run, 4, SplitRange(split="0", first=first, end=40))

    report = source_report(run)

    assert report.gaps == [gap]
    assert (report.difference is None) == (first == 35)
    assert f"  lost, as a person accepted: {gap.lost}" in sentences(run.audit())


def test_rereading_a_split_that_was_read_whole_is_a_difference(run: AuditedRun) -> None:
    tell(run, 4, SplitRange(split="0", first=30, end=None))
    tell(run, 5, SplitRange(split="0", first=30, end=40), records_read=50)

    difference = source_report(run).difference

    assert difference is not None
    assert difference.what == "Split 0 was read again from offset 30, read up to its end."


def test_the_run_and_its_sources_must_count_the_same_records(run: AuditedRun) -> None:
    tell(run, 4, SplitRange(split="0", first=30, end=40), records_read=41)

    difference = source_report(run).difference

    assert difference is not None
    assert "read 10 records, and the run that it read 11." in difference.what


def test_rereading_records_that_a_failure_voided_is_no_overlap(run: AuditedRun) -> None:
    run.begin((run, 2))
    read(run, 4, 25)

    report = source_report(run)

    assert (report.proven_checkpoint_id, report.records, report.difference) == (4, 25, None)


def test_a_restored_run_is_proven_to_read_on_from_its_point(
    run: AuditedRun, tmp_path: Path
) -> None:
    restored = new_run(tmp_path, "run-2")
    restored.begin((run, 2))
    read(restored, 3, 26)

    report = source_report(restored)

    assert (report.proven_run_id, report.proven_checkpoint_id, report.records) == ("run-2", 3, 26)


def test_across_an_unrecorded_point_nothing_is_compared_and_the_audit_says_so(
    run: AuditedRun,
) -> None:
    read(run, 4, 40, is_told=False)
    run.begin((run, 4))
    read(run, 5, 50)

    report = source_report(run)

    assert (report.proven_checkpoint_id, report.unknown_checkpoint_id) == (5, 4)
    assert report.difference is None


def new_run(root: Path, run_id: str) -> AuditedRun:
    return AuditedRun(root, run_id, ExactlyOnceFiles(root / "target", pipeline="p"))


def read(run: AuditedRun, number: int, records: int, *, is_told: bool = True) -> None:
    """Takes a checkpoint up to which `records` records of the split were read."""
    run.read = operator_of(
        positions=msgspec.to_builtins(SplitPositions(((SPLIT, records),), frontier=1, stride=1)),
        counters={"records_read": records},
    )
    run.checkpoint(number, is_told=is_told)


def tell(run: AuditedRun, number: int, split: SplitRange, records_read: int | None = None) -> None:
    """Writes a ledger entry that the engine itself never writes."""
    entry = LedgerEntry(
        run_id=run.run_id,
        checkpoint_id=CheckpointId(number),
        records_read=10 * number if records_read is None else records_read,
        inputs=[SourceInput(source=operator_of().uid, records=10, splits=[split])],
        outputs=[],
    )
    run.tell(LedgerAdvanced(entry=entry))
    run.say_committed(number)


def source_report(run: AuditedRun) -> InputReport:
    (report,) = run.audit().sources
    return report
