"""Where the files of a run are, below the jobs root of this installation."""

from django.conf import settings

from ftdash.jobs.models import Run
from pipelines.domain.ids import RunId
from pipelines.domain.run import RunDirectory


def run_directory(run: Run) -> RunDirectory:
    return RunDirectory.of(settings.JOBS_ROOT, run.pipeline.name, RunId(run.run_id))
