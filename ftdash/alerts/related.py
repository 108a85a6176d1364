"""Which incident an alert belongs to. Pure.

An alert says that a number is too large, an incident says why. So one incident often explains
several alerts: after a failure no checkpoint completes, and nothing is committed.
"""

from collections.abc import Iterable

from ftdash.alerts.models import Watched
from ftdash.incidents.causes import OF_FAILURES, Cause
from ftdash.incidents.models import Incident

_LATE = OF_FAILURES | {
    *(Cause.SILENT, Cause.STUCK, Cause.NO_CHECKPOINT, Cause.CHECKPOINTS_FAIL),
    *(Cause.BACKPRESSURED,),
}
_SLOW = OF_FAILURES | {Cause.BACKPRESSURED}
_CHECKPOINTS = _SLOW | {Cause.CHECKPOINTS_FAIL, Cause.NO_CHECKPOINT}
EXPLAINED_BY: dict[Watched, frozenset[Cause]] = {
    Watched.FAILED_RUN: OF_FAILURES,
    Watched.DAMAGED_POINTS: frozenset({Cause.POINT_DAMAGED}),
    Watched.SINCE_CHECKPOINT: _LATE,
    Watched.SINCE_OUTPUT: _LATE | {Cause.NO_OUTPUT},
    Watched.COMMIT_WAIT: _LATE | {Cause.NO_OUTPUT},
    Watched.FAILED_IN_ROW: _CHECKPOINTS,
    Watched.FAILED_LATELY: _CHECKPOINTS,
    Watched.RESTARTS_LATELY: OF_FAILURES,
    Watched.BUFFERED_BYTES: _SLOW,
    Watched.EVENT_TIME_LAG: _LATE,
    Watched.RECORDS_BEHIND: _LATE,
}


def incident_of(watched: Watched, open_ones: Iterable[Incident]) -> Incident | None:
    """Of the pipeline's open incidents, the one that explains the alert; None: none does.

    A failure explains more than a clock that runs late. Of two failures, the newer one counts.
    """
    explaining = [row for row in open_ones if Cause(row.cause) in EXPLAINED_BY[watched]]
    return max(explaining, key=_weight, default=None)


def _weight(row: Incident) -> tuple[bool, float]:
    return Cause(row.cause) in OF_FAILURES, row.last_at.timestamp()
