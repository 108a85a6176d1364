"""Journals in segments: old segments are deleted; no row is lost, doubled or invented."""

import os
import random
from datetime import timedelta
from pathlib import Path

import pytest
from django.utils import timezone

from ftdash.checkpoints.models import Audit, Checkpoint, CheckpointStatus
from ftdash.jobs.directories import run_directory
from ftdash.jobs.models import Failure, Run, StatusChange
from ftdash.projection.projector import Projector, project, rebuild
from ftdash.retention.pruning import shorten_journals
from ftdash.runs.queries import pipelines as queries
from pipelines.bus.journal_segments import closed_segments, delete_segments, segments_of
from pipelines.domain.events import CheckpointDiscarded, FailureOccurred
from pipelines.domain.ids import CheckpointId
from pipelines.domain.status import CheckpointKind
from tests.commit_share import share_of
from tests.web.journals import SUBTASKS, Story, checkpoint_completed, new_run, quarantined
from tests.web.projected_rows import rows_of

pytestmark = pytest.mark.usefixtures("site")

SMALL = 8_000
"""Bytes of a segment: a checkpoint takes two segments."""


@pytest.fixture(autouse=True)
def nothing_is_kept_that_was_read(settings) -> None:
    settings.JOURNAL_RETENTION_DAYS = 0


@pytest.mark.parametrize("seed", share_of(range(6), 2))
def test_a_rebuild_from_the_remaining_segments_gives_the_same_rows(seed: int) -> None:
    """The journal may begin between the lines of a checkpoint, of a recovery, or of two drivers."""
    rng, run = random.Random(seed), new_run()
    story = Story(run, segment_bytes=SMALL).started()
    for _ in range(4):
        any_part(rng, story)
        project(fresh(run))
        shorten_journals()
        any_part(rng, story)
    while project(fresh(run)):
        pass
    before = rows_of(run)

    rebuild(fresh(run))

    assert segments_of(journal_of(run))[0].base > 0, "some were deleted"
    assert rows_of(run) == before
    assert fresh(run).journal_gap == ""


def test_unread_segments_and_young_segments_stay(settings) -> None:
    run = long_run()
    before = segments_of(journal_of(run))

    shorten_journals()  # no reader has read anything
    assert segments_of(journal_of(run)) == before

    while project(fresh(run)):
        pass
    settings.JOURNAL_RETENTION_DAYS = 30
    shorten_journals()
    assert segments_of(journal_of(run)) == before

    long_ago = (timezone.now() - timedelta(days=31)).timestamp()
    for segment in before[:2]:
        os.utime(segment.path, (long_ago, long_ago))
    shorten_journals()
    assert segments_of(journal_of(run)) == before[2:]


def test_the_newest_segment_of_a_run_that_has_ended_stays() -> None:
    run = long_run()
    Story(run).ended()
    while project(fresh(run)):
        pass
    newest = segments_of(journal_of(run))[-1]

    for _ in range(2):
        shorten_journals()

    assert segments_of(journal_of(run)) == [newest]


def test_an_audited_journal_is_not_shortened(settings) -> None:
    run = long_run()
    while project(fresh(run)):
        pass
    before, now = segments_of(journal_of(run)), timezone.now()
    audit = Audit.objects.create(
        run=run, requester="ann", created_at=now, started_at=now, moved_at=now
    )

    shorten_journals()
    assert segments_of(journal_of(run)) == before

    Audit.objects.filter(pk=audit.pk).update(ended_at=now)
    shorten_journals()
    assert len(segments_of(journal_of(run))) == 1


def test_a_projector_behind_deleted_segments_reports_a_gap_and_resumes() -> None:
    """This happens with rows from a backup. No row is doubled, and no existing row is deleted."""
    run = new_run()
    story = Story(run, segment_bytes=SMALL)
    story.started().completed().triggered()
    project(fresh(run))
    known = fresh(run).last_sequence
    story.slot_killed().completed().completed().started(pid=5000).completed().triggered()
    for each in SUBTASKS[:3]:
        story.acknowledged(*each)
    while len(closed_segments(journal_of(run))) < 8:
        story.sampled()
    delete_segments([each.segment for each in closed_segments(journal_of(run))])

    for _ in range(3):
        Projector().run_once()
    story.acknowledged(*SUBTASKS[3])
    Projector().run_once()

    row = fresh(run)
    assert f"Events {known + 1:,} to" in row.journal_gap
    assert row.journal_gap in queries.pipeline_page(run.pipeline.name).run.journal_gap
    assert (row.projection_error, row.status, row.driver_pid) == ("", "RUNNING", 5000)
    assert (row.last_checkpoint_id, row.attempt, sorted(row.slots)) == (4, 3, ["0", "1"])
    shown = {each.checkpoint_id: each.status for each in Checkpoint.objects.filter(run=run)}
    assert shown == {1: CheckpointStatus.COMPLETED, 5: CheckpointStatus.IN_PROGRESS}
    assert Checkpoint.objects.get(run=run, checkpoint_id=5).acknowledged_count == 4
    assert StatusChange.objects.filter(run=run, status="RUNNING").count() == 2


def test_an_event_about_a_checkpoint_of_the_unread_part_creates_no_row() -> None:
    run = new_run()
    story = Story(run, segment_bytes=SMALL)
    story.started().completed()
    while len(closed_segments(journal_of(run))) < 3:
        story.sampled()
    delete_segments([each.segment for each in closed_segments(journal_of(run))])
    project(fresh(run))

    story.tell(CheckpointDiscarded(checkpoint_id=CheckpointId(1)), FailureOccurred(cause="later"))
    Projector().run_once()

    assert fresh(run).projection_error == ""
    assert not Checkpoint.objects.filter(run=run).exists()
    assert Failure.objects.filter(run=run, cause="later").count() == 1


def test_a_rebuild_makes_no_row_for_a_checkpoint_older_than_the_journal() -> None:
    """It was triggered before the remaining journal begins, and discarded later."""
    run = long_run()
    Story(run).tell(CheckpointDiscarded(checkpoint_id=CheckpointId(1)))
    while project(fresh(run)):
        pass
    shorten_journals()
    Checkpoint.objects.filter(run=run, checkpoint_id=1).delete()
    before = rows_of(run)

    rebuild(fresh(run))

    assert rows_of(run) == before


def test_a_shortened_journal_that_is_missing_loses_no_row() -> None:
    """Its directory is not mounted: deleted rows could not be rebuilt from it."""
    run = long_run()
    while project(fresh(run)):
        pass
    shorten_journals()
    before, directory = rows_of(run), run_directory(run).path

    away = directory.rename(directory.with_name("away"))
    Projector().run_once()
    while_away = rows_of(run)
    away.rename(directory)
    Projector().run_once()

    assert while_away == before
    assert rows_of(run) == before


def fresh(run: Run) -> Run:
    return Run.objects.select_related("pipeline").get(pk=run.pk)


def journal_of(run: Run) -> Path:
    return run_directory(run).journal_file


def long_run() -> Run:
    run = new_run()
    story = Story(run, segment_bytes=SMALL)
    story.started()
    while len(segments_of(journal_of(run))) < 4:
        story.completed()
    return run


def any_part(rng: random.Random, story: Story) -> None:
    """Tells more than a segment."""
    for _ in range(rng.randint(2, 4)):
        match rng.randint(0, 5):
            case 0:
                story.completed()
            case 1:
                story.triggered()
                for each in SUBTASKS[: rng.randint(1, 7)]:
                    story.acknowledged(*each).sampled()
                if rng.random() < 0.5:
                    number = story.next_checkpoint
                    story.tell(checkpoint_completed(number, CheckpointKind.CHECKPOINT))
                story.next_checkpoint = CheckpointId(story.next_checkpoint + 1)
            case 2:
                story.slot_killed()
            case 3:
                story.started(pid=rng.randint(1, 9_999)).slot_killed()
            case 4:
                story.tell(quarantined(rng.randint(1, 99), count=1))
            case 5:
                for _ in range(rng.randint(1, 6)):
                    story.sampled()
