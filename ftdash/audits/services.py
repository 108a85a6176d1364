"""Audits from the page: asked for, carried out by a process of their own, found again in a row.

Of a run one is under way at a time.
One whose process has fallen silent was interrupted, and the next question begins anew.
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
    """Of its newest run; the audit that is under way already, if there is one.

    Raises Rejected when nothing was ever started.
    """
    run = pipeline_named(pipeline).runs.order_by("-number").first()
    if run is None:
        raise Rejected(f"{pipeline} has no run yet, so there is nothing to audit.")
    try:
        with transaction.atomic():
            return _ask(run, requester)
    except IntegrityError:  # somebody else has asked this moment
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
