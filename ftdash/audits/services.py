"""Audits on request of the page: stored as a row, carried out by a separate process.

A run has at most one audit under way. If its process falls silent, the audit counts as interrupted,
and the next request starts another one.
"""

from django.db import IntegrityError, transaction
from django.utils import timezone

from ftdash.audits.process import end, make_known
from ftdash.checkpoints.models import Audit
from ftdash.checkpoints.queries.guarantee import is_silent
from ftdash.errands import Errand, publish_on_commit
from ftdash.jobs.models import Run
from ftdash.requests.asking import pipeline_named
from pipelines.domain.errors import Rejected

INTERRUPTED = "It was interrupted before it had found anything; ask again."


def ask(pipeline: str, requester: str) -> int:
    """Audits the newest run; returns the audit that is under way already, if there is one.

    Raises Rejected if no run was ever started.
    """
    run = pipeline_named(pipeline).runs.order_by("-number").first()
    if run is None:
        raise Rejected(f"{pipeline} has no run yet, so there is nothing to audit.")
    try:
        with transaction.atomic():
            return _ask(run, requester)
    except IntegrityError:  # another request was stored at this moment
        return Audit.objects.get(run=run, ended_at=None).pk


def _ask(run: Run, requester: str) -> int:
    now = timezone.now()
    open_one = Audit.objects.filter(run=run, ended_at=None).first()
    if open_one is not None and not is_silent(open_one, now):
        return int(open_one.pk)
    if open_one is not None:
        end(open_one, problem=INTERRUPTED)
    row = Audit.objects.create(run=run, requester=requester, created_at=now)
    make_known(run)
    publish_on_commit(Errand.START_AUDIT, row.pk)
    return int(row.pk)
