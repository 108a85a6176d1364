"""The cost of a failure now, and the records that a restore would reread, are position differences.

Restarts, slow folds and late reports do not add to them, on any page or in any interface.
"""

import random
from pathlib import Path

import msgspec
import pytest

from ftdash.points.queries import point_choice
from ftdash.projection.projector import Projector
from ftdash.prometheus.observed import observed
from ftdash.runs.queries import pipelines as queries
from pipelines.domain.events import CheckpointCommitted
from pipelines.domain.ids import CheckpointId
from pipelines.domain.status import CheckpointKind
from tests.web.journals import Story, checkpoint_completed, new_run, run_started, sample

pytestmark = pytest.mark.usefixtures("site", "patient")


@pytest.mark.parametrize("seed", range(12))
def test_every_figure_counts_the_records_read_after_its_point(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    restored = rng.choice([0, 40_000])
    story = Story(new_run()).started()
    points: dict[str, int] = {}
    reached = now = told = restored
    story.tell(sample(1_000.0, 10, reached, restored))

    for _ in range(rng.randint(5, 40)):
        story.wait(rng.choice([100, 1_000, 30_000]))
        act = rng.choice(["read", "read", "report", "report", "checkpoint", "die", "driver"])
        if act == "read":
            now += rng.randint(1, 50_000)
        elif act == "report":
            reached = told = max(reached, now)
            rate = rng.choice([0.0, 3_000.0, 9e9])  # has no effect
            story.tell(sample(rate, 10, reached, restored))
        elif act == "checkpoint":
            path = str(tmp_path / f"{len(points)}")
            number = story.next_checkpoint
            done = checkpoint_completed(number, CheckpointKind.CHECKPOINT, path)
            story.triggered()
            story.tell(msgspec.structs.replace(done, source_records=now))
            story.tell(CheckpointCommitted(checkpoint_id=number))
            story.next_checkpoint = CheckpointId(number + 1)
            points[path] = now
        elif act == "die":
            story.slot_killed()
            now = list(points.values())[-1] if points else restored
        else:
            story.tell(run_started(4712))
    Projector().run_once()

    newest = list(points.values())[-1] if points else restored
    page, choice = queries.pipeline_page("flights"), point_choice("flights")
    assert page is not None
    assert page.run is not None
    assert choice is not None
    (summary,) = queries.fleet().pipelines
    assert summary.pulse is not None
    (measured,) = observed().pipelines
    assert measured.run is not None
    costs = (page.run, summary.pulse, measured.run)
    assert [each.records_to_replay for each in costs] == [max(0, told - newest)] * 3
    furthest = max(told, newest)
    assert {each.point.path: each.records_to_replay for each in choice.points} == {
        path: furthest - position for path, position in points.items()
    }


def test_at_most_once_has_no_records_to_replay() -> None:
    run = new_run(settings={"execution.checkpointing.mode": "at-most-once"})
    Story(run).started().completed().sampled(since=5_000)
    Projector().run_once()

    page = queries.pipeline_page("flights")

    assert page is not None
    assert page.run is not None
    assert page.run.records_to_replay == 0


def test_a_figure_that_an_older_driver_does_not_report_is_unknown() -> None:
    story = Story(new_run()).started().completed()
    story.tell(sample(1_000.0, 10, reached=None, restored=None))
    Projector().run_once()

    page = queries.pipeline_page("flights")

    assert page is not None
    assert page.run is not None
    assert page.run.records_to_replay is None
