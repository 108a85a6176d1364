"""With what a driver that takes a run over has to end it. What drivers then do: test_stopping."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pipelines.bus.announce import announce_nothing
from pipelines.bus.journal import JournalWriter
from pipelines.bus.journal_segments import closed_segments, delete_segments
from pipelines.domain.events import DamageRemembered, RunStopping
from pipelines.domain.ids import Attempt, CheckpointId, RequestId, RunId
from pipelines.domain.run import RunDirectory
from pipelines.domain.status import CheckpointKind, StopStage
from pipelines.protocol.retention import RetainedPoint, RetainedPoints
from pipelines.runtime.clocks import SystemClock
from pipelines.runtime.master.start.run_opening import damaged_files, stopping_of

OLDER, LAST, NEWER = (
    RetainedPoint(CheckpointId(1), "/checkpoints/chk-1"),
    RetainedPoint(CheckpointId(2), "/savepoints/savepoint-run-1-2", is_savepoint=True),
    RetainedPoint(CheckpointId(3), "/checkpoints/chk-3"),
)


STOPPING: dict[str, Any] = {
    "kind": CheckpointKind.SAVEPOINT,
    "cancels_run": False,
    "request_id": RequestId("stop"),
    "stage": StopStage.PUBLISHING,
}


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[JournalWriter]:
    directory = RunDirectory.of(tmp_path, "flights", RunId("run-1"))
    with JournalWriter(directory, RunId("run-1"), SystemClock(), announce_nothing) as journal:
        yield journal


@pytest.mark.parametrize(
    ("stage", "points", "ends"),
    [
        (StopStage.PUBLISHING, (OLDER,), False),
        (StopStage.PUBLISHING, (OLDER, LAST), True),
        (StopStage.PUBLISHING, (LAST, NEWER), False),  # published late by a driver long replaced
        (StopStage.PUBLISHING, (), False),
        (StopStage.PUBLISHED, (OLDER, LAST), True),
        (StopStage.PUBLISHED, (OLDER,), True),  # which is refused, for the end was announced
        (StopStage.GIVEN_UP, (OLDER, LAST), False),
    ],
)
def test_a_point_ends_the_run_if_it_is_complete_and_nothing_came_after_it(
    journal: JournalWriter, stage: StopStage, points: tuple[RetainedPoint, ...], ends: bool
) -> None:
    put_down = RunStopping(path=LAST.location, **{**STOPPING, "stage": stage})
    journal.append(put_down, Attempt(1))

    assert stopping_of(journal, RetainedPoints(1, points)) == (put_down if ends else None)


def test_a_driver_knows_the_damage_that_the_newest_word_of_the_journal_names(
    tmp_path: Path,
) -> None:
    """Also when the segment in which it was put down is deleted."""
    directory = RunDirectory.of(tmp_path, "flights", RunId("run-1"))
    with JournalWriter(
        directory, RunId("run-1"), SystemClock(), announce_nothing, segment_bytes=1
    ) as journal:
        before = damaged_files(journal)
        journal.append(DamageRemembered(files=["a"], remembered=["a"]), Attempt(1))
        journal.append(DamageRemembered(files=["b"], remembered=["a", "b"]), Attempt(1))
        journal.append(DamageRemembered(mended=["a"], remembered=["b"]), Attempt(1))
        for _ in range(3):
            journal.append(RunStopping(path="p", **STOPPING), Attempt(1))
        delete_segments([each.segment for each in closed_segments(directory.journal_file)])

        assert (before, damaged_files(journal)) == ([], ["b"])
