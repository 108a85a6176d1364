"""The ledger of a run: what each checkpoint read and what it gave to each sink.

Only the values. They are counted and digested where a sink is written (`protocol.output_ledger`),
travel with the snapshot, and enter the journal when their checkpoint is complete, before any sink
commits: so what a reader of the output can see is always in the ledger.
"""

import msgspec

from pipelines.domain.ids import CheckpointId, RunId, Uid


class OutputShare(msgspec.Struct, frozen=True, kw_only=True):
    """What one sink subtask was given between two cuts, the later of them at `checkpoint_id`.

    That checkpoint may have been aborted: then its output belongs to the next completed one.
    """

    checkpoint_id: CheckpointId
    rows: int
    digest: str | None  # of the rows in any order, 16 hexadecimal digits: `state.row_digest`
    tokens: list[str] = []  # what becomes visible by the commit: file names, markers


class SinkOutput(msgspec.Struct, frozen=True, kw_only=True):
    sink: Uid
    subtask: int
    share: OutputShare


class SplitRange(msgspec.Struct, frozen=True, kw_only=True):
    """Offsets of one split that were read: from `first` up to, not including, `end`."""

    split: str
    first: int | None  # None: from where its reading began
    end: int | None  # None: all that was left of it


class SourceInput(msgspec.Struct, frozen=True, kw_only=True):
    """What a source read between two completed checkpoints."""

    source: Uid
    records: int
    splits: list[SplitRange]


class LedgerEntry(msgspec.Struct, frozen=True, kw_only=True):
    """Of one completed checkpoint. An output that an earlier entry has too is the same output."""

    run_id: RunId
    checkpoint_id: CheckpointId
    records_read: int  # by all sources up to the checkpoint, since the first run
    inputs: list[SourceInput]
    outputs: list[SinkOutput]
