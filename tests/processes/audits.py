"""The audit that a finished run of the flow `numbers` must pass."""

from pathlib import Path

from pipelines.audit.auditor import audit
from pipelines.audit.report import Covers
from pipelines.domain.run import RunDirectory
from tests.processes.numbers import expected


def assert_proven(root: Path, total: int) -> None:
    """Asserts that the only run in `root` read each record once and has all its output rows."""
    (run,) = (RunDirectory(path) for path in root.glob("numbers/runs/*"))

    report = audit(run)

    (sink,) = report.sinks
    assert report.is_as_recorded, sink.difference
    assert (report.pending_checkpoint_id, report.unknown) == (None, {})
    assert sink.proven_checkpoint_id == report.committed_checkpoint_id is not None
    assert (report.records_read, sink.proven_rows) == (total, len(expected(total)))
    assert sink.covers is Covers.DIGESTED
