"""The tree of runs and points, as a restore forks it."""

from datetime import timedelta

import pytest
from django.utils import timezone

from ftdash.checkpoints.models import Checkpoint, CheckpointStatus
from ftdash.jobs.models import Pipeline, Run
from ftdash.points.queries import POINTS_PER_RUN_MAX, lineage
from tests.web.journals import new_run
from tests.web.lineages import forked, over, points

pytestmark = pytest.mark.django_db


def test_an_unknown_pipeline_has_no_lineage() -> None:
    assert lineage("nothing") is None


def test_a_run_without_points_is_a_tree_of_its_own() -> None:
    new_run()

    [only] = lineage("flights") or []

    assert (only.run_id, only.depth, only.parent_run_id, only.points) == ("flights-1", 0, None, [])


def test_a_restore_forks_a_run_from_a_point_and_each_run_comes_before_its_forks() -> None:
    first = over(new_run())
    points(first, 1, 2, 3)
    second = over(forked(first, 2))
    points(second, 3)
    over(forked(second, 3))
    over(forked(first, 2))

    runs = lineage("flights") or []

    assert [(run.run_id, run.depth, run.restored_checkpoint_id) for run in runs] == [
        ("flights-1", 0, None),
        ("flights-2", 1, 2),
        ("flights-3", 2, 3),
        ("flights-4", 1, 2),
    ]
    assert [(p.checkpoint_id, p.forks) for p in runs[0].points] == [
        (1, []),
        (2, ["flights-2", "flights-4"]),
        (3, []),
    ]
    assert runs[1].points[0].forks == ["flights-3"]


def test_a_restored_run_lists_its_changed_settings_and_parameters() -> None:
    first = over(new_run(settings={"heartbeat.interval": "2 s"}))
    points(first, 2)
    second = forked(first, 2)
    second.settings = {"execution.checkpointing.interval": "5 s"}
    second.parameters = {**first.parameters, "rate": "7"}
    second.save()

    changes = (lineage("flights") or [])[1].changes

    assert "execution.checkpointing.interval: 1 s → 5 s" in changes
    assert "heartbeat.interval: 2 s → 1 s" in changes
    assert "rate: not set → 7" in changes


def test_points_are_ordered_by_completion() -> None:
    """A slow savepoint may complete after checkpoints of higher ids."""
    run = new_run()
    points(run, 2, 3, 1)

    [only] = lineage("flights") or []

    assert [p.checkpoint_id for p in only.points] == [2, 3, 1]


def test_a_fork_into_another_pipeline_is_in_the_trees_of_both() -> None:
    first = over(new_run())
    points(first, 1)
    forked(first, 1, name="copy")

    assert lineage("flights") == lineage("copy")
    assert [run.pipeline for run in lineage("copy") or []] == ["flights", "copy"]


def test_runs_of_other_pipelines_are_not_shown() -> None:
    new_run()
    new_run("other")

    assert [run.run_id for run in lineage("flights") or []] == ["flights-1"]


def test_a_forked_point_is_shown_however_many_points_follow() -> None:
    first = over(new_run())
    points(first, *range(1, POINTS_PER_RUN_MAX + 20))
    forked(first, 3)

    shown = (lineage("flights") or [])[0].points

    assert [p.checkpoint_id for p in shown[:2]] == [3, 20]
    assert len(shown) == POINTS_PER_RUN_MAX + 1


def test_deleted_points_are_marked_as_unavailable() -> None:
    run = new_run()
    points(run, 1, 2)
    Checkpoint.objects.filter(checkpoint_id=1).update(status=CheckpointStatus.DISCARDED)

    [only] = lineage("flights") or []

    assert [p.is_available for p in only.points] == [False, True]


@pytest.mark.slow
def test_a_pipeline_that_was_restored_a_thousand_times_in_a_row_has_a_lineage() -> None:
    now = timezone.now()
    run = over(new_run())
    pipeline = Pipeline.objects.get()
    for number in range(2, 1_500):
        run = Run.objects.create(
            pipeline=pipeline,
            run_id=f"flights-{number}",
            number=number,
            status="FINISHED",
            parallelism=1,
            max_parallelism=128,
            master="",
            created_at=now + timedelta(seconds=number),
            parent=run,
            restored_from="/x",
        )

    runs = lineage("flights") or []

    assert (len(runs), runs[-1].depth) == (1_499, 1_498)
