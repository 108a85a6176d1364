"""Where one of our pipelines begins if it continues behind a batch of a Structured Streaming query.

The offsets of Kafka and the names of the files that were read can come along. State cannot: it is
in the format of Spark and its operators. You have to know what that means for you, so this module
names each state and each source that stays behind.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import unquote

from pipelines.storage.trees import Tree
from pipelines.structured.formats import SourceKind
from pipelines.structured.logs import read_log
from pipelines.structured.query import Operator, QueryDirectory
from pipelines.structured.savepoints import committed_batch

EFFECTS = {
    "stateStoreSave": "groups begin at zero; rows that it had counted are not counted again",
    "dedupe": "a key that it had seen comes through once more",
    "symmetricHashJoin": "rows that it kept find no partner any more",
    "transformWithStateExec": "what your processor had stored is empty",
    "flatMapGroupsWithState": "what your function had stored is empty",
}


@dataclass(frozen=True, slots=True)
class SourceStart:
    """Where to begin in one source of the query; only one of its two last fields is in use.

    `start_offsets`: for `KafkaTopics`, {"topic-partition": the first offset that was not read}.
    `read_before`: for a directory of files, the names of the files that were read.
    """

    index: int
    kind: SourceKind
    start_offsets: Mapping[str, int]
    read_before: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Move:
    """`left_behind` are sentences, each about state or a source that cannot come along."""

    batch_id: int
    sources: tuple[SourceStart, ...]
    left_behind: tuple[str, ...]


def move_behind(source: Tree, query: QueryDirectory, batch_id: int) -> Move:
    """Read the offsets of a committed batch. Raises Rejected."""
    batch = committed_batch(query, batch_id)
    starts: list[SourceStart] = []
    left_behind = [_state_of(each) for each in query.operators]
    for offset in batch.sources:
        log = query.log_of(offset)
        if offset.kind is SourceKind.KAFKA:
            starts.append(SourceStart(offset.index, offset.kind, offset.positions, ()))
        elif offset.kind is SourceKind.FILE and log is not None:
            newest = offset.positions["logOffset"]
            paths = {e.path for e in read_log(source, log).entries() if e.batch_id <= newest}
            names = tuple(sorted({unquote(path).rpartition("/")[2] for path in paths}))
            starts.append(SourceStart(offset.index, offset.kind, {}, names))
            if len(names) < len(paths):
                left_behind.append(
                    f"Source {offset.index} has read files of the same name in several folders;"
                    " ftdash tells files of a directory apart by name."
                )
        elif offset.kind is not SourceKind.NONE:
            left_behind.append(
                f"Source {offset.index} ({offset.kind}) has no offsets that a source of ftdash"
                f" understands: {offset.text[:80]}"
            )
    if batch.watermark_ms:
        left_behind.append(
            "The watermark begins again: rows that came too late for the query may be taken."
        )
    return Move(batch_id, tuple(starts), tuple(left_behind))


def _state_of(operator: Operator) -> str:
    effect = EFFECTS.get(operator.name, "it begins empty")
    name = operator.name or "of unknown kind"
    return (
        f"The state of operator {operator.operator_id} ({name}, {operator.size_bytes:,} bytes)"
        f" stays behind: {effect}."
    )
