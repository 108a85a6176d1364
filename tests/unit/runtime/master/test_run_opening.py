"""The point with which a driver that takes a run over must end it; see also test_stopping."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pipelines.bus.announce import announce_nothing
from pipelines.bus.journal import JournalWriter
from pipelines.bus.journal_segments import closed_segments, delete_segments
from pipelines.domain.checkpoint_failures import CheckpointFailureReason
from pipelines.domain.events import CheckpointFailed, DamageRemembered, Event, RunStopping
from pipelines.domain.ids import Attempt, CheckpointId, RequestId, RunId
from pipelines.domain.run import RunDirectory
from pipelines.domain.settings.parsing import parse_settings
from pipelines.domain.status import CheckpointKind, StopStage
from pipelines.protocol.retention import RetainedPoint, RetainedPoints
from pipelines.runtime.clocks import SystemClock
from pipelines.runtime.master.start.run_opening import damaged_files, found_points, stopping_of
from tests.unit.runtime.points import manifest_of, places_in, spec_of, store_in

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
        (StopStage.PUBLISHING, (LAST, NEWER), False),  # published late, by a replaced driver
        (StopStage.PUBLISHING, (), False),
        (StopStage.PUBLISHED, (OLDER, LAST), True),
        (StopStage.PUBLISHED, (OLDER,), True),  # refused, as the end was announced
        (StopStage.GIVEN_UP, (OLDER, LAST), False),
    ],
)
def test_a_point_ends_the_run_if_it_is_complete_and_nothing_came_after_it(
    journal: JournalWriter, stage: StopStage, points: tuple[RetainedPoint, ...], ends: bool
) -> None:
    put_down = RunStopping(path=LAST.location, **{**STOPPING, "stage": stage})
    journal.append(put_down, Attempt(1))

    assert stopping_of(journal, RetainedPoints(1, points)) == (put_down if ends else None)


def test_a_driver_learns_the_damaged_files_from_the_newest_journal_event(
    tmp_path: Path,
) -> None:
    """This is so even if the segment with the original event is deleted."""
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


UNPUBLISHED = CheckpointFailureReason.FINALIZE_CHECKPOINT_FAILURE
DECLINED = CheckpointFailureReason.CHECKPOINT_DECLINED


@pytest.mark.parametrize(
    ("said", "given_up"),
    [
        ([("fail", 2, UNPUBLISHED)], [2]),
        ([("fail", 2, UNPUBLISHED), ("fail", 3, UNPUBLISHED)], [2, 3]),
        ([("fail", 2, UNPUBLISHED), ("stop", 3, StopStage.PUBLISHING)], [2]),
        ([("stop", 2, StopStage.GIVEN_UP)], [2]),  # an older journal has nothing more
        ([("stop", 2, StopStage.PUBLISHED)], []),
        ([("fail", 2, DECLINED)], []),  # before anything was published
    ],
)
@pytest.mark.parametrize("segment_bytes", [1, 1 << 20], ids=["cut short", "whole"])
def test_a_checkpoint_reported_as_failed_is_no_point_despite_its_manifest(
    tmp_path: Path, said: list[tuple[str, int, Any]], given_up: list[int], segment_bytes: int
) -> None:
    places, store = places_in(tmp_path), store_in(tmp_path)
    for number in (1, 2, 3):
        changes: dict[str, Any] = {"checkpoint_id": CheckpointId(number)}
        store.publish(places.checkpoint(CheckpointId(number)), manifest_of([], **changes))
    directory = RunDirectory.of(tmp_path, "flights", RunId("run-1"))
    with JournalWriter(
        directory, RunId("run-1"), SystemClock(), announce_nothing, segment_bytes=segment_bytes
    ) as journal:
        for what, number, how in said:
            path = places.checkpoint(CheckpointId(number))
            journal.append(failed(number, how) if what == "fail" else stops(path, how), Attempt(1))
        for _ in range(3):
            journal.append(failed(9, DECLINED), Attempt(1))
        delete_segments([each.segment for each in closed_segments(directory.journal_file)])

        context: Any = SimpleNamespace(
            places=places,
            store=store,
            journal=journal,
            spec=spec_of(),
            settings=parse_settings({}),
        )

        found = found_points(context)

    kept = [number for number in (3, 2, 1) if number not in given_up]
    assert [point.checkpoint_id for point in found.retained.every_newest_first()] == kept
    assert sorted(found.given_up) == [places.checkpoint(CheckpointId(n)) for n in given_up]


def failed(number: int, reason: CheckpointFailureReason) -> Event:
    return CheckpointFailed(checkpoint_id=CheckpointId(number), reason=reason, message="")


def stops(path: str, stage: StopStage) -> Event:
    return RunStopping(path=path, **{**STOPPING, "stage": stage})
