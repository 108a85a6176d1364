"""The ledger of a run: what each checkpoint read, and its output to each sink.

This module has only the values. The runtime counts and digests them where it writes to a sink
(`protocol.commit`). They travel with the snapshot, and enter the journal when their checkpoint is
complete, before any sink commits. So everything that a reader of the output can see is in the
ledger. A target that takes nothing back keeps what was published after the point that a run goes
back to. The counters of a cut say how many of those records readers see a second time. Pure.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from pipelines.domain.ids import CheckpointId, RunId, Uid


class OutputShare(msgspec.Struct, frozen=True, kw_only=True):
    """The output of one sink subtask between two cuts, the later of them at `checkpoint_id`.

    If that checkpoint was aborted, its output belongs to the next completed one.
    """

    checkpoint_id: CheckpointId
    rows: int
    digest: str | None  # of the rows in any order, 16 hexadecimal digits: `state.row_digest`
    tokens: list[str] = []  # what the commit makes visible: file names, markers


class SinkOutput(msgspec.Struct, frozen=True, kw_only=True):
    sink: Uid
    subtask: int
    share: OutputShare


class SplitRange(msgspec.Struct, frozen=True, kw_only=True):
    """The offsets of one split that were read: from `first` up to, not including, `end`."""

    split: str
    first: int | None  # None: the place where its reading began
    end: int | None  # None: all that was left


class SourceInput(msgspec.Struct, frozen=True, kw_only=True):
    """The input of a source between two completed checkpoints."""

    source: Uid
    records: int
    splits: list[SplitRange]


class LedgerEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One completed checkpoint's entry.

    An output that an earlier entry also has is the same one.
    """

    run_id: RunId
    checkpoint_id: CheckpointId
    records_read: int  # by all sources from the first run up to the checkpoint
    inputs: list[SourceInput]
    outputs: list[SinkOutput]


RECORDS_WRITTEN = "records_written"
"""A sink's counter: the records that it was given before the cut. No restart adds to it."""

RECORDS_WRITTEN_SINCE = "records_written_since_upgrade"
"""The same, counted since a point of an earlier version, which had counted none."""


@dataclass(frozen=True, slots=True)
class WrittenFigure:
    """Counts since the first run if `is_whole`, else since a point that is no longer known."""

    records: int
    is_whole: bool = True


NOTHING_WRITTEN = WrittenFigure(0)


def counter_of_sink(restored: Mapping[str, int], *, has_state: bool) -> str:
    """Returns which of the two a sink uses; `has_state` if the restored point knows the sink."""
    if not has_state or (RECORDS_WRITTEN in restored and RECORDS_WRITTEN_SINCE not in restored):
        return RECORDS_WRITTEN
    return RECORDS_WRITTEN_SINCE


def written_by(uid: Uid, counters: Mapping[str, int]) -> WrittenFigure | None:
    """Reads the counters `<uid>.<name>` of a cut. None means that an earlier version took it."""
    whole, since = (
        counters.get(f"{uid}.{name}") for name in (RECORDS_WRITTEN, RECORDS_WRITTEN_SINCE)
    )
    if whole is None and since is None:
        return None
    return WrittenFigure((whole or 0) + (since or 0), is_whole=since is None)


def written_between(earlier: WrittenFigure | None, later: WrittenFigure | None) -> int | None:
    """Returns None if that is not known."""
    if earlier is None or later is None or earlier.is_whole != later.is_whole:
        return None
    return max(0, later.records - earlier.records)


def published_again(uid: str, target: str, records: int | None, *, is_at_most: bool) -> str:
    if records is None:
        return (
            f"How many records that readers of {target} have already seen will be published again"
            f" by {uid!r} is not known: no count was kept with what was published, or with the"
            " point."
        )
    count = f"{'up to ' if is_at_most else ''}{records:,}"
    return (
        f"{count[0].upper()}{count[1:]} records that readers of {target} have already seen will be"
        f" published again by {uid!r}: {target} takes nothing back."
    )
