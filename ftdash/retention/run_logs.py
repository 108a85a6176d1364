"""Keeps the logs in the directories of runs short: a run of several months may fail every
minute, and logs the reason each time."""

import os
from pathlib import Path

from django.conf import settings

from ftdash.jobs.directories import run_directory
from ftdash.jobs.failure_isolation import isolated
from ftdash.jobs.models import Run
from pipelines.disk.files import FOR_ALL, replace_atomically

LOGS = ("driver.log", "audit.log")


def shorten_logs() -> None:
    for run in Run.objects.select_related("pipeline").only("run_id", "pipeline__name"):
        for name in LOGS:
            with isolated(f"The shortening of {name} of {run.run_id}"):
                shorten(run_directory(run).path / name)


def shorten(log: Path) -> None:
    """Moves the end of a long log to a file next to it, `driver.log.1`, which replaces the previous
    one; then empties the log.

    Empties it in place, because its writers have it open for appending. What they write in between
    is lost.
    """
    try:
        size = log.stat().st_size
    except FileNotFoundError:
        return
    if size <= settings.RUN_LOG_BYTES_MAX:
        return
    with log.open("rb") as file:
        file.seek(size - settings.RUN_LOG_BYTES_MAX)
        file.readline()  # the first line may be cut in two
        newest = file.read()
    replace_atomically(log.with_name(f"{log.name}.1"), newest, FOR_ALL)
    os.truncate(log, 0)
