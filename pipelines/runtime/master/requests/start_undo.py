"""Decides if a start from the beginning is undone: the run ends, and earlier output is put back.

The start has set aside the output that earlier runs had committed. As long as the run has committed
nothing, ending it and rewinding its sinks to that output loses nothing that a reader has seen. The
attempt ends first. Then the sinks are rewound as before any attempt (`attempts`): a target that
does not answer is tried again, and a target that another run holds ends the run.

The journals tell which output came before. A run that committed nothing and did not start from a
point has no output of its own, so the run before it counts. The same is true of a run whose start
was undone: its ledger begins with the output that was put back.

The driver records that output is back before it ends the run. If it dies before that, the request
is still in the inbox; if it dies after it, the event is in the journal. Either way its successor
does the same again.
"""

from collections.abc import Callable

import msgspec

from pipelines.bus.journal import UndecodableEvent, newest_envelope
from pipelines.domain.commands import UndoStart
from pipelines.domain.errors import UNDECODABLE, Rejected, check
from pipelines.domain.events import CheckpointCompleted, LedgerAdvanced, LedgerBegun, StartUndone
from pipelines.domain.ids import CheckpointId, RequestId, RunId
from pipelines.domain.run import RunDirectory, RunSpec
from pipelines.domain.status import JobStatus, RequestOutcome
from pipelines.protocol.retention import RetainedPoints
from pipelines.runtime.master.requests.request_desk import RequestDesk
from pipelines.runtime.master.run_context import RunContext

Lineage = list[tuple[RunId, CheckpointId]]


class StartUndo:
    """Guarantee: output is put back only if the run has committed nothing, in any attempt."""

    def __init__(
        self, context: RunContext, points: RetainedPoints, is_publishing: Callable[[], bool]
    ) -> None:
        """`points`: those of the run. `is_publishing`: a checkpoint may be complete already."""
        self._context = context
        self._points = points
        self._is_publishing = is_publishing
        self._command: UndoStart | None = None
        self._has_put_back = context.journal.newest(StartUndone) is not None

    @property
    def is_due(self) -> bool:
        """True if no attempt may begin any more: instead, sinks are rewound to `output_before`."""
        return self._command is not None or self._has_put_back or self._context.spec.puts_back

    @property
    def output_before(self) -> Lineage:
        """The output before this run, for `Sink.rewind`. Raises Rejected if it is not known."""
        return output_before(self._context.lease.run_directory, self._context.spec.follows)

    def problem(self) -> str:
        """Returns a sentence that says why the start cannot be undone, or "" if it can."""
        spec = self._context.spec
        if spec.puts_back and self._command is None:
            return ""
        if self.is_due:
            return f"The start of run {spec.run_id} is being undone already."
        if spec.restore_from is not None:
            return (
                f"Run {spec.run_id} was restored from a point; only a start from the beginning can"
                " be undone."
            )
        if self._has_committed:
            return (
                f"Run {spec.run_id} has completed a checkpoint and committed output, so its start"
                " can no longer be undone; restore a point of an earlier run to go back."
            )
        if self._is_publishing():
            return (
                f"A checkpoint of run {spec.run_id} is being completed right now; if it fails, ask"
                " again."
            )
        if not self.output_before:
            return f"No run before {spec.run_id} has committed output: nothing can be put back."
        return ""

    def on_request(self, command: UndoStart) -> None:
        """Call if `problem` returns none."""
        self._command = command

    def check_nothing_committed(self) -> None:
        """Call before sinks are rewound. Raises InvariantViolated."""
        check(not self._has_committed, "a start is undone before anything is committed")

    def on_put_back(self, lineage: Lineage) -> None:
        """Records that the sinks hold this output again, and ends the run."""
        record, command = self._context.record, self._command
        who = command.requested_by if command else self._context.spec.started_by
        record.emit(StartUndone(lineage=lineage))
        self._has_put_back = True
        run_id, checkpoint_id = lineage[-1] if lineage else (self._context.spec.run_id, 0)
        reason = (
            f"{who or 'A person'} undid the start: the output of run {run_id} up to checkpoint"
            f" {checkpoint_id} is back."
        )
        record.move_to(JobStatus.CANCELLING, reason)
        record.end(JobStatus.CANCELED, reason)

    def answer(self, desk: RequestDesk) -> None:
        """Call once the journal says how the run ended, so that no driver starts it again."""
        request_id: RequestId | None = self._command.request_id if self._command else None
        if self._has_put_back:
            desk.answer(request_id, RequestOutcome.SUCCEEDED, "The output is back.")

    @property
    def _has_committed(self) -> bool:
        """Checks the points, too: a driver may have died before it recorded one it published."""
        completed = self._context.journal.newest(CheckpointCompleted)
        own = (point for point in self._points.every_newest_first() if not point.is_claimed)
        return completed is not None or any(True for _ in own)


def output_before(run: RunDirectory, follows: RunId | None) -> Lineage:
    """Returns, as `Sink.rewind` takes it, the output that was visible when the run began: for each
    run, the last checkpoint whose output was. It is empty if there was no output.

    `follows`: the run before this one. Raises Rejected if an earlier run is not known here.
    """
    seen = {run.run_id}
    while follows is not None and follows not in seen:
        seen.add(follows)
        directory = RunDirectory(run.path.parent / follows)
        try:
            found = _visible(directory)
            spec = msgspec.json.decode(directory.spec_file.read_bytes(), type=RunSpec)
        except (OSError, UndecodableEvent, *UNDECODABLE) as error:
            raise Rejected(
                f"What run {follows} committed cannot be read: {error}. Restore one of its points"
                " instead; that puts its output back up to the point."
            ) from error
        if found:
            return found
        follows = spec.follows
    return []


def _visible(run: RunDirectory) -> Lineage:
    """Returns the output that the newest attempt began with, and that the run committed since."""
    begun = newest_envelope(run.journal_file, LedgerBegun)
    if begun is None or not isinstance(begun.event, LedgerBegun):
        return []
    lineage = dict(begun.event.lineage)
    newest = newest_envelope(run.journal_file, LedgerAdvanced)
    if newest is None or newest.sequence < begun.sequence:
        return list(lineage.items())
    if isinstance(newest.event, LedgerAdvanced):
        lineage[run.run_id] = newest.event.entry.checkpoint_id
    return list(lineage.items())
