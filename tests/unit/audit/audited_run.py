"""A run with one sink: its journal and its target are written for real, but without the engine."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa

from pipelines.audit.auditor import audit_sinks
from pipelines.audit.history import History, read_history
from pipelines.audit.report import AuditReport, SinkReport
from pipelines.bus.journal import JournalWriter
from pipelines.bus.journal_segments import (
    SEGMENT_BYTES,
    closed_segments,
    delete_segments,
    segments_of,
)
from pipelines.connectors.contract import Sink, SinkContext
from pipelines.domain.events import CheckpointCommitted, Event, JobStatusChanged
from pipelines.domain.ids import Attempt, CheckpointId, RunId, Uid
from pipelines.domain.run import RunDirectory
from pipelines.domain.snapshots import Manifest, OperatorSnapshot
from pipelines.domain.status import JobStatus
from pipelines.protocol.commit import CommitLog, Prepared
from pipelines.runtime.clocks import SystemClock
from pipelines.runtime.master.output.run_ledger import LedgerStart, RunLedger
from pipelines.runtime.subtask.chains.chain_node import OpenSink
from pipelines.state.row_digest import RowCount, RowDigest
from tests.takeovers import rewound
from tests.unit.runtime.permits import permit
from tests.unit.runtime.points import manifest_of, operator_of

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("at", pa.timestamp("ms", tz="UTC")),
        ("x", pa.float64()),
        ("name", pa.string()),
    ]
)
OUT = Uid("out")
Given = RowDigest | RowCount
PARALLELISM = 2


class AuditedRun:
    """The attempts of one run. A recovery point is a manifest and the output its sinks prepared."""

    def __init__(
        self,
        root: Path,
        run_id: str,
        sink: Sink,
        given: Callable[[], Given] = RowDigest,
        segment_bytes: int = SEGMENT_BYTES,
        schema: pa.Schema = SCHEMA,
    ) -> None:
        """`schema` has the column types of `SCHEMA`; the names may differ."""
        self.run_id = RunId(run_id)
        self.sink = sink
        self._given = given
        self._schema = schema
        self._root = root
        self._segment_bytes = segment_bytes
        self._directory = RunDirectory.of(root, "audited", self.run_id)
        self._journal = self._opened()
        self._attempt = Attempt(0)
        self.ledger = RunLedger(lambda event: self.tell(event))
        self.read: OperatorSnapshot | None = None  # a source's snapshot, added to each checkpoint
        self._sinks: list[OpenSink] = []
        self.points: dict[int, tuple[Manifest, list[tuple[Prepared, ...]]]] = {}

    def begin(self, start: "tuple[AuditedRun, int] | None" = None, *, runs: bool = True) -> None:
        """Starts an attempt and abandons the previous attempt's writers."""
        manifest, prepared = start[0].points[start[1]] if start else (None, [])
        lineage = [] if manifest is None else [*manifest.ancestors, _end(manifest)]
        self._attempt = Attempt(self._attempt + 1)
        self._ancestors = [each for each in lineage if each[0] != self.run_id]
        self.ledger.begin(lineage, LedgerStart.at(manifest) if manifest else LedgerStart())
        rewound(self.sink, lineage, self.run_id)
        self._sinks = [self._open(i, prepared[i] if prepared else ()) for i in range(PARALLELISM)]
        if runs:
            self.tell(JobStatusChanged(status=JobStatus.RUNNING))

    def write(self, *ids: int) -> None:
        """Writes rows with these ids, dealt to the subtasks in turn."""
        for subtask, sink in enumerate(self._sinks):
            columns = rows(ids[subtask::PARALLELISM]).columns
            sink.write(pa.RecordBatch.from_arrays(columns, schema=self._schema))

    def checkpoint(
        self, number: int, *, commits: bool = True, completes: bool = True, is_told: bool = True
    ) -> None:
        """`is_told`: the driver lives long enough to enter the checkpoint into the ledger."""
        checkpoint_id = CheckpointId(number)
        cuts = [sink.prepare(checkpoint_id) for sink in self._sinks]
        operators = [[operator_of(uid=OUT, outputs=list(cut.outputs))] for cut in cuts]
        if self.read is not None:
            operators[0].append(self.read)
        manifest = manifest_of(
            operators, run_id=self.run_id, checkpoint_id=checkpoint_id, ancestors=self._ancestors
        )
        if not completes:
            return
        self.points[number] = manifest, [cut.prepared for cut in cuts]
        if is_told:
            self.ledger.on_completed(manifest)
        if commits:
            for sink in self._sinks:
                sink.commit(permit(checkpoint_id))
            self.say_committed(number)

    def say_committed(self, number: int) -> None:
        self.tell(CheckpointCommitted(checkpoint_id=CheckpointId(number)))

    def tell(self, event: Event) -> None:
        self._journal.append(event, self._attempt)

    def audit(self) -> AuditReport:
        return audit_sinks([(OUT, self.sink, self._schema)], self.history)

    def history(self) -> History:
        runs = map(RunDirectory, self._root.glob("audited/runs/*"))
        journals = {each.run_id: each.journal_file for each in runs}
        known = {run_id: path for run_id, path in journals.items() if segments_of(path)}
        return read_history(self.run_id, self._directory.journal_file, known.get)

    def sink_report(self) -> SinkReport:
        (report,) = self.audit().sinks
        return report

    def proven(self) -> tuple[str | None, int | None, int]:
        """Returns the run and checkpoint up to which the output is proven, and the proven rows."""
        report = self.sink_report()
        return report.proven_run_id, report.proven_checkpoint_id, report.proven_rows

    def forget_ledger(self) -> None:
        self._journal.close()
        delete_segments(segments_of(self._directory.journal_file))
        self._journal = self._opened()

    def delete_old_segments(self) -> int:
        """Deletes all segments but the newest, and returns how many."""
        closed = closed_segments(self._directory.journal_file)
        delete_segments([each.segment for each in closed])
        return len(closed)

    def _open(self, subtask: int, prepared: Sequence[Prepared]) -> OpenSink:
        context = SinkContext(self.run_id, self._attempt, OUT, subtask, PARALLELISM)
        sink = OpenSink(
            self.sink.open(context, self._schema), CommitLog(tuple(prepared)), self._given()
        )
        sink.commit_restored()
        return sink

    def _opened(self) -> JournalWriter:
        return JournalWriter(
            self._directory,
            self.run_id,
            SystemClock(),
            lambda *_: None,
            segment_bytes=self._segment_bytes,
        )


def rows(ids: Sequence[int]) -> pa.RecordBatch:
    columns = [
        pa.array(ids, pa.int64()),
        pa.array([1_000 * i + 1 for i in ids], SCHEMA.field("at").type),
        pa.array([None if i % 5 == 0 else i / 7 for i in ids], pa.float64()),
        pa.array([f"name {i % 3}" for i in ids]),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def _end(manifest: Manifest) -> tuple[RunId, CheckpointId]:
    return manifest.run_id, manifest.checkpoint_id
