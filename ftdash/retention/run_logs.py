"""Keeps the logs in the directories of runs short: a run that goes on for months may fail every
minute of them, and says why each time."""

import os
from pathlib import Path

from django.conf import settings

from ftdash.jobs.directories import run_directory
from ftdash.jobs.failure_isolation import isolated
from ftdash.jobs.models import Run
from pipelines.disk.atomic_files import FOR_ALL, replace_atomically

LOGS = ("driver.log", "audit.log")


def shorten_logs() -> None:
    for run in Run.objects.select_related("pipeline").only("run_id", "pipeline__name"):
        for name in LOGS:
            with isolated(f"The shortening of {name} of {run.run_id}"):
                shorten(run_directory(run).path / name)


def shorten(log: Path) -> None:
    """What a log that is too long ends with goes to a file beside it, `driver.log.1`, in the place
    of what was there, and the log begins anew.

    In place: its writers have it open, and append. What they say between the two is lost.
    """
    try:
        size = log.stat().st_size
    except FileNotFoundError:
        return
    if size <= settings.RUN_LOG_BYTES_MAX:
        return
    with log.open("rb") as file:
        file.seek(size - settings.RUN_LOG_BYTES_MAX)
        file.readline()  # the first may be cut in two
        newest = file.read()
    replace_atomically(log.with_name(f"{log.name}.1"), newest, FOR_ALL)
    os.truncate(log, 0)
