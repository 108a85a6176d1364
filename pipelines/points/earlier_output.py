"""Which output a pipeline had before one of its runs started over. Reads journals; changes nothing.

A run that committed nothing and did not go on from a point has no output of its own, so the one
before it counts. That is also true of a run whose start was undone: its ledger begins with the
output that was put back.
"""

import msgspec

from pipelines.bus.journal import UndecodableEvent, newest_envelope
from pipelines.domain.errors import UNDECODABLE, Rejected
from pipelines.domain.events import LedgerAdvanced, LedgerBegun
from pipelines.domain.ids import CheckpointId, RunId
from pipelines.domain.run import RunDirectory, RunSpec

Lineage = list[tuple[RunId, CheckpointId]]


def output_before(run: RunDirectory, follows: RunId | None) -> Lineage:
    """For each run, up to which checkpoint its output was visible when the run began; as
    `Sink.rewind` takes it. Empty: there was none.

    `follows`: the run before it. Raises Rejected if a run before it is not known here.
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
    """What the newest attempt began with, and what the run has committed since."""
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
