"""Pipelines with savepoints on disk, for tests of the pages and actions for them."""

from pathlib import Path

from django.conf import settings

from ftdash.jobs.models import Pipeline, Run
from ftdash.projection.projector import Projector
from pipelines.domain.ids import CheckpointId, RunId
from pipelines.domain.status import CheckpointKind
from pipelines.storage.filesystem import FileSystemCheckpointStore
from tests.unit.points.stored_views import FLOW, publish_views, write_events
from tests.web.journals import Story, new_run

NAME = "views"


def stopped_run(name: str = NAME, keys: tuple[int, ...] = (20,), **changes: object) -> Run:
    """Makes a run that is over and counted so many applications at each of its savepoints."""
    jobs = Path(settings.JOBS_ROOT)
    data = write_events(jobs / "events")
    run = new_run(name, settings={}, parameters={"data": str(data)})
    Pipeline.objects.filter(name=name).update(flow=FLOW, parameters=run.parameters)
    story = Story(run).started()
    for number, count in enumerate(keys, start=1):
        path = jobs / name / "savepoints" / f"savepoint-{run.run_id}-{number}"
        store = FileSystemCheckpointStore([str(jobs)])
        named = {"run_id": RunId(run.run_id), "checkpoint_id": CheckpointId(number)}
        publish_views(store, str(path), data, keys=count, **{**named, **changes})
        story.completed(CheckpointKind.SAVEPOINT, path=str(path), request_id=f"taken-{number}")
    story.ended()
    Projector().run_once()
    return run


def path_of(run: Run, number: int = 1) -> str:
    jobs = Path(settings.JOBS_ROOT)
    return str(jobs / run.pipeline.name / "savepoints" / f"savepoint-{run.run_id}-{number}")
