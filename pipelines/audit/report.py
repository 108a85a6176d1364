"""What an audit says: values, for people and for scripts."""

import msgspec

from pipelines.audit.history import Cut
from pipelines.audit.output import Covers, Difference
from pipelines.domain.ids import CheckpointId, RunId, Uid


class DifferenceReport(msgspec.Struct, frozen=True, kw_only=True):
    """`what` is one sentence; the rest as far as it is known."""

    what: str
    run_id: RunId | None
    checkpoint_id: CheckpointId | None
    expected_rows: int | None
    expected_digest: str | None
    found_rows: int | None
    found_digest: str | None
    part: str | None  # a file, a table, a range of offsets


class SinkReport(msgspec.Struct, frozen=True, kw_only=True):
    """`proven_checkpoint_id` is of `proven_run_id`; None: nothing is proven.

    `unread_checkpoint_id`: the newest whose output the target does not keep any more, or whose
    place in it the ledger does not say; it is not judged, and nor is what is older.
    """

    sink: Uid
    guarantee: str
    covers: Covers
    proven_run_id: RunId | None
    proven_checkpoint_id: CheckpointId | None
    proven_rows: int
    difference: DifferenceReport | None
    unread_checkpoint_id: CheckpointId | None = None


class InputReport(msgspec.Struct, frozen=True, kw_only=True):
    """Of one source: whether what it read has neither gap nor overlap, split by split.

    `records` were read up to `proven_checkpoint_id`; `unknown_checkpoint_id` is the newest before
    which the ledger does not say where the reading was: nothing is compared across it.
    """

    source: Uid
    records: int
    proven_run_id: RunId | None
    proven_checkpoint_id: CheckpointId | None
    unknown_checkpoint_id: CheckpointId | None
    difference: DifferenceReport | None


class AuditReport(msgspec.Struct, frozen=True, kw_only=True):
    """Of the points on the way to this run, and of its own. As long as nothing is committed no
    target is looked at, which may not be there yet."""

    run_id: RunId
    is_as_recorded: bool  # nothing differs
    committed_checkpoint_id: CheckpointId | None  # the newest whose output must be visible
    pending_checkpoint_id: CheckpointId | None  # the newest that is complete and not committed yet
    records_read: int  # by the sources, up to the committed checkpoint, since the first run
    unknown: dict[RunId, CheckpointId]  # runs it descends from whose ledger is not there any more
    sources: list[InputReport]
    sinks: list[SinkReport]


def described(difference: Difference) -> DifferenceReport:
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


def checkpoint_of(cut: Cut | None) -> CheckpointId | None:
    return cut.checkpoint_id if cut else None


def run_of(cut: Cut | None) -> RunId | None:
    return cut.run_id if cut else None
