"""Reports of audits for tests."""

import msgspec

from pipelines.audit.report import AuditReport, Covers, DifferenceReport, InputReport, SinkReport
from pipelines.domain.ids import CheckpointId, RunId, Uid

PROVEN = SinkReport(
    sink=Uid("delays"),
    guarantee="exactly-once",
    covers=Covers.DIGESTED,
    proven_run_id=RunId("run-1"),
    proven_checkpoint_id=CheckpointId(7),
    proven_rows=70,
    difference=None,
)
DIFFERENCE = DifferenceReport(
    what="70 rows were given, and as many are there, but not the same ones.",
    run_id=RunId("run-1"),
    checkpoint_id=CheckpointId(7),
    expected_rows=70,
    expected_digest="00000000000000aa",
    found_rows=70,
    found_digest="00000000000000bb",
    part="part-7.parquet",
)
NOT_PROVEN = msgspec.structs.replace(
    PROVEN, proven_checkpoint_id=CheckpointId(6), difference=DIFFERENCE
)
READ = InputReport(
    source=Uid("flights"),
    records=1000,
    proven_run_id=RunId("run-1"),
    proven_checkpoint_id=CheckpointId(7),
    unknown_checkpoint_id=None,
    difference=None,
)


def report_of(sink: SinkReport) -> AuditReport:
    return AuditReport(
        run_id=RunId("run-1"),
        is_as_recorded=sink.difference is None,
        committed_checkpoint_id=CheckpointId(7),
        pending_checkpoint_id=None,
        records_read=1000,
        unknown={},
        sources=[READ],
        sinks=[sink],
    )
