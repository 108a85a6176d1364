"""Labels of existing savepoints; `requests.services` stores the label of one still to be taken.

The driver does not know labels: they are stored next to the points, and a new label touches no
file.
"""

from dataclasses import replace

from django.db import transaction
from django.utils import timezone

from ftdash.checkpoints.models import Checkpoint
from ftdash.jobs.models import PointLabel, RequestKind, RequestPhase
from ftdash.jobs.validation import check_reason
from ftdash.requests.asking import Question, already_asked, pipeline_named, store
from ftdash.requests.phases import end_request
from pipelines.domain.accepted_text import checked_label
from pipelines.domain.errors import Rejected
from pipelines.domain.ids import RequestId
from pipelines.domain.status import CheckpointKind


def label_savepoint(
    *,
    pipeline: str,
    path: str,
    label: str,
    requester: str,
    reason: str,
    request_id: str | None = None,
) -> RequestId:
    """Give a savepoint of the pipeline another label; an empty one removes it.

    Raises Rejected if the pipeline has no savepoint at `path`, or the label is invalid.
    """
    question = Question(RequestKind.LABEL, pipeline, requester, reason, request_id)
    if known := already_asked(question):
        return known
    label = checked_label(label)
    row = pipeline_named(pipeline)
    rows = Checkpoint.objects.filter(kind=CheckpointKind.SAVEPOINT.value, path=path)
    if not rows.filter(run__pipeline=row).exists():
        raise Rejected(f"{pipeline} has no savepoint at {path}; look at its page of savepoints.")
    given = {"path": path, "label": label}
    asked = replace(question, reason=check_reason(reason), parameters=given)
    now = timezone.now()
    with transaction.atomic():
        PointLabel.objects.update_or_create(
            path=path, defaults={"label": label, "labelled_by": requester, "labelled_at": now}
        )
        request = store(asked, row, None, 0.0)
        text = f"It is called {label!r} now." if label else "It has no label any more."
        end_request(request, RequestPhase.SUCCEEDED, text, now)
    return RequestId(request.request_id)
