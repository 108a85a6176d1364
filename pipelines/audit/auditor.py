"""Audits the output of a run: up to which checkpoint it is, row for row, what the ledger says.

Only points whose output must be visible are judged, so a run may go on meanwhile. That what was
given to a sink is the right answer is not the auditor's subject: it proves that nothing of it was
lost, doubled or changed on the way to where readers find it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pyarrow as pa

from pipelines.audit.file_output import FileOutput
from pipelines.audit.history import Cut, FindJournal, History, Point, read_history
from pipelines.audit.output import Covers, Difference, TargetReader, given
from pipelines.audit.table_output import TableOutput
from pipelines.connectors.files.sink import ExactlyOnceFiles
from pipelines.connectors.postgres.insert import PostgresInsert
from pipelines.connectors.sink import Sink
from pipelines.connectors.sql.upsert import SqlUpsert
from pipelines.domain.errors import Rejected
from pipelines.domain.ids import CheckpointId, RunId, Uid
from pipelines.domain.run import RunDirectory, RunSpec
from pipelines.flows.registry import flow


class DifferenceReport(msgspec.Struct, frozen=True, kw_only=True):
    """`what` is one sentence; the rest as far as it is known."""

    what: str
    run_id: RunId | None
    checkpoint_id: CheckpointId | None
    expected_rows: int | None
    expected_digest: str | None
    found_rows: int | None
    found_digest: str | None
    part: str | None  # a file, or a table


class SinkReport(msgspec.Struct, frozen=True, kw_only=True):
    """`proven_checkpoint_id` is of `proven_run_id`; None: nothing is proven."""

    sink: Uid
    guarantee: str
    covers: Covers
    proven_run_id: RunId | None
    proven_checkpoint_id: CheckpointId | None
    proven_rows: int
    difference: DifferenceReport | None


class AuditReport(msgspec.Struct, frozen=True, kw_only=True):
    """Of the points on the way to this run, and of its own."""

    run_id: RunId
    is_as_recorded: bool  # nothing differs
    committed_checkpoint_id: CheckpointId | None  # the newest whose output must be visible
    pending_checkpoint_id: CheckpointId | None  # the newest that is complete and not committed yet
    records_read: int  # by the sources, up to the committed checkpoint, since the first run
    unknown: dict[RunId, CheckpointId]  # runs it descends from whose ledger is not there any more
    sinks: list[SinkReport]


def audit(run: RunDirectory) -> AuditReport:
    """Raises Rejected when the run, its journal or a target cannot be read."""
    spec = _spec_of(run)
    history = read_history(spec.run_id, run.journal_file, _journals_beside(run))
    pipeline = flow(spec.pipeline).build(spec.parameters)
    sinks = [(uid, each, pipeline.input_schemas(uid)[0]) for uid, each in pipeline.sinks.items()]
    return audit_sinks(sinks, history)


def audit_sinks(taking: Sequence[tuple[Uid, Sink, pa.Schema]], history: History) -> AuditReport:
    """Each sink with the schema of the rows that it takes."""
    sinks = [
        _SinkAudit(uid, sink, _reader_of(sink, schema), history).report()
        for uid, sink, schema in taking
    ]
    return AuditReport(
        run_id=history.run_id,
        is_as_recorded=all(each.difference is None for each in sinks),
        committed_checkpoint_id=_newest(history.committed),
        pending_checkpoint_id=_newest(history.pending),
        records_read=history.committed[-1].records_read if history.committed else 0,
        unknown=history.unknown,
        sinks=sinks,
    )


@dataclass(frozen=True, slots=True)
class _SinkAudit:
    uid: Uid
    sink: Sink
    reader: TargetReader | None  # None: nobody can read it again
    history: History

    def report(self) -> SinkReport:
        if self.reader is None:
            return self._report(Covers.NOTHING, None, 0, None)
        stray = self.reader.stray(self.history, self.uid)
        if stray is not None and not self._has_point_of(stray):
            return self._report(Covers.NOTHING, None, 0, stray)
        proven: Cut | None = None
        rows, covers = 0, Covers.DIGESTED
        for point in self.history.committed:
            judged = self._judge(self.reader, point, stray)
            if isinstance(judged, Difference):
                return self._report(covers, proven, rows, judged)
            covers = Covers.COUNTED if judged is Covers.COUNTED else covers
            rows += sum(given(outputs).count for outputs in point.given_to(self.uid).values())
            proven = point.cut
        return self._report(covers, proven, rows, None)

    def _judge(
        self, reader: TargetReader, point: Point, stray: Difference | None
    ) -> Difference | Covers:
        covers = Covers.DIGESTED
        for cut, outputs in point.given_to(self.uid).items():
            judged = reader.judge(cut, outputs)
            if isinstance(judged, Difference):
                return judged
            covers = Covers.COUNTED if judged is Covers.COUNTED else covers
        return stray if stray is not None and _is_behind(stray, point) else covers

    def _has_point_of(self, stray: Difference) -> bool:
        return any(_is_behind(stray, point) for point in self.history.committed)

    def _report(
        self, covers: Covers, proven: Cut | None, rows: int, difference: Difference | None
    ) -> SinkReport:
        return SinkReport(
            sink=self.uid,
            guarantee=self.sink.guarantee,
            covers=covers,
            proven_run_id=proven.run_id if proven else None,
            proven_checkpoint_id=proven.checkpoint_id if proven else None,
            proven_rows=rows,
            difference=_described(difference) if difference else None,
        )


def _is_behind(stray: Difference, point: Point) -> bool:
    """Whether the point ought to have it."""
    cut, newest = stray.cut, point.cut
    return (
        cut is not None
        and cut.run_id == newest.run_id
        and (cut.checkpoint_id <= newest.checkpoint_id)
    )


def _reader_of(sink: Sink, schema: pa.Schema) -> TargetReader | None:
    match sink:
        case ExactlyOnceFiles(directory=directory):
            return FileOutput(Path(directory), schema)
        case SqlUpsert(url=url, table=table):
            return TableOutput(url, table, schema, is_upserted=True)
        case PostgresInsert(url=url, table=table):
            return TableOutput(url, table, schema, is_upserted=False)
    return None


def _described(difference: Difference) -> DifferenceReport:
    cut, expected, found = difference.cut, difference.expected, difference.found
    return DifferenceReport(
        what=difference.what,
        run_id=cut.run_id if cut else None,
        checkpoint_id=cut.checkpoint_id if cut else None,
        expected_rows=expected.count if expected else None,
        expected_digest=expected.digest_text if expected else None,
        found_rows=found.count if found else None,
        found_digest=found.digest_text if found else None,
        part=difference.part,
    )


def _newest(points: Sequence[Point]) -> CheckpointId | None:
    return points[-1].cut.checkpoint_id if points else None


def _spec_of(run: RunDirectory) -> RunSpec:
    try:
        return msgspec.json.decode(run.spec_file.read_bytes(), type=RunSpec)
    except (OSError, msgspec.MsgspecError) as error:
        raise Rejected(f"{run.spec_file} cannot be read: {error}.") from error


def _journals_beside(run: RunDirectory) -> FindJournal:
    """Runs are named uniquely over all pipelines of an installation."""

    def find(run_id: RunId) -> Path | None:
        found = run.jobs_root.glob(f"*/runs/{run_id}/{run.journal_file.name}")
        return next(found, None)

    return find
