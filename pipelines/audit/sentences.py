"""An audit's report in sentences, for a person at a terminal."""

from collections.abc import Iterator

from pipelines.audit.auditor import AuditReport, DifferenceReport, SinkReport
from pipelines.audit.output import Covers


def sentences(report: AuditReport) -> Iterator[str]:
    if report.committed_checkpoint_id is None:
        yield f"{report.run_id}: no checkpoint has been committed yet."
    else:
        yield f"{report.run_id}: committed up to checkpoint {report.committed_checkpoint_id}."
    for run_id, checkpoint_id in report.unknown.items():
        yield f"The ledger of {run_id}, up to checkpoint {checkpoint_id}, is not there any more."
    for sink in report.sinks:
        yield f"{sink.sink}: {_of_sink(sink)}"
        if sink.difference is not None:
            yield from _of_difference(sink.difference)


def _of_sink(sink: SinkReport) -> str:
    if sink.covers is Covers.NOTHING and sink.difference is None:
        return "not audited, its target cannot be read again."
    if sink.proven_checkpoint_id is None:
        return "nothing is proven."
    return (
        f"proven up to checkpoint {sink.proven_checkpoint_id} of {sink.proven_run_id},"
        f" {sink.proven_rows} rows, {sink.covers}."
    )


def _of_difference(difference: DifferenceReport) -> Iterator[str]:
    where = f"checkpoint {difference.checkpoint_id}: " if difference.checkpoint_id else ""
    yield f"  first difference: {where}{difference.what}"
    if difference.expected_rows is not None:
        yield f"  given {difference.expected_rows} rows, digest {difference.expected_digest}"
    if difference.found_rows is not None:
        yield f"  found {difference.found_rows} rows, digest {difference.found_digest or 'none'}"
    if difference.part is not None and difference.part not in difference.what:
        yield f"  in {difference.part}"
