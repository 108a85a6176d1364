"""Deletes old segments of journals, once no reader needs them.

`bus.journal_segments` decides which may go. A driver does not need them, because its newest segment
begins with a summary. The projector stores its offset in the database. During an audit, none is
deleted.
"""

import logging
import time
from datetime import timedelta

from django.conf import settings
from django.utils import timezone

from ftdash.checkpoints.models import Audit
from ftdash.checkpoints.queries.guarantee import is_silent
from ftdash.jobs.directories import run_directory
from ftdash.jobs.failure_isolation import isolated
from ftdash.jobs.models import Run
from pipelines.bus.journal_segments import closed_segments, delete_segments, expendable

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
