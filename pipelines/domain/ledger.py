"""The ledger of a run: what each checkpoint read, and its output to each sink.

Only the values. The runtime counts and digests them where it writes to a sink
(`protocol.output_ledger`). They travel with the snapshot, and enter the journal when their
checkpoint is complete, before any sink commits. So everything that a reader of the output can see
is in the ledger.
"""

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
    """One completed checkpoint's entry. An output that an earlier entry has too is the same one."""

    run_id: RunId
    checkpoint_id: CheckpointId
    records_read: int  # by all sources from the first run up to the checkpoint
    inputs: list[SourceInput]
    outputs: list[SinkOutput]
