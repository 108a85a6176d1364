"""The imports for authors of connectors: the contracts of sources and sinks, and bases for sinks.

    from pipelines.connectors.contract import Sink, SinkContext, TwoPhaseCommitWriter

`docs/how-to/own-connectors.md` builds a sink and a source with it.
"""

from pipelines.connectors.sink import (
    ChecksColumns,
    HoldsTarget,
    LeavesUnfinished,
    NamesOutput,
    OwnsPlace,
    PrepareRefused,
    Segment,
    Sink,
    SinkContext,
    SinkWriter,
    Superseded,
    TakesNothingBack,
    Unfinished,
    newest_of,
)
from pipelines.connectors.sink_bases import (
    ForgetsMarkers,
    HoldsTransactions,
    Marker,
    MarkerLost,
    StagesRows,
    Transaction,
    TransactionLost,
    TwoPhaseCommitTarget,
    TwoPhaseCommitWriter,
    WriteAheadTarget,
    WriteAheadWriter,
)
from pipelines.connectors.source import (
    Batch,
    ConcurrentSplits,
    LoggedRecords,
    MalformedRecord,
    ReadOnce,
    ReadsText,
    Source,
    VersionedSplits,
)
from pipelines.domain.errors import ProtocolError, Rejected, Retryable
from pipelines.domain.guarantees import AT_LEAST_ONCE, EXACTLY_ONCE
from pipelines.domain.ids import NO_CHECKPOINT, Attempt, CheckpointId, RunId, Uid
from pipelines.domain.ownership import Claim, Holder, taken
from pipelines.domain.snapshots import Json

__all__ = [
    "AT_LEAST_ONCE",
    "EXACTLY_ONCE",
    "NO_CHECKPOINT",
    "Attempt",
    "Batch",
    "CheckpointId",
    "ChecksColumns",
    "Claim",
    "ConcurrentSplits",
    "ForgetsMarkers",
    "Holder",
    "HoldsTarget",
    "HoldsTransactions",
    "Json",
    "LeavesUnfinished",
    "LoggedRecords",
    "MalformedRecord",
    "Marker",
    "MarkerLost",
    "NamesOutput",
    "OwnsPlace",
    "PrepareRefused",
    "ProtocolError",
    "ReadOnce",
    "ReadsText",
    "Rejected",
    "Retryable",
    "RunId",
    "Segment",
    "Sink",
    "SinkContext",
    "SinkWriter",
    "Source",
    "StagesRows",
    "Superseded",
    "TakesNothingBack",
    "Transaction",
    "TransactionLost",
    "TwoPhaseCommitTarget",
    "TwoPhaseCommitWriter",
    "Uid",
    "Unfinished",
    "VersionedSplits",
    "WriteAheadTarget",
    "WriteAheadWriter",
    "newest_of",
    "taken",
]
