"""Deletes the marks of old requests from the inboxes of runs.

A mark keeps a request that is delivered twice from being carried out twice; open requests may be
(`supervision.delivery`). The mark of an ended request goes when the journal may forget the request.
"""

import time
from datetime import timedelta

from django.conf import settings

from ftdash.jobs.directories import run_directory
from ftdash.jobs.failure_isolation import isolated
from ftdash.jobs.models import OPEN_PHASES, Request, Run
from pipelines.bus.inbox import done_before, forget


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
