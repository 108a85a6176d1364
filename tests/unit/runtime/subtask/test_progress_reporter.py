"""A source tells other systems only completed checkpoints, and nothing waits for that."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pipelines.connectors.split_progress import SplitProgress
from pipelines.domain.elements import Barrier
from pipelines.domain.ids import CheckpointId
from pipelines.runtime.subtask.sources.direct_reader import DirectReader
from tests.unit.runtime.fakes import ManualClock
from tests.unit.runtime.growing_log import GrowingLog
from tests.unit.runtime.hosted import ReadingSubtask

LOG = {"a": [(offset, offset, offset) for offset in range(9)]}


@dataclass(slots=True)
class FollowedLog(GrowingLog):
    told: list[tuple[str, int]] = field(default_factory=list)
    counts: tuple[int, int] = (0, 0)

    def tell(self, splits: Sequence[SplitProgress]) -> None:
        self.told += [(split.name, split.offset) for split in splits]

    def take_report_counts(self) -> tuple[int, int]:
        counts, self.counts = self.counts, (0, 0)
        return counts


def test_only_positions_of_completed_checkpoints_reach_the_log(tmp_path: Path) -> None:
    source = FollowedLog(LOG)
    host = ReadingSubtask(tmp_path, source)
    for checkpoint_id in (1, 2, 3):
        host.advance()
        inject(host, checkpoint_id)
    assert source.told == []

    host.on_completed(2)
    assert source.told == [("a", 6)]

    host.on_completed(1)  # subsumed
    host.on_aborted(3)
    host.on_completed(3)
    assert source.told == [("a", 6)]


def test_the_commits_of_progress_that_succeed_and_fail_are_counted(tmp_path: Path) -> None:
    source = FollowedLog(LOG, counts=(2, 1))
    host = ReadingSubtask(tmp_path, source)

    for _ in range(2):
        host.advance()

    counters = host.subtask.chain.head_context().counters
    assert (counters["commits_succeeded"], counters["commits_failed"]) == (2, 1)


def test_a_source_that_reports_no_progress_keeps_none() -> None:
    reader = DirectReader(
        source=GrowingLog(LOG),
        restored=(),
        subtask=0,
        parallelism=1,
        clock=ManualClock(),
        event_hours_per_s=None,
    )

    assert reader.progress_reporter is None


def inject(host: ReadingSubtask, checkpoint_id: int) -> None:
    host.on_injected(Barrier(checkpoint_id=CheckpointId(checkpoint_id), trigger_ms=0))
