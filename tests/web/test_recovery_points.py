"""The fitness of each recovery point by all records about it, and the recommended point."""

from datetime import timedelta
from pathlib import Path

import pytest
from django.utils import timezone

from ftdash.jobs.models import PointInspection, Run
from ftdash.points.queries import FitPoint, PointChoice, point_choice
from ftdash.projection.projector import Projector
from pipelines.domain.events import PointsVerified, RestorePointRefused
from pipelines.domain.ids import CheckpointId
from pipelines.domain.status import CheckpointKind, JobStatus
from pipelines.points.verdict import Fitness
from tests.web.journals import Story, new_run

pytestmark = pytest.mark.usefixtures("site")


def test_the_fitness_of_a_point_follows_from_what_is_known_about_it(site: Path) -> None:
    story = Story(new_run()).started()
    gone, refused, verified, unread = (site / name for name in ("a", "b", "c", "d"))
    for path in (gone, refused, verified, unread):
        story.completed(path=written(path))
    (gone / "manifest.json").unlink()
    story.tell(
        RestorePointRefused(path=str(refused), message="a.arrow is truncated."),
        PointsVerified(whole=1, damaged=1, duration_ms=5.0, paths=[str(verified)]),
    )

    found = by_path(chosen_of(story))

    assert {path: each.fitness for path, each in found.items()} == {
        str(gone): Fitness.GONE,
        str(refused): Fitness.REFUSED,
        str(verified): Fitness.VERIFIED,
        str(unread): Fitness.UNREAD,
    }
    assert found[str(refused)].problem == "a.arrow is truncated."
    assert [path for path, each in found.items() if each.is_recommended] == [str(unread)]


def test_the_estimate_of_a_replay_rests_on_measurements(site: Path) -> None:
    story = Story(new_run())
    story.clock.now_ms += 60_000  # nothing is added for the time since the last sample
    story.started().sampled(1_000.0)
    for name in ("a", "b", "c"):
        story.completed(path=written(site / name))
    story.slot_killed()

    choice = chosen_of(story)

    newest, _, oldest = choice.points
    assert (newest.records_to_replay, oldest.records_to_replay) == (0, 2_000)
    assert (newest.estimated_ms, oldest.estimated_ms) == (300.0, 300.0 + 2_000.0)
    assert choice.recovery_count == 1


@pytest.mark.parametrize("is_final", [False, True], ids=["it fails", "it finishes"])
def test_the_replay_includes_records_read_after_the_newest_checkpoint(
    site: Path, is_final: bool
) -> None:
    """A run fails long after its last checkpoint; a finished run has a point at its end."""
    story = Story(new_run()).started().sampled(1_000.0)
    for name in ("a", "b"):
        story.completed(path=written(site / name))
    for since in (3_085, 6_170, 9_255):
        story.wait(1_000).sampled(since=since)
    if is_final:
        story.next_checkpoint = CheckpointId(12)
        story.completed(path=written(site / "c"))
    story.ended(JobStatus.FINISHED if is_final else JobStatus.FAILED)

    found = [each.records_to_replay for each in chosen_of(story).points]

    assert found == ([0, 10_000, 11_000] if is_final else [9_255, 10_255])


def test_the_reading_of_a_worker_sets_the_fitness_and_shows_its_progress(site: Path) -> None:
    story = Story(new_run()).started().completed(path=written(site / "a"))
    story.completed(path=written(site / "b"))
    fold(story)
    now = timezone.now()
    inspected(site / "a", ended_at=now)
    reading = inspected(site / "b", files_read=3, files=40, bytes_read=5, bytes=9)

    under_way, whole = chosen_of(story).points

    assert (whole.fitness, whole.verified_at, whole.reading) == (Fitness.VERIFIED, now, None)
    assert under_way.fitness is Fitness.UNREAD
    assert under_way.reading is not None
    assert (under_way.reading.files_read, under_way.reading.files) == (3, 40)
    PointInspection.objects.filter(pk=reading.pk).update(ended_at=now, problem="b.arrow is short.")
    damaged = chosen_of(story).points[0]
    assert (damaged.fitness, damaged.problem) == (Fitness.REFUSED, "b.arrow is short.")
    assert damaged.reading is None


@pytest.mark.parametrize(
    ("verified_after", "fitness"), [(True, Fitness.VERIFIED), (False, Fitness.REFUSED)]
)
def test_the_later_of_two_readings_counts(
    site: Path, verified_after: bool, fitness: Fitness
) -> None:
    story = Story(new_run()).started().completed(path=written(site / "a"))
    story.tell(PointsVerified(whole=1, damaged=0, duration_ms=5.0, paths=[str(site / "a")]))
    fold(story)
    later = timedelta(seconds=-60 if verified_after else 60)
    inspected(site / "a", ended_at=timezone.now() + later, problem="a.arrow was short.")

    assert chosen_of(story).points[0].fitness is fitness


def test_points_newer_than_the_restored_one_are_not_recommended(site: Path) -> None:
    story = Story(new_run()).started()
    for name in ("a", "b", "c"):
        story.completed(CheckpointKind.SAVEPOINT, path=written(site / name))
    fold(story.ended())
    first = Run.objects.get()
    restored = new_run(parent=first, first_checkpoint_id=3, restored_from=str(site / "b"))
    fold(Story(restored).started().ended(JobStatus.FAILED, "Broken."))

    choice = chosen_of(story)

    found = by_path(choice)
    assert [Path(path).name for path, each in found.items() if each.is_on_line] == ["b", "a"]
    assert choice.recommended is found[str(site / "b")]


def test_nothing_is_recommended_without_a_point_or_a_pipeline() -> None:
    fold(Story(new_run()).started())

    choice = point_choice("flights")

    assert choice is not None
    assert (choice.recommended, choice.points) == (None, [])
    assert choice.reason.startswith("Nothing has been completed")
    assert point_choice("nothing") is None


def written(point: Path) -> str:
    point.mkdir()
    (point / "manifest.json").write_text("{}")
    return str(point)


def inspected(point: Path, **columns: object) -> PointInspection:
    return PointInspection.objects.create(path=str(point), moved_at=timezone.now(), **columns)


def chosen_of(story: Story) -> PointChoice:
    fold(story)
    choice = point_choice(story.run.pipeline.name)
    assert choice is not None
    return choice


def by_path(choice: PointChoice) -> dict[str, FitPoint]:
    return {each.point.path: each for each in choice.points}


def fold(_: Story) -> None:
    Projector().run_once()
