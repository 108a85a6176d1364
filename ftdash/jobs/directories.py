"""Where the files of a run are, below the jobs root of this installation."""

from pathlib import Path

from django.conf import settings

from ftdash.jobs.models import Pipeline, Run
from pipelines.domain.ids import RunId
from pipelines.domain.run import RunDirectory


def run_directory(run: Run) -> RunDirectory:
    return RunDirectory.of(settings.JOBS_ROOT, run.pipeline.name, RunId(run.run_id))


def quarantine_directory(pipeline: Pipeline) -> Path:
    """Returns the directory of the quarantine of all the pipeline's runs and sources."""
    return RunDirectory.of(settings.JOBS_ROOT, pipeline.name, RunId("any")).quarantine
