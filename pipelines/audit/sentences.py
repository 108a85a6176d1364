"""An audit's report in sentences, for a person at a terminal."""

from collections.abc import Iterator

from pipelines.audit.output import Covers
from pipelines.audit.report import AuditReport, DifferenceReport, InputReport, SinkReport


def sentences(report: AuditReport) -> Iterator[str]:
    if report.committed_checkpoint_id is None:
        yield f"{report.run_id}: no checkpoint has been committed yet."
    else:
        yield f"{report.run_id}: committed up to checkpoint {report.committed_checkpoint_id}."
    for run_id, checkpoint_id in report.unknown.items():
        yield f"The ledger of {run_id}, up to checkpoint {checkpoint_id}, is not there any more."
    for source in report.sources:
        yield f"{source.source}: {_of_source(source)}"
        if source.difference is not None:
            yield from _of_difference(source.difference)
    for sink in report.sinks:
        yield f"{sink.sink}: {_of_sink(sink)}"
        if sink.difference is not None:
            yield from _of_difference(sink.difference)


def _of_source(source: InputReport) -> str:
    if source.proven_checkpoint_id is None:
        return "nothing is known of what it read."
    where = f"up to checkpoint {source.proven_checkpoint_id} of {source.proven_run_id}"
    if source.unknown_checkpoint_id is None:
        return f"read {source.records} records {where}, without gap or overlap."
    return (
        f"read without gap or overlap {where}, but for checkpoint {source.unknown_checkpoint_id},"
        " before which the ledger does not say how far it was."
    )


def _of_sink(sink: SinkReport) -> str:
    if sink.covers is Covers.NOTHING and sink.difference is None:
        return f"not audited, {_why_not(sink)}."
    if sink.proven_checkpoint_id is None:
        return "nothing is proven."
    since = f" since checkpoint {sink.unread_checkpoint_id}" if sink.unread_checkpoint_id else ""
    return (
        f"proven{since} up to checkpoint {sink.proven_checkpoint_id} of {sink.proven_run_id},"
        f" {sink.proven_rows} rows, {sink.covers}."
    )


def _why_not(sink: SinkReport) -> str:
    if sink.unread_checkpoint_id is None:
        return "its target cannot be read again"
    return f"its target does not keep the output up to checkpoint {sink.unread_checkpoint_id}"


def _of_difference(difference: DifferenceReport) -> Iterator[str]:
    where = f"checkpoint {difference.checkpoint_id}: " if difference.checkpoint_id else ""
    yield f"  first difference: {where}{difference.what}"
    if difference.expected_rows is not None:
        yield f"  given {difference.expected_rows} rows, digest {difference.expected_digest}"
    if difference.found_rows is not None:
        yield f"  found {difference.found_rows} rows, digest {difference.found_digest or 'none'}"
    if difference.part is not None and difference.part not in difference.what:
        yield f"  in {difference.part}"
