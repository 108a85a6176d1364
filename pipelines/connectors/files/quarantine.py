"""The quarantine of a source: JSON lines, one for each poison record, exactly once.

Owns where the files are and what a line holds. The files are those of `sink.ExactlyOnceFiles`:
prepared at the barrier, visible when the checkpoint completes, and set aside when a run is restored
to an earlier point. Each source has a directory of its own, because a file's name gives only the
subtask.
"""

from pathlib import Path

import msgspec
import pyarrow as pa

from pipelines.connectors.files.formats import JSON_LINES
from pipelines.connectors.files.sink import ExactlyOnceFiles
from pipelines.domain.ids import Uid
from pipelines.domain.poison import PoisonRecord

QUARANTINED = pa.schema(
    [
        ("source", pa.string()),
        ("split", pa.string()),
        ("offset", pa.int64()),
        ("operator", pa.string()),
        ("error_type", pa.string()),
        ("error", pa.string()),
        ("trace", pa.string()),
        ("record", pa.string()),
    ]
)
"""The columns of a line. `record` is the row as the source gave it, a JSON object as text; if the
source could not read the record, the text that it found."""


def quarantine_of(home: str | Path, source: Uid, pipeline: str) -> ExactlyOnceFiles:
    """`home` holds the quarantines of all sources of the pipeline."""
    return ExactlyOnceFiles(Path(home) / source, pipeline=pipeline, format=JSON_LINES)


def quarantined(poison: PoisonRecord, record: str) -> pa.RecordBatch:
    """The line of one record."""
    line = {**msgspec.structs.asdict(poison), "record": record}
    return pa.RecordBatch.from_pylist([line], schema=QUARANTINED)
