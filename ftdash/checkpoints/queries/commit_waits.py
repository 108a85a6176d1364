"""Up to which checkpoint runs have committed output, and since when the next one waits.

Reads rows only, of any number of runs at once.
"""

from collections.abc import Collection
from datetime import datetime

from django.db.models import OuterRef, Subquery
from django.db.models.functions import Coalesce, Greatest

from ftdash.checkpoints.models import COMPLETE, Checkpoint
from ftdash.jobs.models import Recovery, Run

_committed = Checkpoint.objects.filter(run=OuterRef("pk"), committed_at__isnull=False)
_recovered = Recovery.objects.filter(
    run=OuterRef("pk"), running_at__isnull=False, restored_checkpoint_id__isnull=False
)
COMMITTED_ID = Greatest(
    Coalesce(Subquery(_committed.order_by("-checkpoint_id").values("checkpoint_id")[:1]), 0),
    Coalesce(
        Subquery(
            _recovered.order_by("-restored_checkpoint_id").values("restored_checkpoint_id")[:1]
        ),
        0,
    ),
)
"""For a row of `Run`. The point to which a recovery goes back is committed before it runs."""


def waiting_since(runs: Collection[int]) -> dict[int, datetime]:
    """For runs with a completed, uncommitted checkpoint: when the oldest such one was triggered.

    Its sinks opened their prepared transactions before that, and the targets have held them since.
    """
    waiting = (
        Checkpoint.objects.filter(run=OuterRef("pk"), status__in=COMPLETE)
        .filter(checkpoint_id__gt=OuterRef("committed_id"))
        .order_by("checkpoint_id")
    )
    rows = (
        Run.objects.filter(pk__in=runs)
        .annotate(committed_id=COMMITTED_ID)
        .annotate(waits_since=Subquery(waiting.values("trigger_at")[:1]))
        .exclude(waits_since=None)
    )
    return dict(rows.values_list("pk", "waits_since"))
