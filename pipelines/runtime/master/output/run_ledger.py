"""Records in the journal what each completed checkpoint read and passed to its sinks.

Records it before sinks commit, so that all visible output is in the ledger. Judges nothing; the
audit does, when it reads the output again.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from pipelines.connectors.split_progress import ranges
from pipelines.domain.events import Event, LedgerAdvanced, LedgerBegun
from pipelines.domain.gaps import Gap
from pipelines.domain.ids import CheckpointId, RunId, Uid
from pipelines.domain.ledger import LedgerEntry, SinkOutput, SourceInput
from pipelines.domain.snapshots import Json, Manifest, OperatorSnapshot
from pipelines.points.contents import source_records_of


@dataclass(slots=True)
class SourceCut:
    """The position of one source at a point, over all of its subtasks."""

    records: int = 0
    positions: list[Json] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class LedgerStart:
    """The entry and the positions from which the ledger of an attempt continues."""

    entry: LedgerEntry | None = None
    read: Mapping[Uid, SourceCut] = field(default_factory=dict)

    @classmethod
    def at(cls, manifest: Manifest) -> "LedgerStart":
        """Repeats the entry of the point, without inputs: where reading began is not known here."""
        return cls(_entry(manifest, []), _read_up_to(manifest))


class RunLedger:
    """The ledger of one driver. Report checkpoints in the order in which they completed."""

    def __init__(self, emit: Callable[[Event], None]) -> None:
        self._emit = emit
        self._read: Mapping[Uid, SourceCut] = {}  # up to the newest entry

    def begin(
        self,
        lineage: Sequence[tuple[RunId, CheckpointId]],
        start: LedgerStart,
        gaps: Sequence[Gap] = (),
    ) -> None:
        """Call when an attempt begins, before its sinks are rewound to the lineage's last point.
        `gaps`: the missing input that the run has skipped."""
        self._read = start.read
        self._emit(LedgerBegun(lineage=list(lineage), start=start.entry, gaps=list(gaps)))

    def on_completed(self, manifest: Manifest) -> None:
        read = _read_up_to(manifest)
        entry = _entry(manifest, list(_inputs(self._read, read)))
        self._read = read
        self._emit(LedgerAdvanced(entry=entry))


def _entry(manifest: Manifest, inputs: list[SourceInput]) -> LedgerEntry:
    return LedgerEntry(
        run_id=manifest.run_id,
        checkpoint_id=manifest.checkpoint_id,
        records_read=source_records_of(manifest),
        inputs=inputs,
        outputs=list(_outputs(manifest)),
    )


def _outputs(manifest: Manifest) -> Iterator[SinkOutput]:
    for subtask, operator in _operators(manifest):
        for share in operator.outputs:
            yield SinkOutput(sink=operator.uid, subtask=subtask, share=share)


def _inputs(
    before: Mapping[Uid, SourceCut], after: Mapping[Uid, SourceCut]
) -> Iterator[SourceInput]:
    for uid, cut in after.items():
        known = before.get(uid, SourceCut())
        yield SourceInput(
            source=uid,
            records=cut.records - known.records,
            splits=ranges(known.positions, cut.positions),
        )


def _read_up_to(manifest: Manifest) -> dict[Uid, SourceCut]:
    cuts: dict[Uid, SourceCut] = {}
    for _, operator in _operators(manifest):
        if operator.positions is not None:
            cut = cuts.setdefault(operator.uid, SourceCut())
            cut.records += operator.counters.get("records_read", 0)
            cut.positions.append(operator.positions)
    return cuts


def _operators(manifest: Manifest) -> Iterator[tuple[int, OperatorSnapshot]]:
    for subtask in manifest.subtasks:
        for operator in subtask.operators:
            yield subtask.subtask, operator
