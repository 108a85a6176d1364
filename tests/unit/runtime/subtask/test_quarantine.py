"""A quarantined record becomes visible with the first cut whose position is behind the record."""

import json
from pathlib import Path

import msgspec

from pipelines.connectors.files.quarantine import quarantine_of
from pipelines.domain.elements import Barrier
from pipelines.domain.ids import Attempt, CheckpointId, RunId, Uid
from pipelines.domain.key_groups import range_of
from pipelines.domain.poison import (
    ERROR_CHARS_MAX,
    MOST_RECORDS,
    TRACE_CHARS_MAX,
    Isolation,
    PoisonRecord,
)
from pipelines.domain.snapshots import Json, SubtaskSnapshot
from pipelines.runtime.control import MAX_FRAME_BYTES
from pipelines.runtime.subtask.chains.chain import OperatorChain, Quarantines
from pipelines.runtime.subtask.chains.chain_node import ChainPlace
from pipelines.runtime.subtask.snapshots.restoring import NOTHING, RestoredOperator, RestorePoint
from pipelines.runtime.subtask.snapshots.snapshotting import SnapshotWriter, SubtaskCut
from pipelines.runtime.subtask.sources.direct_reader import DirectReader
from pipelines.runtime.subtask.sources.split_screen import SplitScreen
from pipelines.state.in_memory.hashmap import HashMapBackend
from tests.takeovers import rewound
from tests.unit.runtime.fakes import SCHEMA, ListSource, ManualClock
from tests.unit.runtime.hosted import LEFT, MAX_PARALLELISM, MemorySink, joining_pipeline
from tests.unit.runtime.permits import permit
from tests.unit.runtime.points import manifest_of, store_in

RUN = RunId("run-1")
POISON = PoisonRecord(
    source=Uid(LEFT),
    split="split-0",
    offset=2,
    operator=Uid("both"),
    error_type="builtins.ValueError",
    error="2 is bad",
    trace="where it was",
)
SOURCE = ListSource([[(n, n) for n in range(6)]], batch_rows=6)


def test_a_record_is_prepared_with_its_cut_and_visible_when_the_checkpoint_completes(
    tmp_path: Path,
) -> None:
    attempt = SourceAttempt(tmp_path)
    attempt.read_all()

    first = attempt.cut(1)
    before = attempt.visible()
    attempt.chain.commit(permit(1))
    second = attempt.cut(2)

    (operator,) = first.operators
    assert len(operator.quarantined) == 1
    assert operator.counters == {"records_read": 1, "records_quarantined": 1}
    assert before == []
    assert [(line["offset"], json.loads(line["record"])["key"]) for line in attempt.visible()] == [
        (2, 2)
    ]
    assert attempt.visible()[0]["trace"] == "where it was"
    assert second.operators[0].quarantined == []


def test_a_record_of_an_uncompleted_checkpoint_is_visible_with_the_next_one(
    tmp_path: Path,
) -> None:
    attempt = SourceAttempt(tmp_path)
    attempt.read_all()
    attempt.cut(1)

    second = attempt.cut(2)
    attempt.chain.commit(permit(2))

    assert len(second.operators[0].quarantined) == 1
    assert len(attempt.visible()) == 1


def test_restored_quarantine_records_are_committed_even_without_isolation(
    tmp_path: Path,
) -> None:
    dead = SourceAttempt(tmp_path)
    dead.read_all()
    restored = dead.restored_from(dead.cut(1))

    fixed = SourceAttempt(tmp_path, 2, restored, Isolation())

    assert len(fixed.visible()) == 1
    fixed.read_all()
    assert fixed.cut(2).operators[0].quarantined == []


def test_a_rewind_supersedes_a_quarantined_record_that_then_returns_once(
    tmp_path: Path,
) -> None:
    first = SourceAttempt(tmp_path)
    first.read_all()
    first.cut(5)
    first.chain.commit(permit(5))
    quarantine = quarantine_of(tmp_path, Uid(LEFT), "joining")

    superseded = rewound(quarantine, [(RUN, CheckpointId(4))], RUN)
    again = SourceAttempt(tmp_path, 2)
    gone = again.visible()
    again.read_all()
    again.cut(6)
    again.chain.commit(permit(6, attempt=2))

    assert superseded is not None
    assert superseded.items == 1
    assert gone == []
    assert len(again.visible()) == 1


def test_a_source_without_isolation_has_no_quarantine(tmp_path: Path) -> None:
    attempt = SourceAttempt(tmp_path, isolation=Isolation())

    assert attempt.chain.quarantine is None
    assert list(tmp_path.iterdir()) == []


def test_the_most_records_that_a_run_may_set_aside_fit_into_one_message() -> None:
    unprintable = "\x01"  # six bytes of JSON
    worst = PoisonRecord(
        source=Uid("s" * 100),
        split=unprintable * 500,
        offset=2**63 - 1,
        operator=Uid("o" * 100),
        error_type="e" * 500,
        error=unprintable * ERROR_CHARS_MAX,
        trace=unprintable * TRACE_CHARS_MAX,
    )

    assert MOST_RECORDS * len(msgspec.json.encode(worst)) < MAX_FRAME_BYTES


class SourceAttempt:
    """The source's subtask in one attempt: chain, quarantine and reader, but no thread."""

    def __init__(
        self,
        root: Path,
        number: int = 1,
        restored: RestoredOperator = NOTHING,
        isolation: Isolation | None = None,
    ) -> None:
        self._root = root
        isolation = Isolation(poison=[POISON]) if isolation is None else isolation
        pipeline = joining_pipeline(SOURCE, MemorySink())
        vertex = pipeline.graph.vertex(Uid(LEFT))
        self._place = ChainPlace(RUN, Attempt(number), vertex, 0, 1, MAX_PARALLELISM)
        self.chain = OperatorChain(
            pipeline=pipeline,
            place=self._place,
            backends=HashMapBackend,
            exchanges={},
            restored={Uid(LEFT): restored},
            now_ms=lambda: 0,
            quarantines=Quarantines(str(root), "joining", isolation),
        )
        quarantine = self.chain.quarantine
        screen = (
            None if quarantine is None else SplitScreen(Uid(LEFT), SCHEMA, isolation, quarantine)
        )
        clock = ManualClock()
        self._reader = DirectReader(
            source=SOURCE,
            restored=restored.positions,
            subtask=0,
            parallelism=1,
            clock=clock,
            event_hours_per_s=None,
            screen=screen,
        )

    def read_all(self) -> None:
        while not self._reader.is_exhausted:
            self._reader.next()

    def cut(self, checkpoint_id: int) -> SubtaskSnapshot:
        frozen = self.chain.cut(Barrier(checkpoint_id=CheckpointId(checkpoint_id), trigger_ms=0))
        positions: Json = self._reader.positions()
        cut = SubtaskCut(
            place=self._place,
            operators=frozen,
            positions=positions,
            watermark_ms=None,
            key_times_ms=[],
        )
        writer, location = SnapshotWriter(store_in(self._root)), str(self._root / "chk")
        return writer.write(cut, CheckpointId(checkpoint_id), location, open_format=False).snapshot

    def restored_from(self, snapshot: SubtaskSnapshot) -> RestoredOperator:
        store, location = store_in(self._root), str(self._root / "chk")
        point = RestorePoint(store, location, manifest_of([snapshot.operators]))
        return point.share_of(Uid(LEFT), 0, 1, range_of(0, 1, MAX_PARALLELISM))

    def visible(self) -> list[dict[str, str]]:
        files = sorted((self._root / LEFT).glob("part-*.jsonl"))
        return [json.loads(line) for file in files for line in file.read_text().splitlines()]
