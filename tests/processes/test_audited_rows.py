"""Rows in PostgreSQL after kills: an audit proves them up to the newest checkpoint.

If someone changes rows in the table by hand, the audit reports it with the checkpoint.
"""

import os
import signal
import uuid
from pathlib import Path

import pytest

from pipelines.audit.auditor import audit
from pipelines.audit.report import AuditReport, Covers
from pipelines.domain.events import FailureOccurred
from pipelines.domain.run import RunDirectory
from pipelines.domain.status import JobStatus
from tests.postgres_server import PostgresServer
from tests.processes.host import hosted_run, hurry
from tests.processes.numbers import expected

pytestmark = pytest.mark.slow

STEP_S = 60.0
TOTAL = 30_000
PACED = {"pause_ms": "200", "total": str(TOTAL)}  # half a minute, unless hurried
SOONER = {"execution.checkpointing.interval": "100 ms"}
FLOW: dict[str, object] = {"pipeline": "numbers_rows"}


@pytest.mark.parametrize("kind", ["plain", "prepared"])
def test_rows_are_proven_after_every_kill_and_manual_changes_are_reported(
    tmp_path: Path, postgres: PostgresServer, kind: str
) -> None:
    schema = f"a{uuid.uuid4().hex}"
    values = {**PACED, "output": postgres.url_of(schema), "kind": kind}
    table = f'"{schema}".totals'

    with hosted_run(tmp_path, values, settings=SOONER, spec_fields=FLOW) as run:
        run.wait_for_more(2, STEP_S)
        os.kill(run.pid_of(1), signal.SIGKILL)
        run.wait_for_more(2, STEP_S)
        postgres.kill()
        postgres.start()
        run.wait_for_more(2, STEP_S)
        assert len(run.of(FailureOccurred)) >= 1
        os.kill(run.process.pid, signal.SIGKILL)
        run.process.wait(STEP_S)
    with hosted_run(tmp_path, run_id=run.directory.run_id, spec_fields=FLOW) as successor:
        hurry(tmp_path)
        assert successor.wait_until_over(STEP_S).status is JobStatus.FINISHED
    assert_proven(audit(run.directory))

    one = f"ctid = (SELECT min(ctid) FROM {table})"
    postgres.execute(f"INSERT INTO {table} SELECT * FROM {table} WHERE {one}")
    doubled = difference_of(run.directory)
    # The server may put a new row into freed space before others, so its values identify it.
    twins = f"SELECT d.ctid FROM {table} d, {table} o WHERE o.{one} AND d::text = o::text"
    postgres.execute(f"DELETE FROM {table} WHERE ctid = (SELECT max(ctid) FROM ({twins}) t)")
    assert_proven(audit(run.directory))
    postgres.execute(f"DELETE FROM {table} WHERE {one}")
    missing = difference_of(run.directory)

    assert doubled[0] == missing[0]
    assert (doubled[1], missing[1]) == (1, -1)


def assert_proven(report: AuditReport) -> None:
    (sink,), (source,) = report.sinks, report.sources
    assert report.is_as_recorded, (sink.difference, source.difference)
    assert report.pending_checkpoint_id is None
    assert sink.proven_checkpoint_id == report.committed_checkpoint_id is not None
    assert sink.covers is Covers.DIGESTED
    assert (sink.proven_rows, report.records_read) == (len(expected(TOTAL)), TOTAL)
    assert source.proven_checkpoint_id == report.committed_checkpoint_id


def difference_of(directory: RunDirectory) -> tuple[int, int]:
    """Returns the checkpoint of the difference, and the number of surplus rows."""
    (sink,) = audit(directory).sinks
    difference = sink.difference
    assert difference is not None
    assert difference.part == "totals"
    assert None not in (difference.checkpoint_id, difference.found_rows, difference.expected_rows)
    found, given = difference.found_rows or 0, difference.expected_rows or 0
    return difference.checkpoint_id or 0, found - given
