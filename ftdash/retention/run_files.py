"""Deletes old segments of journals, once no reader needs them.

`bus.journal_segments` decides which may go. A driver does not need them, because its newest segment
begins with a summary. The projector stores its offset in the database. During an audit, none is
deleted.

Deletes the marks of old requests from the inboxes of runs.

A mark keeps a request that is delivered twice from being carried out twice; open requests may be
(`supervision.delivery`). The mark of an ended request goes when the journal may forget the request.

Keeps the logs in the directories of runs short: a run of several months may fail every
minute, and logs the reason each time.
"""

import logging
import os
import time
from datetime import timedelta
from pathlib import Path

from django.conf import settings
from django.utils import timezone

from ftdash.checkpoints.models import Audit
from ftdash.checkpoints.queries.guarantee import is_silent
from ftdash.jobs.directories import run_directory
from ftdash.jobs.failure_isolation import isolated
from ftdash.jobs.models import OPEN_PHASES, Request, Run
from pipelines.bus.inbox import done_before, forget
from pipelines.bus.journal_segments import closed_segments, delete_segments, expendable
from pipelines.disk.files import FOR_ALL, replace_atomically

log = logging.getLogger("ftdash.history")


def shorten_journals() -> None:
    """Shortens the journals of all runs, ended ones too; keeps the newest segment of each."""
    now = timezone.now()
    if not all(is_silent(audit, now) for audit in Audit.objects.filter(ended_at=None)):
        return
    runs = Run.objects.select_related("pipeline")
    for run in runs.only("run_id", "journal_offset", "pipeline__name"):
        with isolated(f"The shortening of the journal of {run.run_id}"):
            _shorten(run)


def _shorten(run: Run) -> None:
    keep = timedelta(days=settings.JOURNAL_RETENTION_DAYS)
    closed = closed_segments(run_directory(run).journal_file)
    going = expendable(closed, run.journal_offset, time.time() - keep.total_seconds())
    if not going:
        return
    # Stored first: it marks rows that can no longer be rebuilt.
    Run.objects.filter(pk=run.pk).update(journal_begins=going[-1].end)
    delete_segments([each.segment for each in going])
    log.info("The journal of %s was shortened: it begins at byte %d.", run.run_id, going[-1].end)


def forget_old_requests() -> None:
    for run in Run.objects.select_related("pipeline").only("run_id", "pipeline__name"):
        with isolated(f"The forgetting of old requests to {run.run_id}"):
            _forget(run)


def _forget(run: Run) -> None:
    keep = timedelta(days=settings.JOURNAL_RETENTION_DAYS)
    directory = run_directory(run)
    old = done_before(directory, time.time() - keep.total_seconds())
    if not old:
        return
    still_open = Request.objects.filter(run=run, phase__in=OPEN_PHASES)
    for request_id in set(old) - set(still_open.values_list("request_id", flat=True)):
        forget(directory, request_id)


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
