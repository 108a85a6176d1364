"""The history of checkpoints: as far back as it goes, in pages that do not shift."""

from pathlib import Path

import pytest

from ftdash.checkpoints.models import Checkpoint
from ftdash.checkpoints.queries.statistics import (
    EVERYTHING,
    HistoryFilter,
    HistoryPart,
    StatusChoice,
    history,
    statistics_of,
    whole_history,
)
from ftdash.projection.projector import Projector
from pipelines.domain.checkpoint_failures import CheckpointFailureReason
from pipelines.domain.events import CheckpointDiscarded, CheckpointFailed
from pipelines.domain.ids import CheckpointId
from pipelines.domain.status import CheckpointKind
from tests.web.journals import Story, new_run

pytestmark = pytest.mark.django_db
RUN = "flights-1"


@pytest.fixture(autouse=True)
def jobs_root(settings, tmp_path: Path) -> None:
    settings.JOBS_ROOT = tmp_path


def test_parts_follow_each_other_without_a_gap_or_a_repetition() -> None:
    story(completed=7)

    first = part()
    second = part(before=first.older)
    third = part(before=second.older)

    assert [ids(each) for each in (first, second, third)] == [[7, 6, 5], [4, 3, 2], [1]]
    assert (first.newer, third.older) == (None, None)
    assert part(after=third.newer) == second
    assert part(after=second.newer) == first


def test_new_checkpoints_do_not_shift_an_older_part() -> None:
    told = story(completed=6)
    older = part(before=part().older)

    told.completed().completed()
    fold()

    assert ids(part(before=part(after=older.newer).older)) == ids(older) == [3, 2, 1]
    assert ids(part()) == [8, 7, 6]


def test_a_part_too_short_at_the_newest_end_becomes_the_newest_part() -> None:
    story(completed=4)
    second = Checkpoint.objects.get(checkpoint_id=2)

    assert ids(part(after=second.sequence)) == [4, 3, 2]


@pytest.mark.parametrize("place", [{"before": 0}, {"after": 10**18}])
def test_a_place_without_checkpoints_shows_the_newest_ones(place: dict[str, int]) -> None:
    story(completed=2)

    assert ids(part(**place)) == [2, 1]


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        (EVERYTHING, [6, None, 5, 4, 3, 2, 1]),
        (HistoryFilter(status=StatusChoice.COMPLETED), [4, 3, 2, 1]),
        (HistoryFilter(status=StatusChoice.KEPT), [4, 3, 2]),
        (HistoryFilter(status=StatusChoice.FAILED), [None, 5]),
        (HistoryFilter(status=StatusChoice.IN_PROGRESS), [6]),
        (HistoryFilter(kind=CheckpointKind.SAVEPOINT), [4]),
        (HistoryFilter(reason_name="CHECKPOINT_EXPIRED"), [5]),
        (HistoryFilter(from_id=3, to_id=4), [4, 3]),
        (HistoryFilter(from_id=2, status=StatusChoice.COMPLETED), [4, 3, 2]),
        (HistoryFilter(kind=CheckpointKind.FINAL), []),
    ],
)
def test_a_filter_selects_exactly_the_matching_checkpoints(
    chosen: HistoryFilter, expected: list[int | None]
) -> None:
    eventful()

    found = history(RUN, chosen, limit=10)

    assert found is not None
    assert ids(found) == expected
    assert found.match_count == len(expected)
    assert [row.checkpoint_id for chunk in whole_history(RUN, chosen) for row in chunk] == expected


def test_a_long_history_is_read_completely_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ftdash.checkpoints.queries.statistics.CHUNK", 3)
    story(completed=7)

    chunks = list(whole_history(RUN, EVERYTHING))

    assert [[row.checkpoint_id for row in chunk] for chunk in chunks] == [
        [7, 6, 5],
        [4, 3, 2],
        [1],
    ]


def test_the_checkpoints_of_other_runs_are_not_shown() -> None:
    story(completed=2)
    Story(new_run("other")).started().completed()
    fold()

    assert ids(part()) == [2, 1]
    assert history("nothing") is None


def test_failures_are_counted_by_reason_the_most_frequent_first() -> None:
    told = eventful()
    told.triggered().tell(failed(told.next_checkpoint, CheckpointFailureReason.CHECKPOINT_EXPIRED))
    fold()

    found = statistics_of(RUN)

    assert found is not None
    assert [(each.reason_name, each.count, each.newest_id) for each in found.failures] == [
        ("CHECKPOINT_EXPIRED", 2, 7),
        ("NOT_ALL_REQUIRED_TASKS_RUNNING", 1, None),
    ]
    assert found.failures[0].reason_text == "Checkpoint expired before completing."
    assert found.failures[0].newest_at == Checkpoint.objects.get(checkpoint_id=7).failed_at


def test_the_longest_alignment_is_kept_when_acknowledgements_arrive_in_parts() -> None:
    told = story(completed=1)
    told.triggered().acknowledged("flights", 0)
    fold()
    assert part().rows[0].row.alignment_ms == 1.0

    for uid, index in (("join", 1), ("flights", 1)):
        told.acknowledged(uid, index)
        fold()

    assert [found.row.alignment_ms for found in part().rows] == [61.0, 61.0]


def story(completed: int) -> Story:
    told = Story(new_run()).started()
    for _ in range(completed):
        told.completed()
    fold()
    return told


def eventful() -> Story:
    """Makes checkpoints: one deleted, two kept, a savepoint, a failure, a refusal, one begun."""
    told = story(completed=3).completed(CheckpointKind.SAVEPOINT)
    told.tell(CheckpointDiscarded(checkpoint_id=CheckpointId(1)))
    told.triggered().tell(failed(told.next_checkpoint, CheckpointFailureReason.CHECKPOINT_EXPIRED))
    told.tell(failed(None, CheckpointFailureReason.NOT_ALL_REQUIRED_TASKS_RUNNING))
    told.next_checkpoint = CheckpointId(6)
    told.triggered()
    told.next_checkpoint = CheckpointId(7)
    fold()
    return told


def failed(number: CheckpointId | None, reason: CheckpointFailureReason) -> CheckpointFailed:
    return CheckpointFailed(checkpoint_id=number, reason=reason, message="So it went.")


def fold() -> None:
    Projector().run_once()


def part(**place: int | None) -> HistoryPart:
    found = history(RUN, limit=3, **place)
    assert found is not None
    return found


def ids(found: HistoryPart) -> list[int | None]:
    return [each.row.checkpoint_id for each in found.rows]
