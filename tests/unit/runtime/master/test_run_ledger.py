"""The ledger of a run: an entry per completed checkpoint, in the journal before any commit."""

from pipelines.connectors.split_progress import SplitPositions
from pipelines.domain.events import Event, LedgerAdvanced, LedgerBegun
from pipelines.domain.ids import CheckpointId, RunId, Uid
from pipelines.domain.ledger import OutputShare, SinkOutput, SourceInput, SplitRange
from pipelines.domain.snapshots import Manifest
from pipelines.runtime.master.output.run_ledger import LedgerStart, RunLedger
from tests.unit.runtime.points import manifest_of, operator_of

SHARE = OutputShare(checkpoint_id=CheckpointId(1), rows=3, digest="00", tokens=["part-1"])


def test_an_entry_holds_the_newly_read_ranges_and_every_sink_subtask() -> None:
    events: list[Event] = []
    ledger = RunLedger(events.append)

    ledger.on_completed(point(4, 5))
    ledger.on_completed(point(9, 5))

    first, second = (e.entry for e in events if isinstance(e, LedgerAdvanced))
    assert first.inputs == [source(9, SplitRange(split="0", first=0, end=4), whole("1", 5))]
    assert second.inputs == [source(5, SplitRange(split="0", first=4, end=9))]
    assert first.outputs == [
        SinkOutput(sink=Uid("out"), subtask=0, share=SHARE),
        SinkOutput(sink=Uid("out"), subtask=1, share=SHARE),
    ]


def test_the_ledger_of_an_attempt_continues_from_its_starting_point() -> None:
    events: list[Event] = []
    ledger = RunLedger(events.append)
    ledger.on_completed(point(9, 5))

    lineage = [(RunId("older"), CheckpointId(7))]
    ledger.begin(lineage, LedgerStart.at(point(4, 5)))
    ledger.on_completed(point(6, 5))

    _, begun, advanced = events
    assert isinstance(begun, LedgerBegun)
    assert isinstance(advanced, LedgerAdvanced)
    assert (begun.lineage, begun.start and begun.start.outputs) == (lineage, entry_outputs())
    assert advanced.entry.inputs == [source(2, SplitRange(split="0", first=4, end=6))]


def point(*offsets: int) -> Manifest:
    """Returns a point: subtask i has read split i up to its offset, and its sink got SHARE."""
    subtasks = [
        [
            operator_of(
                uid=Uid("in"),
                positions=SplitPositions(((i, offset),), i + len(offsets), len(offsets)).to_json(),
                counters={"records_read": offset},
            ),
            operator_of(uid=Uid("out"), outputs=[SHARE]),
        ]
        for i, offset in enumerate(offsets)
    ]
    return manifest_of(subtasks)


def source(records: int, *splits: SplitRange) -> SourceInput:
    return SourceInput(source=Uid("in"), records=records, splits=list(splits))


def whole(split: str, end: int) -> SplitRange:
    return SplitRange(split=split, first=0, end=end)


def entry_outputs() -> list[SinkOutput]:
    return [SinkOutput(sink=Uid("out"), subtask=i, share=SHARE) for i in range(2)]
